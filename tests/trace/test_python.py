# SPDX-License-Identifier: Apache-2.0
"""A converted Python: its cores, and samples of it while it works, have the frames that gdb finds in them."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.trace import FileStore, trace_process
from tests.support import cli
from tests.support.emitted import need
from tests.support.emitted import run as run_program
from tests.support.trace.build import SOURCES
from tests.support.trace.judges import TIMEOUT, gdb, gdb_chains
from tests.support.trace.tracing import threads_of, trace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.trace import ThreadTrace
    from tests.support.trace.judges import Chain

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="gdb and the Python are asked on an AMD64 machine"),
]

CORE_COUNT = 3
LONGEST_PAUSE_SECONDS = 0.03


class Python(NamedTuple):
    """A converted Python, and the folder of its converted libraries."""

    program: Path
    libraries: Path


@pytest.fixture(scope="session")
def python(tmp_path_factory: pytest.TempPathFactory) -> Python:
    """A copy of the system's Python and of the libraries that it starts with, each with its own section."""
    need("gdb", "ldd")
    found = shutil.which("python3", path="/usr/bin")
    if found is None:
        pytest.skip("no /usr/bin/python3")
    folder = tmp_path_factory.mktemp("python")
    program, libraries = folder / "python3", folder / "lib"
    libraries.mkdir()
    shutil.copyfile(found, program)
    program.chmod(0o755)
    for soname, path in re.findall(r"^\s*(\S+) => (/\S+) \(", run_program("ldd", found), re.MULTILINE):
        shutil.copyfile(path, libraries / soname)
    for file in (program, *libraries.iterdir()):
        assert cli.run("--in-place", file).status == 0
    return Python(program, libraries)


