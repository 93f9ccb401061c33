# SPDX-License-Identifier: Apache-2.0
"""Traces of AMD64 cores have the frames that gdb finds in them, PC by PC."""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.elf.debug_file import build_id_of
from cfi2sframe.trace import FileStore, Traced, trace_core
from cfi2sframe.trace.core import parse_core
from tests.support import cli
from tests.support.needs import need
from tests.support.trace.build import PROGRAMS, Program, allow_cores, compile_program, is_core_name_plain, named
from tests.support.trace.judges import Chain, check, gdb_chains, make_core

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
    need("gdb")
    made: dict[str, Core] = {}

    def make(program: Program) -> Core:
        if program.name not in made:
            binary = compile_program(program, folder)
            core = folder / f"{program.name}.core"
            make_core(binary, core, *program.commands)
            made[program.name] = Core(binary, core, gdb_chains(binary, core))
        return made[program.name]

    return make


def rows_in(program: Path, traced: Traced) -> set[tuple[str, str]]:
    """Return the versions and sources of the rows that were used in a program's code."""
    return set(
        re.findall(
            rf" in {re.escape(str(program))}\+0x[0-9a-f]+ \(v(\d) .*, (\w+)\)(?: \[\w+\])?$", str(traced), re.MULTILINE
        )
    )


@pytest.mark.sampled
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_frames_are_those_of_gdb(core_of: Callable[[Program], Core], program: Program) -> None:
    core = core_of(program)
    traced = trace_core(str(core.core), executable=str(core.program))
    check(traced, core.gdb, program, program.ending)
    assert rows_in(core.program, traced) <= {("3", "converted")}


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
    traced = trace_core(str(made), executable=str(copy), store=FileStore(number))
    check(traced, gdb_chains(copy, made), program, ending)
    assert rows_in(copy, traced) == {(str(number), "file")}


def test_a_program_that_was_converted_or_restored_since(tmp_path: Path) -> None:
    """Notes move out of the way of the program headers, and back. Gdb reads a core with the file that ran only."""
    need("gdb")
    program, store = named("recursion"), FileStore()
    program = program._replace(flags=(*program.flags, "-Wl,--build-id=sha1"))
    binary = compile_program(program, tmp_path)
    converted = tmp_path / "converted"
    assert cli.run(binary, "-o", converted).status == 0
    (tmp_path / "other").mkdir()
    other = compile_program(program._replace(flags=(*program.flags, "-Wl,--build-id=0x1234")), tmp_path / "other")
    for ran, is_there in ((binary, converted), (converted, binary)):
        core = tmp_path / f"{ran.name}.core"
        make_core(ran, core, *program.commands)
        check(trace_core(str(core), executable=str(is_there), store=store), gdb_chains(ran, core), program)
        assert "another build was mapped" in str(trace_core(str(core), executable=str(other), store=store))


def test_files_of_another_machine_are_below_its_root(tmp_path: Path) -> None:
    """Its libraries are the ones that were mapped, not those at their paths here."""
    need("gdb")
    program = named("recursion")
    there, root = tmp_path / "there", tmp_path / "root"
    there.mkdir()
    binary, core = compile_program(program, there), tmp_path / "core"
    make_core(binary, core, *program.commands)
    judged = gdb_chains(binary, core)
    for path in {mapping.path for mapping in parse_core(core.read_bytes()).mappings}:
        copy = root / path.lstrip("/")
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, copy)
    shutil.rmtree(there)
    assert f"{binary}: No such file" in str(trace_core(str(core)))
    check(trace_core(str(core), sysroot=str(root)), judged, program)
    builds = tmp_path / "debug"
    for file in root.rglob("*"):
        build_id = build_id_of(load(file)).hex() if file.is_file() else ""
        if build_id:
            build = builds / ".build-id" / build_id[:2] / build_id[2:]
            build.parent.mkdir(parents=True, exist_ok=True)
            build.symlink_to(file)
    check(trace_core(str(core), store=FileStore(debug_file=str(builds))), judged, program)
    assert all(module.file for module in trace_core(str(core), sysroot=str(root)).space.modules)
    # A link below the root does not lead out of it, also where it is the directory of builds.
    inside = root / "builds"
    builds.rename(inside)
    shutil.move(root / str(binary).lstrip("/"), tmp_path / "outside")
    for link in inside.rglob("*"):
        if link.is_symlink() and link.readlink() == root / str(binary).lstrip("/"):
            link.unlink()
            link.symlink_to(tmp_path / "outside")
    for sysroot, is_found in (("", True), (str(root), False)):
        found = trace_core(str(core), store=FileStore(debug_file=str(inside)), sysroot=sysroot)
        assert (" main+" in str(found)) == is_found
    shutil.move(tmp_path / "outside", root / str(binary).lstrip("/"))
    result = cli.run("trace", core, "--sysroot", root)
    assert result.status == 0
    assert b"end: outermost" in result.out
    assert cli.run("trace", core, "--sysroot", there).status == 2


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
        [core.program, "die"], cwd=folder, check=False, stderr=subprocess.DEVNULL, preexec_fn=allow_cores
    )
    assert died.returncode == -signal.SIGABRT
    cores = list(folder.iterdir())
    assert len(cores) == 1
    judged = gdb_chains(core.program, cores[0])
    check(trace_core(str(cores[0]), executable=str(core.program)), judged, program)
