# SPDX-License-Identifier: Apache-2.0
"""The second opinions on a stack: gdb and eu-stack, asked for the same core or process with the same files."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

HERE: Final = Path(__file__).resolve().parent
GDB_FRAMES: Final = HERE / "gdb_frames.py"

#: Nothing of the user's or the network's; no separate debug information, which others would not have; all frames.
_GDB_SETTINGS: Final = (
    "set debuginfod enabled off",
    "set debug-file-directory /nonexistent",
    "set auto-load off",
    "set confirm off",
    "set backtrace past-main on",
    "set backtrace past-entry on",
    "set backtrace limit unlimited",
    "handle all nostop noprint pass",
)
_EU_THREAD: Final = re.compile(r"TID (\d+):")
_EU_FRAME: Final = re.compile(r"#\d+\s+0x([0-9a-f]+)\b")
TIMEOUT: Final = 120


class Chain(NamedTuple):
    """The frames of a thread, innermost first: PCs as the judge gives them, and SPs where it gives them."""

    thread_id: int
    pcs: tuple[int, ...]
    sps: tuple[int, ...] = ()
    reason: str = ""


def gdb(
    *words: str | Path,
    settings: Sequence[str] = (),
    commands: Sequence[str] = (),
    program: str = "gdb",
) -> str:
    """Run gdb over commands; return what it and the program that it ran printed on either stream."""
    line = [program, "-batch", "-nx"]
    for setting in (*_GDB_SETTINGS, *settings):
        line += ["-iex", setting]
    line += map(str, words)
    for command in commands:
        line += ["-ex", command]
    done = subprocess.run(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=TIMEOUT
    )
    return done.stdout.decode(errors="replace")


def make_core(program: Path, core: Path, *commands: str) -> None:
    """Run a program to stop_here(), go on by gdb commands, and write its core."""
    text = gdb(
        program,
        settings=["set exec-wrapper env -i"],
        commands=["break *stop_here", "run", *commands, f"generate-core-file {core}", "kill"],
    )
    assert core.exists(), text


def gdb_chains(program: Path, core: Path) -> tuple[Chain, ...]:
    """Return gdb's frames of every thread of a core."""
    text = gdb(program, core, "-x", GDB_FRAMES)
    lines = [line.removeprefix("FRAMES ") for line in text.splitlines() if line.startswith("FRAMES ")]
    assert len(lines) == 1, text
    threads = [Chain(t["id"], tuple(t["pcs"]), tuple(t["sps"]), t["reason"]) for t in json.loads(lines[0])]
    return tuple(sorted(threads))


def eu_stack_chains(program: Path, core: Path) -> tuple[Chain, ...]:
    """Return the frames of every thread of a core as eu-stack finds them; its complaints are the reason of all."""
    done = subprocess.run(
        ["eu-stack", "-n", "0", f"--core={core}", f"--executable={program}"],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )
    chains: dict[int, list[int]] = {}
    pcs: list[int] = []
    for line in done.stdout.splitlines():
        if match := _EU_THREAD.match(line):
            pcs = chains.setdefault(int(match[1]), [])
        elif match := _EU_FRAME.match(line):
            pcs.append(int(match[1], 16))
    return tuple(sorted(Chain(thread, tuple(found), (), done.stderr) for thread, found in chains.items()))
