# SPDX-License-Identifier: Apache-2.0
"""Traces of AMD64 cores have the frames that gdb and eu-stack find in them, PC by PC."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.support import cli
from tests.support.needs import need
from tests.support.trace.build import PROGRAMS, compile_program, is_core_name_plain, named
from tests.support.trace.judges import eu_stack_chains, gdb_chains, make_core
from tests.support.trace.tracing import is_in_order, threads_of, trace

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.trace.build import Program
    from tests.support.trace.judges import Chain
    from tests.support.trace.tracing import TracedThread

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the cores are made on an AMD64 machine"),
]


class Core(NamedTuple):
    """A core, the program that left it, and the frames that gdb finds in it."""

    program: Path
    core: Path
    gdb: tuple[Chain, ...]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cores")


@pytest.fixture(scope="session")
def core_of(folder: Path) -> Callable[[Program], Core]:
    """`core_of(program)`: its core, made by gdb where the program stops."""
    need("gdb", "eu-stack")
    made: dict[str, Core] = {}

    def make(program: Program) -> Core:
        if program.name not in made:
            binary = compile_program(program, folder)
            core = folder / f"{program.name}.core"
            make_core(binary, core, *program.commands)
            made[program.name] = Core(binary, core, gdb_chains(binary, core))
        return made[program.name]

    return make


def _check(threads: tuple[TracedThread, ...], judged: tuple[Chain, ...], program: Program) -> None:
    """The traced threads are the judged ones, in every PC and SP."""
    assert len(judged) == program.thread_count
    assert [t.chain.thread_id for t in threads] == [j.thread_id for j in judged]
    for thread, chain in zip(threads, judged, strict=True):
        count = len(chain.pcs) if program.ending == "outermost" else len(thread.chain.pcs)
        assert list(map(hex, thread.chain.pcs)) == list(map(hex, chain.pcs[:count]))
        assert list(map(hex, thread.chain.sps)) == list(map(hex, chain.sps[:count]))
        assert (thread.ending, chain.reason) == (program.ending, "outermost")
    stopped = [thread for thread in threads if is_in_order(program.functions, thread.functions)]
    assert len(stopped) == 1, [thread.functions for thread in threads]
    assert len(stopped[0].functions) >= program.least_frames


@pytest.mark.sampled
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_frames_are_those_of_gdb_and_eu_stack(core_of: Callable[[Program], Core], program: Program) -> None:
    core = core_of(program)
    eu_stack = eu_stack_chains(core.program, core.core)
    assert [(chain.thread_id, chain.pcs) for chain in eu_stack] == [(c.thread_id, c.pcs) for c in core.gdb]
    threads = threads_of(trace(core.core, "--executable", core.program))
    _check(threads, core.gdb, program)
    assert {row["source"] for thread in threads for row in thread.rows if row} == {"converted"}


def test_the_search_for_a_symbol_ends_at_the_resolver(core_of: Callable[[Program], Core]) -> None:
    """What the search is called from cannot be found by rows alone, for a reason that is named."""
    core = core_of(named("lazy-search"))
    (thread,) = threads_of(trace(core.core, "--executable", core.program))
    assert (thread.ending, thread.rows[-1]) == (
        "unknown-register",
        {"source": "converted", "version": 3, "kind": "flexible", "type": "pcinc", "signal": False},
    )
    assert "rbx" in thread.chain.reason
    resolver = core_of(named("lazy-resolver"))
    (stopped,) = threads_of(trace(resolver.core, "--executable", resolver.program))
    # The resolver itself, stopped at its entry in a process of the same layout: it is all in the topmost frame.
    assert 0 < thread.chain.pcs[-1] - stopped.chain.pcs[0] < 0x100
    assert thread.modules[-1] == stopped.modules[0]
    assert stopped.ending == "outermost"


@pytest.mark.parametrize(
    ("number", "errata", "ending"),
    [(2, (), "no-row"), (2, ("--errata", "2"), "outermost"), (3, (), "outermost")],
    ids=["2", "2-errata-2", "3"],
)
@pytest.mark.parametrize("name", ["recursion", "callback", "noreturn", "exception-destructor"])
def test_sections_of_converted_programs(
    core_of: Callable[[Program], Core], name: str, number: int, errata: tuple[str, ...], ending: str
) -> None:
    """A program that carries its section gives the same frames from it. Errata 1 has no row for `_start`."""
    program = named(name)
    assert program.ending == "outermost"
    core = core_of(program)
    copy = core.program.with_name("-".join((name, str(number), *errata)))
    shutil.copy2(core.program, copy)
    assert cli.run("--in-place", "--sframe-version", str(number), *errata, copy).status == 0
    made = copy.with_name(copy.name + ".core")
    make_core(copy, made, *program.commands)
    threads = threads_of(trace(made, "--executable", copy, "--sframe-version", str(number)))
    _check(threads, gdb_chains(copy, made), program._replace(ending=ending))
    rows = {
        (row["source"], row["version"])
        for thread in threads
        for row, module in zip(thread.rows, thread.modules, strict=True)
        if row and module == str(copy)
    }
    assert rows == {("file", number)}


@pytest.mark.parametrize("name", ["recursion", "handler", "threads", "exception-terminate"])
def test_cores_of_the_kernel(core_of: Callable[[Program], Core], name: str) -> None:
    """A program that aborts where it would have been stopped; the kernel leaves out what files hold."""
    if not is_core_name_plain():
        pytest.skip("the kernel does not write cores into the working directory: core_pattern is not `core`")
    program = named(name)
    core = core_of(program)
    folder = core.program.parent / f"dead-{name}"
    folder.mkdir()
    died = subprocess.run(
        [core.program, "die"],
        cwd=folder,
        check=False,
        stderr=subprocess.DEVNULL,
        preexec_fn=_allow_cores,
    )
    assert died.returncode == -signal.SIGABRT
    cores = list(folder.iterdir())
    assert len(cores) == 1
    judged = gdb_chains(core.program, cores[0])
    assert [(c.thread_id, c.pcs) for c in eu_stack_chains(core.program, cores[0])] == [
        (c.thread_id, c.pcs) for c in judged
    ]
    _check(threads_of(trace(cores[0], "--executable", core.program)), judged, program)


def _allow_cores() -> None:
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
