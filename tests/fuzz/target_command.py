# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: the command line as a whole. The first byte chooses a verb and its options, the rest is the file."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from tests.fuzz import seeds as make
from tests.fuzz.harness import expect
from tests.support import cli

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.cli import Result

#: What can be asked of one file; `{in}` is it, `{out}` a file to write.
WAYS: Final = (
    "{in} -o {out}",
    "{in} -o {out} --sframe-version 2 --replace",
    "{in} -o - -O2",
    "{in} -o - --sframe-version 1 -O1",
    "{in} -o - --strict -v",
    "{in} -o {out} --report -",
    "--in-place {in} --report {out} -j 1",
    "--in-place --replace -v -j 1 {in}",
    "--check -j 1 {in}",
    "remove {in} -o {out}",
    "remove --in-place {in}",
    "verify --would-be -v {in}",
    "verify -v {in}",
    "verify {in} {in}",
    "dump {in}",
    "dump --format json {in}",
    "coverage {in}",
    "coverage --format json {in}",
    "size -j 1 {in}",
    "size -j 1 --format html {in}",
    "size -j 1 --format csv -o {out} {in}",
    "size -j 1 --compare {in} {in}",
    "trace {in}",
    "trace --format json {in}",
    "--in-place --files-from {in} -j 1",
    "{in} -o {out} --for kernel",
    "{in} -o {out} --for kernel-arm64",
)
_STATUSES: Final = (0, 1, 2, 3, 4, 5)
#: A line of the program; without any word it prints its help.
_LINE_STARTS: Final = ("cfi2sframe: ", "usage: ", "       cfi2sframe ", "cfi2sframe ")


def run(data: bytes) -> None:
    """Run one command in an empty folder, and hold it to what is promised of messages, statuses and files."""
    way, content = WAYS[data[0] % len(WAYS)] if data else WAYS[0], data[1:]
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "in"), Path(folder, "out")
        file.write_bytes(content)
        result = _run_in(folder, [word.replace("{in}", "in").replace("{out}", "out") for word in way.split()])
        expect(result.status in _STATUSES, f"{way}: exit status {result.status}")
        expect(
            result.status in (0, 1) or bool(result.err or result.out),
            f"{way}: exit status {result.status} without a word",
        )
        for line in result.err:
            expect(line.startswith(_LINE_STARTS), f"{way}: {line!r}")
            expect(line.isprintable(), f"{way}: {line!r}")
        left = set(os.listdir(folder)) - {"in", "out"}
        expect(not left, f"{way}: left {left}")
        expect("--in-place" in way or file.read_bytes() == content, f"{way}: changed its input")
        expect("{out}" in way or not out.exists(), f"{way}: wrote a file that was not named")


def _run_in(folder: str, words: list[str]) -> Result:
    """Run the command with `folder` as the current one, as lists and relative names mean it."""
    before = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.chdir(folder)
        return cli.run(*words)
    finally:
        os.fchdir(before)
        os.close(before)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield a command of every kind with a file that it answers well."""
    for number, way in enumerate(WAYS):
        arch = (AMD64, AARCH64_LE, S390X)[number % 3]
        content = make.linked_file(arch)
        if "--files-from" in way:
            content = b"in\n"
        elif number % 2:
            content = make.small_object(arch)
        yield f"{number:02}", bytes([number]) + content
