# SPDX-License-Identifier: Apache-2.0
"""What pages show is run: fenced blocks, the commands of a session, and what they print.

A block `c NAME` or `asm NAME` is a file. A block `console` is a session, whose first line may name the
tools that it needs: each line that starts with `$ ` is a command, and the lines after it are what it prints.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.contrib.support import environment
from tests.support.oracle.tools import find_binutils, oracles_directory, tool_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

TIMEOUT_SECONDS = 300
_BLOCK = re.compile(r"^```(\w+)(?: ([^\n]+))?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Between what one command prints and the next: ASCII's record separator.
_SEPARATOR = "\x1e"
_NUMBER = re.compile(r"(?:0x[0-9a-f]+|[0-9a-f]{16}|\d[\d,]*(?:\.\d+)?)")


class Block(NamedTuple):
    """A fenced block: its language, the rest of its first line, and its text."""

    language: str
    label: str
    text: str


def blocks_of(text: str) -> list[Block]:
    """Return the fenced blocks of a page that name a language."""
    return [Block(*found) for found in _BLOCK.findall(text)]


def commands_of(session: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each command of a session with the lines that it prints."""
    command, printed = "", list[str]()
    for line in session.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, printed
            command, printed = line[2:], []
        elif command.endswith("\\"):
            command += f"\n{line}"
        else:
            printed.append(line)
    yield command, printed


def play(commands: Sequence[str], folder: Path, variables: Mapping[str, str]) -> list[list[str]]:
    """Run commands in one shell in a folder, and end what they leave behind; return the lines that each prints."""
    script = folder / ".session"
    script.write_text("".join(f"{command}\nprintf '\\036'\n" for command in commands))
    heard = folder / ".heard"
    with (
        heard.open("wb") as out,
        subprocess.Popen(
            ["bash", script.name],
            cwd=folder,
            env=dict(variables),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as shell,
    ):
        try:
            shell.wait(TIMEOUT_SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    parts = heard.read_text().split(_SEPARATOR)
    for path in (script, heard):
        path.unlink()
    return [[line.rstrip() for line in part.splitlines()] for part in parts[: len(commands)]]


def agrees(shown: Sequence[str], printed: Sequence[str]) -> bool:
    """Whether lines are as a page shows them.

    A number stands for any, `...` in a line for any text, and a line `...` for any number of lines. Only the first
    of several spaces counts, since the widths of numbers differ.
    """
    rows = (r"(?:.*\n)*?" if line.strip() == "..." else f"{_pattern(line)}\n" for line in shown)
    return re.fullmatch("".join(rows), "".join(f"{_narrow(line)}\n" for line in printed)) is not None


def _pattern(line: str) -> str:
    texts = _narrow(line).split("...")
    return ".*".join(_NUMBER.pattern.join(map(re.escape, _NUMBER.split(text))) for text in texts)


def _narrow(line: str) -> str:
    return re.sub(r"(?<=\S) +", " ", line.rstrip())


class Release(NamedTuple):
    """The tools of a release: the version that they print, and where they are, None for the machine's own."""

    version: str
    suite: Path | None


def release_of(label: str) -> Release:
    """Find the tools that a label names, `binutils 2.44`; the test is skipped where they are not here."""
    name, _, wanted = label.partition(" ")
    sid = oracles_directory() / "sid"
    if name == "binutils" and wanted == "2.40":
        return Release(find_binutils("2.40").version, None)
    if name == "binutils":
        tools = find_binutils("2.44" if wanted == "2.44" else "newest")
        return Release(tools.version, tools.directory.parent)
    if name == "llvm":
        if not (sid / ".done").exists():
            pytest.skip("LLVM's newest tools are not here; fetch them with: make oracles")
        return Release(tool_version(str(sid / "bin" / "llvm-dwarfdump")), sid)
    path = shutil.which(name)
    found = tool_version(path) if path else ""
    if not (found + ".").startswith(wanted + "."):
        pytest.skip(f"the machine's own {name} is not {wanted}")
    return Release(found, None)


def variables_of(release: Release, programs: Path) -> dict[str, str]:
    """Return the environment of a session: the release's tools are first in PATH."""
    variables = environment(programs, LC_ALL="C")
    folders = [str(Path(sys.executable).parent), variables["PATH"]]
    if release.suite is not None:
        folders.insert(0, str(release.suite / "bin"))
    return variables | {"PATH": os.pathsep.join(folders)}
