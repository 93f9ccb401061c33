# SPDX-License-Identifier: Apache-2.0
"""docs/lab/upstream.md: the faults of other tools that it shows are still there, in the words that it prints.

A block `asm NAME`, `c NAME` or `python NAME` is a file; a block `console TOOLS VERSION` is a session with the tools of
that release: each line that starts with `$ ` is run, and the lines after it are what it prints. A tool that was mended,
or a page that has grown old, turns the run red.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from importlib.metadata import version as version_of_package
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.contrib.support import ROOT, environment
from tests.support.oracle.tools import ToolMissingError, find_binutils, oracles_directory, tool_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the page's programs are for AMD64"),
]

PAGE = ROOT / "docs" / "lab" / "upstream.md"
TIMEOUT_SECONDS = 60
#: GNU ld names itself by the path that it was started with.
LINKER_NAME = re.compile(r"^/\S*/\S*ld\S*:", re.MULTILINE)
BLOCK = re.compile(r"^```(\w+) ([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """A fenced block: its language, the rest of its first line, and its text."""

    language: str
    label: str
    text: str


class Fault(NamedTuple):
    """A section of the page: its heading and its blocks."""

    title: str
    blocks: list[Block]

    @property
    def sessions(self) -> list[Block]:
        return [block for block in self.blocks if block.language == "console"]


def faults(text: str) -> list[Fault]:
    """Return the sections of a page that have blocks."""
    parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    found = [
        Fault(title, [Block(*block) for block in BLOCK.findall(body)])
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    ]
    return [fault for fault in found if fault.blocks]


def commands_of(session: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a session with the lines that it prints."""
    command, printed = "", list[str]()
    for line in session.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        else:
            printed.append(line)
    yield command, printed


def output_of(command: str, folder: Path, variables: Mapping[str, str]) -> list[str]:
    """Return the lines that a command prints in a folder, with the linker's path cut off."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=dict(variables),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    return [line.rstrip() for line in LINKER_NAME.sub("ld:", done.stdout).splitlines()]


class Release(NamedTuple):
    """The tools of a release: the version that they print, and where they are, None for the machine's own."""

    version: str
    suite: Path | None


def release_of(label: str) -> Release:
    """Find the tools that a label names, `binutils 2.44`; raise ToolMissingError where they are not."""
    name, _, wanted = label.partition(" ")
    sid = oracles_directory() / "sid"
    if name == "binutils" and wanted == "2.40":
        return Release(find_binutils("2.40").version, None)
    if name == "binutils":
        tools = find_binutils("2.44" if wanted == "2.44" else "newest")
        return Release(tools.version, tools.directory.parent)
    if name == "llvm":
        if not (sid / ".done").exists():
            message = "LLVM's newest tools are not here; fetch them with: make oracles"
            raise ToolMissingError(message)
        return Release(tool_version(str(sid / "bin" / "llvm-dwarfdump")), sid)
    if name == "pyelftools":
        return Release(version_of_package("pyelftools"), None)
    path = shutil.which(name)
    found = tool_version(path) if path else ""
    if not (found + ".").startswith(wanted + "."):
        message = f"the machine's own {name} is not {wanted}"
        raise ToolMissingError(message)
    return Release(found, None)


def variables_of(release: Release, programs: Path, folder: Path) -> dict[str, str]:
    """Return the environment of a session: the release's tools first in PATH, its libsframe for the compiler."""
    variables = environment(programs, LC_ALL="C")
    variables["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), variables["PATH"]])
    if release.suite is None:
        return variables
    variables["PATH"] = os.pathsep.join([str(release.suite / "bin"), variables["PATH"]])
    usr = release.suite / "root" / "usr"
    # Beside it in its own folder is a libc of the same suite, which is not to be met.
    for library in sorted(usr.glob("lib/*/libsframe.so.?")):
        (folder / "lib").mkdir(exist_ok=True)
        shutil.copy2(library, folder / "lib" / library.name)
        (folder / "lib" / "libsframe.so").symlink_to(library.name)
    searched = str(folder / "lib")
    return variables | {
        "C_INCLUDE_PATH": str(usr / "include"),
        "LIBRARY_PATH": searched,
        "LD_LIBRARY_PATH": searched,
    }


SHOWN = [(fault, session) for fault in faults(PAGE.read_text()) for session in fault.sessions]


@pytest.mark.parametrize(
    ("fault", "session"), SHOWN, ids=[f"{fault.title}-{session.label}".replace(" ", "-") for fault, session in SHOWN]
)
def test_the_fault_is_still_there(fault: Fault, session: Block, programs: Path, tmp_path: Path) -> None:
    try:
        release = release_of(session.label)
    except ToolMissingError as error:
        pytest.skip(str(error))
    wanted = session.label.split()[1]
    assert (release.version + ".").startswith(wanted + "."), f"the page shows {wanted}; here is {release.version}"
    missing = [
        name
        for name in set(re.findall(r"(?:^\$|\|) (g?cc|gcc|objdump|ld\.mold)\b", session.text, re.MULTILINE))
        if shutil.which(name) is None
    ]
    if missing:
        pytest.skip(f"{missing[0]} is not here")
    for block in fault.blocks:
        if block.language != "console":
            (tmp_path / block.label).write_text(block.text)
    variables = variables_of(release, programs, tmp_path)
    for command, printed in commands_of(session.text):
        assert output_of(command, tmp_path, variables) == printed, command


def test_every_block_is_a_file_or_a_session() -> None:
    """A block that this test does not know would be shown and never run."""
    text = PAGE.read_text()
    assert len(re.findall(r"^```\w", text, re.MULTILINE)) == sum(len(fault.blocks) for fault in faults(text))
    assert {block.language for fault in faults(text) for block in fault.blocks} <= {"asm", "c", "python", "console"}
    assert all(fault.sessions for fault in faults(text))
    assert len(SHOWN) > 20
