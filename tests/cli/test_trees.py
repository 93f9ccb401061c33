# SPDX-License-Identifier: Apache-2.0
"""Folders as users see them: what is taken, what is left alone, and what is said about that."""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.cli.answers import read_source
from cfi2sframe.cli.options import add_inputs, inputs_of
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ErrorKind
from cfi2sframe.files.find import Unusable
from tests.support.cli import run
from tests.support.jobs import OBJECT, TRUNCATED, WITHOUT_CFI, object_of, tree
from tests.support.sizes import library

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OF_32_BITS = b"\x7fELF\x01\x01\x01" + bytes(100)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A small system: a program, a start file of the linker, a separate debug file, a file of another machine."""
    path = tmp_path / "root"
    for folder in ("bin", "lib/debug"):
        (path / folder).mkdir(parents=True)
    shutil.copy("/bin/true", path / "bin" / "true")
    for name, data in (("crt1.o", OBJECT), ("Scrt1.o", object_of(1)), ("lib32.so", OF_32_BITS)):
        (path / "lib" / name).write_bytes(data)
    (path / "lib" / "debug" / "true.debug").write_bytes(library(1))
    return path


def sum_of(err: tuple[str, ...]) -> str:
    """The sum of a run, without the time."""
    return re.sub(r"; \d+\.\d s$", "", err[-1].removeprefix("cfi2sframe: info: "))


def changed(root: Path, words: tuple[str, ...]) -> set[str]:
    """Run in place on a tree without a message; return the files that are not what they were."""
    before = tree(root)
    status, out, err = run(*words, root)
    assert (status, out, len(err)) == (0, b"", 1)
    assert err[0].startswith("cfi2sframe: info: ")
    after = tree(root)
    assert before.keys() == after.keys()
    return {name for name, file in after.items() if file != before[name]}


# The mistakes


def test_what_linkers_start_programs_with_is_left_alone(root: Path) -> None:
    """GNU ld before 2.46 cannot read them with version 3, and every link would print an error."""
    assert changed(root, ("--in-place", "-r")) == {"bin/true"}
    assert changed(root, ("--in-place", "-r", "--for", "ld")) == {"lib/crt1.o", "lib/Scrt1.o"}
    assert changed(root, ("remove", "--in-place", "-r")) == {"bin/true", "lib/crt1.o", "lib/Scrt1.o"}


def test_the_sum_tells_what_was_left_alone(root: Path) -> None:
    (root / "lib" / "no.so").write_bytes(WITHOUT_CFI)
    skipped = "5 skipped (other machine: 1, relocatable object: 3, separate debug file: 1)"
    _, _, err = run("--in-place", "-r", "-v", root)
    assert re.fullmatch(rf"6 files: 1 converted, {re.escape(skipped)}; .* bytes of \.sframe", sum_of(err))
    status, _, err = run("--in-place", "-r", "-v", "--for", "ld", root)
    assert status == 0
    kinds = "other machine: 1, no CFI: 1, not for the reader: 1, separate debug file: 1"
    assert f"2 converted, 4 skipped ({kinds})" in sum_of(err)


def test_removal_from_a_tree(root: Path) -> None:
    before = tree(root)
    run("--in-place", "-r", root)
    size = json.loads(run("remove", "--check", "-r", root, "--report", "-").out.splitlines()[-5])["section_size"]
    status, out, err = run("remove", "--check", "-r", root / "bin", "-v")
    assert (status, out.decode()) == (1, f"{root}/bin/true: would remove: .sframe of {size:,} bytes\n")
    assert sum_of(err) == f"1 file: 1 would remove; {size:,} bytes of .sframe"
    status, out, err = run("remove", "--in-place", "-r", "-v", "-j", "2", root)
    assert (status, out) == (0, b"")
    kinds = "(other machine: 1, separate debug file: 1)"
    assert sum_of(err) == f"5 files: 1 removed, 2 unchanged, 2 skipped {kinds}; {size:,} bytes of .sframe"
    assert {name: file.data for name, file in tree(root).items()} == {n: file.data for n, file in before.items()}
    assert "3 unchanged" in sum_of(run("remove", "--in-place", "-r", "-v", root).err)
    done = run("remove", "--check", "-r", "-v", root / "bin")
    assert (done.status, done.out) == (0, f"{root}/bin/true: up to date: no .sframe section\n".encode())


def test_removal_from_several_files(root: Path, tmp_path: Path) -> None:
    files = [root / "lib" / "crt1.o", root / "bin" / "true"]
    run("--in-place", *files)
    listed, report = tmp_path / "list", tmp_path / "report"
    listed.write_bytes(os.fsencode(files[1]) + b"\0")
    assert run("remove", "--in-place", files[0], "--files-from", listed, "--report", report).status == 0
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(line["file"], line["status"]) for line in lines] == [(str(file), "removed") for file in files]
    status, out, err = run("remove", "--in-place", *files)
    assert (status, out) == (3, b"")
    assert err[:2] == (
        f"cfi2sframe: {files[0]}: error: no .sframe section",
        f"cfi2sframe: {files[1]}: error: the file has no .sframe section",
    )


@pytest.mark.parametrize("words", [("--in-place", "-r"), ("remove", "--check", "-r")])
def test_the_report_has_the_kind(root: Path, words: tuple[str, ...]) -> None:
    (root / "lib" / "bad.so").write_bytes(TRUNCATED)
    run("--in-place", root / "bin" / "true")
    status, out, _ = run(*words, root, "--report", "-")
    lines = [json.loads(line) for line in out.splitlines() if line.startswith(b"{")]
    assert all((line["status"] == "skipped") == bool(line["kind"]) for line in lines)
    assert status == 3
    objects = ("unchanged", "") if words[0] == "remove" else ("skipped", "relocatable object")
    assert {os.path.basename(line["file"]): (line["status"], line["kind"]) for line in lines} == {
        "true": ("would remove" if words[0] == "remove" else "unchanged", ""),
        "crt1.o": objects,
        "Scrt1.o": objects,
        "true.debug": ("skipped", "separate debug file"),
        "lib32.so": ("skipped", "other machine"),
        "bad.so": ("failed", ""),
    }


# What is left out


@pytest.mark.parametrize("words", [("--in-place",), ("remove", "--in-place")])
def test_excluded(root: Path, words: tuple[str, ...]) -> None:
    (root / "usr" / "bin").mkdir(parents=True)
    shutil.copy("/bin/true", root / "usr" / "bin" / "other")
    if words[0] == "remove":
        run("--in-place", "-r", root)
    rest = (*words, "-r")
    assert changed(root, (*rest, "--exclude", "tru?", "--exclude", "usr/bin")) == set()
    assert changed(root, (*rest, "--exclude", "usr")) == {"bin/true"}
    assert changed(root, (*rest, "--exclude", "/usr")) == {"usr/bin/other"}


# Verbs that read


def given(*words: str | Path) -> Iterator[tuple[ElfImage | Unusable, bool]]:
    """Yield what a verb that reads opens, and whether it was found in a folder."""
    parser = argparse.ArgumentParser()
    add_inputs(parser, "")
    for item in inputs_of(parser.parse_args([str(word) for word in words])).find():
        if isinstance(item, Unusable):
            yield item, item.kind is ErrorKind.UNFIT
        else:
            yield from ((image, item.is_in_folder) for image in read_source(item, lambda image: image).answers)


def test_images(root: Path, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(os.fsencode(root / "lib" / "crt1.o") + b"\0")
    found = []
    for image, is_in_folder in given(root, "missing", "--exclude", "debug", "--files-from", listed):
        kind = image.kind if isinstance(image, Unusable) else None
        assert isinstance(image, Unusable | ElfImage)
        found.append((image.name.removeprefix(f"{root}/"), kind, is_in_folder))
    assert found == [
        ("bin/true", None, True),
        ("lib/Scrt1.o", None, True),
        ("lib/crt1.o", None, True),
        ("lib/lib32.so", ErrorKind.UNFIT, True),
        ("missing", ErrorKind.UNUSABLE, False),
        ("lib/crt1.o", None, False),
    ]


def test_standard_input_is_an_image(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    with os.fdopen(write, "wb") as pipe:
        pipe.write(OBJECT)
    with os.fdopen(read) as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        (found,) = given("-")
    image, is_in_folder = found
    assert (image.name, is_in_folder) == ("<stdin>", False)