@contextmanager
def working(python: Python) -> Iterator[int]:
    """Run the workload; give the process's number while it works."""
    environment = {
        "LD_LIBRARY_PATH": str(python.libraries),
        # The copy is not where its library is.
        "PYTHONHOME": "/usr",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PATH": os.environ["PATH"],
    }
    command = [str(python.program), "-s", str(SOURCES / "workload.py")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"working\n"
            yield process.pid
        finally:
            process.kill()


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop all threads of a process, as a shell does; two debuggers then see the same state."""
    os.kill(pid, signal.SIGSTOP)
    end = time.monotonic() + TIMEOUT
    while not all(_is_stopped(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        assert time.monotonic() < end
        time.sleep(0.001)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def _is_stopped(task: Path) -> bool:
    return (task / "stat").read_text().rpartition(")")[2].split()[0] == "T"


def _places(pcs: tuple[int, ...], sps: tuple[int, ...]) -> list[str]:
    return [f"{pc:#x} {sp:#x}" for pc, sp in zip(pcs, sps, strict=True)]


def _is_made_at_run_time(pid: int, pc: int) -> bool:
    """Return whether an address is in code of no file: libffi writes a stub for each callback, without any CFI."""
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        addresses, permissions, *rest = line.split()
        start, end = (int(word, 16) for word in addresses.split("-"))
        if start <= pc < end:
            return "x" in permissions and not Path(" ".join(rest[3:]) or "none").is_file()
    return False


def _is_left_out(detail: str, module: str | None) -> bool:
    """Return whether an ending names an address in a function that no row can hold, as in libcrypto's assembly."""
    match = re.search(r" no row at 0x([0-9a-f]+)", detail)
    if match is None or module is None:
        return False
    vaddr = int(match[1], 16)
    conversion = convert(load(module))
    fdes = [entry.fde for entry, _ in conversion.left_out]
    unsaid = [(fde.pc_begin_vaddr, fde.pc_begin_vaddr + fde.pc_range) for fde in fdes]
    holes = conversion.outcomes.holes(conversion.cfi.entries, conversion.code_map.pieces)
    unsaid += [(hole.start_vaddr, hole.end_vaddr) for hole in holes]
    return any(start <= vaddr < end for start, end in unsaid)


def _check_sample(pid: int, threads: tuple[ThreadTrace, ...], judged: tuple[Chain, ...]) -> int:
    """Compare a sample; return how many traces end, by rights, in code that was made at run time or is left out."""
    ended = 0
    assert [thread.id for thread in threads] == [chain.thread_id for chain in judged]
    assert len(judged) == 2
    for thread, chain in zip(threads, judged, strict=True):
        frames = [entry.frame for entry in thread.trace.entries]
        places, whole = _places(tuple(f.pc for f in frames), tuple(f.sp for f in frames)), _places(chain.pcs, chain.sps)
        ending, module = thread.trace.ending, thread.trace.entries[-1].located.module
        is_made = ending.kind == "no-module" and _is_made_at_run_time(pid, frames[-1].pc)
        if is_made or (ending.kind == "no-row" and _is_left_out(ending.detail, module)):
            ended += 1
            assert places == whole[: len(places)]
            continue
        assert (ending.kind, chain.reason) == ("outermost", "outermost"), ending
        assert places == whole
    return ended


@pytest.mark.parametrize("number", range(CORE_COUNT))
def test_cores(python: Python, tmp_path: Path, number: int) -> None:
    """Three moments of the workload."""
    core = tmp_path / "core"
    with working(python) as pid:
        time.sleep(0.05 * (number + 1))
        text = gdb(python.program, "-p", str(pid), commands=[f"generate-core-file {core}", "detach"])
    assert core.exists(), text
    threads = threads_of(trace(core, "--executable", python.program))
    judged = gdb_chains(python.program, core)
    assert [t.chain.thread_id for t in threads] == [chain.thread_id for chain in judged]
    assert len(judged) == 2
    for thread, chain in zip(threads, judged, strict=True):
        places, whole = _places(thread.chain.pcs, thread.chain.sps), _places(chain.pcs, chain.sps)
        is_made = thread.ending == "no-module" and thread.modules[-1] is None
        if is_made or (thread.ending == "no-row" and _is_left_out(thread.chain.reason, thread.modules[-1])):
            # See _is_made_at_run_time() and _is_left_out().
            assert places == whole[: len(places)]
            continue
        assert places == whole
        assert (thread.ending, chain.reason) == ("outermost", "outermost")
        for row, module in zip(thread.rows, thread.modules, strict=True):
            assert row is not None
            is_own = Path(module or "") == python.program or Path(module or "").parent == python.libraries
            assert row["source"] == ("file" if is_own else "converted")
    assert any("PyEval_EvalFrameDefault" in (name or "") for thread in threads for name in thread.functions)


@pytest.mark.parametrize("count", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_live_samples(python: Python, count: int) -> None:
    """Stopped at any moment, in any of its threads, in code that Python calls and in code that calls Python."""
    store = FileStore()
    pause = random.Random(count)  # noqa: S311 - only lengths of pauses
    pcs: set[int] = set()
    modules: set[str] = set()
    frame_count = ended = 0
    with working(python) as pid:
        for _ in range(count):
            time.sleep(pause.random() * LONGEST_PAUSE_SECONDS)
            with stopped(pid):
                threads = tuple(sorted(trace_process(pid, store=store).threads, key=lambda thread: thread.id))
                judged = gdb_chains(python.program, "-p", str(pid))
                ended += _check_sample(pid, threads, judged)
            frame_count += sum(len(chain.pcs) for chain in judged)
            pcs |= {chain.pcs[0] for chain in judged}
            modules |= {entry.located.module or "" for t in threads for entry in t.trace.entries}
    print(f"{count} samples, {frame_count} frames, {len(pcs)} innermost PCs, {ended} end early")  # noqa: T201 - for pytest -rP
    assert frame_count > count * 16
    assert ended <= count / 20
    assert len(pcs) > count / 5
    if count == 200:
        assert any("libffi" in module for module in modules)


def test_the_command_line_traces_a_process(python: Python) -> None:
    with working(python) as pid, stopped(pid):
        threads = threads_of(trace("--pid", str(pid)))
        judged = gdb_chains(python.program, "-p", str(pid))
    assert [thread.chain.pcs for thread in threads] == [chain.pcs for chain in judged]
