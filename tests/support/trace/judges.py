# SPDX-License-Identifier: Apache-2.0
"""The second opinion on a stack: gdb, asked for the same core with the same files."""

import json
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe.process.demangle import readable_names
from cfi2sframe.trace import Trace, Traced
from tests.support.trace.build import Program

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
TIMEOUT: Final = 120


class Chain(NamedTuple):
    """The frames of a thread that gdb finds, innermost first, and why there are no more."""

    thread_id: int
    pcs: tuple[int, ...]
    sps: tuple[int, ...]
    reason: str


def gdb(*words: str | Path, settings: Sequence[str] = (), commands: Sequence[str] = (), program: str = "gdb") -> str:
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


def chains_in(text: str) -> tuple[Chain, ...]:
    """Return the frames of every thread that gdb_frames.py has printed, with what else gdb did."""
    (line,) = [line for line in text.splitlines() if line.startswith("FRAMES ")]
    threads = json.loads(line.removeprefix("FRAMES "))
    return tuple(sorted(Chain(t["id"], tuple(t["pcs"]), tuple(t["sps"]), t["reason"]) for t in threads))


def gdb_chains(program: Path, core: Path) -> tuple[Chain, ...]:
    """Return gdb's frames of every thread of a core."""
    return chains_in(gdb(program, core, "-x", GDB_FRAMES))


def functions_of(traced: Traced, thread: Trace) -> list[str]:
    """Return the names of the functions of a trace, innermost first; empty where none is known."""
    found = [traced.space.symbol_at(entry.frame.lookup_pc) for entry in thread.entries]
    names = [symbol[0] if symbol else "" for symbol in found]
    readable = readable_names(names)
    return [readable.get(name, name) for name in names]


def check(traced: Traced, judged: Sequence[Chain], program: Program, ending: str = "outermost") -> None:
    """The traces have the judged PCs and SPs, up to the end or to another that the trace comes to; "": neither ends."""
    threads = sorted(traced.threads, key=lambda thread: thread.thread_id)
    assert len(threads) == len(judged) == program.thread_count
    for thread, chain in zip(threads, judged, strict=True):
        frames = [(hex(entry.frame.pc), hex(entry.frame.sp)) for entry in thread.entries]
        wanted = [(hex(pc), hex(sp)) for pc, sp in zip(chain.pcs, chain.sps, strict=True)]
        assert frames == (wanted if ending in ("outermost", "") else wanted[: len(frames)])
        assert (chain.reason == "outermost") == (ending != "")
        assert thread.ending.kind == ending or (ending == "" and thread.ending.kind != "outermost")
    if ending == "":
        return
    names = [[re.split("[@(.]", name)[0] for name in functions_of(traced, thread)] for thread in threads]
    stopped = [found for found in names if _is_in_order(program.functions, found)]
    assert len(stopped) == 1, names
    assert len(stopped[0]) >= program.least_frames


def _is_in_order(wanted: Sequence[str], functions: Sequence[str]) -> bool:
    """Whether the functions have the wanted names in this order, others in between."""
    rest = iter(functions)
    return all(name in rest for name in wanted)
