# SPDX-License-Identifier: Apache-2.0
"""The recipes of contrib/, each in a clean folder: sections agree with the CFI, and stacks with backtrace()'s."""

import os
import re
import runpy
import shlex
import shutil
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Literal

import pytest

from cfi2sframe.cli import main
from tests.support import jobs
from tests.support.consumer.walk import Sampler, check_walks
from tests.support.contrib import (
    CONTRIB,
    PROJECT,
    build_example,
    check_pair,
    check_section,
    copy_recipe,
    environment,
    gdb_session,
    has_section,
    lists_section,
    run,
    wrapper_folder,
)
from tests.support.needs import attempt, need

pytestmark = pytest.mark.sampled

#: What the runtime of Rust has more of, and Go's twice.
MANY_FUNCTIONS = 500


@pytest.mark.parametrize(("tool", "said"), [("make", "up to date"), ("ninja", "no work to do")])
def test_rules_of_a_build(tool: str, said: str, tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need(tool, "cc")
    folder = copy_recipe(tool, tmp_path)
    build_example(folder, environment(programs))
    check_pair(sampler, folder / "words", folder / "libwords.so")
    assert said in run(tool, "words", cwd=folder, env=environment(programs)).out


@pytest.mark.parametrize("generator", ["Unix Makefiles", "Ninja"])
def test_cmake(tmp_path: Path, programs: Path, sampler: Sampler, generator: str) -> None:
    need("cmake", "cc", "ninja" if generator == "Ninja" else "make")
    folder, root = copy_recipe("cmake", tmp_path), tmp_path / "root"
    build = folder / "build"
    env = environment(programs, CMAKE_GENERATOR=generator, CMAKE_BUILD_TYPE="Release")
    build_example(folder, env)
    check_pair(sampler, build / "words", build / "libwords.so.1.0")
    run("cmake", "--install", build, "--prefix", root, "--strip", env=env)
    check_pair(sampler, root / "bin" / "words", root / "lib" / "libwords.so.1.0")


@pytest.mark.slow
def test_meson_with_a_step_for_one_program(tmp_path: Path, programs: Path) -> None:
    """The library has no such step."""
    need("meson", "ninja", "cc")
    folder = copy_recipe("meson", tmp_path)
    build_example(folder, environment(programs))
    check_section(folder / "build" / "words")
    assert not has_section(folder / "build" / "libwords.so.1.0")
    assert run(folder / "build" / "words", "0").out


@pytest.mark.slow
def test_meson_with_the_linker_wrapper(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("meson", "ninja", "cc")
    folder = copy_recipe("meson", tmp_path)
    wrapper = wrapper_folder(programs, tmp_path / "sframe-ld")
    text = (CONTRIB / "meson" / "sframe.ini.in").read_text().replace("@DIRECTORY@", str(wrapper))
    (tmp_path / "sframe.ini").write_text(text)
    build, root = tmp_path / "build", tmp_path / "root"
    env = environment(programs)
    options = ("--native-file", tmp_path / "sframe.ini", "--prefix", "/", "--libdir", "lib")
    run("meson", "setup", *options, build, folder, env=env)
    run("meson", "compile", "-C", build, env=env)
    check_pair(sampler, build / "words", build / "libwords.so.1.0")
    run("meson", "install", "-C", build, "--destdir", root, env=env)
    check_pair(sampler, root / "bin" / "words", root / "lib" / "libwords.so.1.0")


@pytest.mark.slow
@pytest.mark.parametrize("which", ["debian", "first"])
def test_cargo(tmp_path: Path, programs: Path, sampler: Sampler, which: str) -> None:
    """Debian's, or another that comes first in PATH, with its own rustc."""
    need("cc")
    debian, first = shutil.which("cargo", path="/usr/bin"), shutil.which("cargo")
    cargo = debian if which == "debian" else first
    if cargo is None or (which == "first" and cargo == debian):
        pytest.skip(f"no cargo {'in /usr/bin' if which == 'debian' else 'but that of /usr/bin'}")
    folders = [str(programs), os.path.dirname(cargo), os.environ["PATH"]]
    env = environment(programs) | {"PATH": os.pathsep.join(folders)}
    folder = copy_recipe("cargo", tmp_path)
    program = folder / "target" / "release" / "words"
    build_example(folder, env)
    check_section(program, more_functions_than=MANY_FUNCTIONS)
    check_walks(sampler, program)
    before = program.stat().st_mtime_ns
    build_example(folder, env)
    assert program.stat().st_mtime_ns == before


@pytest.fixture(scope="module")
def go_caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of Go's own: the runtime is compiled once."""
    return {name: str(tmp_path_factory.mktemp(name)) for name in ("GOCACHE", "GOPATH")}


def rows_of(program: Path, env: dict[str, str]) -> str:
    """Return what a section says, without the names of functions, which strip takes away."""
    return re.sub(r" <.*>$", "", run("cfi2sframe", "dump", program, env=env).out, flags=re.MULTILINE)


@pytest.mark.slow
@pytest.mark.parametrize("flags", ["", "-buildmode=pie", "-ldflags=-linkmode=external", "-ldflags=-s -w"])
def test_go(tmp_path: Path, programs: Path, go_caches: dict[str, str], flags: str) -> None:
    """Go's programs load no C library, so nothing walks inside."""
    need("go", "cc", "strip")
    folder = copy_recipe("go", tmp_path)
    program = folder / "words"
    env = environment(programs, GOPROXY="off", GOFLAGS="-mod=readonly", GOTOOLCHAIN="local", **go_caches)
    build = ["go", "build", "-trimpath", *filter(None, [flags]), "-o", "words", "."]
    run(*build, cwd=folder, env=env)
    result = run(program).out
    run("cfi2sframe", "--in-place", "--replace", program, env=env)
    check_section(program, more_functions_than=2 * MANY_FUNCTIONS)
    assert run(program, "0.3").out == result
    converted = program.read_bytes()
    run(*build, cwd=folder, env=env)
    assert program.read_bytes() == converted
    before = rows_of(program, env)
    run("strip", program)
    assert rows_of(program, env) == before
    assert run(program, "0.1").out == result
    run("cfi2sframe", "remove", "--in-place", program, env=env)
    assert not has_section(program)
    assert run(program, "0.1").out == result


CONTAINERFILE = (CONTRIB / "container" / "example" / "Containerfile").read_text()
#: The shell of each RUN instruction, its lines joined as a container engine joins them.
CONTAINER_COMMANDS = re.findall(r"^RUN (.*)$", CONTAINERFILE.replace("\\\n", ""), re.MULTILINE)


def test_the_containerfile_is_sound() -> None:
    need("shellcheck")
    assert len(CONTAINER_COMMANDS) == 4
    for command in CONTAINER_COMMANDS:
        run("sh", "-c", 'printf %s "$1" | shellcheck -', "sh", f"#!/bin/sh\n{command}\n")
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", CONTAINERFILE, re.MULTILINE))
    assert set(re.findall(r"--from=(\S+)", CONTAINERFILE)) == stages == {"build"}


def test_the_commands_of_the_container(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    """The image itself is not built here."""
    need("make", "cc", "sh")
    folder = copy_recipe("container", tmp_path)
    build_example(folder, environment(programs))
    roots = [folder / "out", tmp_path / "image"]
    for command in CONTAINER_COMMANDS:
        if not command.startswith("apt-get "):
            run("sh", "-c", command.replace("/out", shlex.quote(str(roots[1]))), cwd=folder, env=environment(programs))
    for root in roots:
        check_pair(sampler, root / "usr" / "bin" / "words", root / "usr" / "lib" / "words" / "libwords.so")


@pytest.mark.slow
def test_libtool(tmp_path: Path, programs: Path) -> None:
    """It drops -B from LDFLAGS where it links a library, and keeps what configure was told; a check sees either."""
    need("autoreconf", "libtoolize", "make", "gcc")
    (tmp_path / "configure.ac").write_text(
        "AC_INIT([w],[1])\nAM_INIT_AUTOMAKE([foreign])\nLT_INIT\nAC_PROG_CC\nAC_CONFIG_FILES([Makefile])\nAC_OUTPUT\n"
    )
    (tmp_path / "Makefile.am").write_text("lib_LTLIBRARIES = libw.la\nlibw_la_SOURCES = w.c\n")
    (tmp_path / "w.c").write_text("int twice(int (*f)(int), int v) { return f(f(v)); }\n")
    directory, env = wrapper_folder(programs, tmp_path / "sframe-ld"), environment(programs)
    run("autoreconf", "-fi", cwd=tmp_path, env=env)
    for number, (configure, make) in enumerate([([], [f"LDFLAGS=-B{directory}"]), ([f"CC=gcc -B{directory}"], [])]):
        build, target = tmp_path / f"build{number}", tmp_path / f"target{number}"
        build.mkdir()
        run("../configure", *configure, cwd=build, env=env)
        run("make", "install", *make, f"DESTDIR={target}", cwd=build, env=env)
        (library,) = [path for path in target.rglob("libw.so.*") if not path.is_symlink()]
        assert has_section(library) == bool(configure)
        assert attempt("cfi2sframe", "--check", target, env=env).status == (not configure)


def test_ccache(tmp_path: Path, programs: Path) -> None:
    """Its key has neither the assembler that -B leads to nor its variables: the namespace has them."""
    need("ccache", "gcc")
    (tmp_path / "a.c").write_text("int f(int (*g)(int)) { return g(1) + 1; }\n")
    env = {**environment(programs), "CCACHE_DIR": str(tmp_path / "cache")}
    compile_it = ("ccache", "gcc", f"-B{tmp_path}/bin", "-O2", "-c", "a.c", "-o", "a.o")
    run(*compile_it, cwd=tmp_path, env=env)
    wrapper_folder(programs, tmp_path / "bin", "as")
    run(*compile_it, cwd=tmp_path, env=env)
    assert not has_section(tmp_path / "a.o")
    for flags in ("--sframe-version 1", "--sframe-version 2", "--sframe-version 1"):
        named = {**env, "CFI2SFRAME_FLAGS": flags, "CCACHE_NAMESPACE": f"cfi2sframe 1 {flags}"}
        run(*compile_it, cwd=tmp_path, env=named)
        assert f"Version: SFRAME_VERSION_{flags[-1]}" in run("cfi2sframe", "dump", "a.o", cwd=tmp_path, env=env).out


def check_executor(executor: Executor, folder: Path, out: pytest.CaptureFixture[str]) -> None:
    paths = [folder / f"{number}.o" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(jobs.object_of(number) if number != 2 else jobs.TRUNCATED)
    recipe = runpy.run_path(str(CONTRIB / "dask" / "convert.py"))
    assert recipe["convert_all"](executor, map(os.path.relpath, paths)) == 1
    lines = sorted(out.readouterr().out.splitlines())
    assert [line for line in lines if line.endswith(": converted")] == [f"{paths[n]}: converted" for n in (0, 1, 3)]
    assert lines[2] == f"{paths[2]}: truncated: the ELF header needs 64 bytes, the file has 40"
    assert [jobs.has_section(path.read_bytes()) for path in paths] == [True, True, False, True]


def test_executors_of_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        get_context("spawn").Lock()
    except OSError as error:
        pytest.skip(f"no semaphores (/dev/shm): {error}")
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(2, get_context("spawn")) as processes:
        check_executor(threads, tmp_path, capsys)
        check_executor(processes, tmp_path, capsys)


def test_a_worker_that_was_killed_is_told_with_its_file(capsys: pytest.CaptureFixture[str]) -> None:
    class Killing(Executor):
        def submit(self, *_: object, **__: object) -> Future[Any]:
            future = Future[Any]()
            future.set_exception(RuntimeError("4 workers died while running convert_file-4b8b"))
            return future

    recipe = runpy.run_path(str(CONTRIB / "dask" / "convert.py"))
    assert recipe["convert_all"](Killing(), ["file"]) == 1
    assert capsys.readouterr().out == f"{os.path.abspath('file')}: 4 workers died while running convert_file-4b8b\n"


def test_dask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed", reason="no distributed: make modules")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as client:
        check_executor(client.get_executor(), tmp_path, capsys)


def split(program: Path, tool: Literal["objcopy", "eu-strip"]) -> Path:
    """Move the debug information of a program to a file of its own, as dh_strip does, or as rpm's find-debuginfo."""
    debug = program.with_name(f"{program.name}.debug")
    if tool == "objcopy":
        run("objcopy", "--only-keep-debug", "--compress-debug-sections", program, debug)
        run("strip", "--remove-section=.comment", "--remove-section=.note", program)
        run("objcopy", "--add-gnu-debuglink", debug, program)
    else:
        run("eu-strip", "--remove-comment", "-f", debug, program)
    return debug


@pytest.mark.oracle
@pytest.mark.parametrize("tool", ["objcopy", "eu-strip"])
@pytest.mark.parametrize("linker", ["bfd", "lld"])
@pytest.mark.parametrize("is_before", [True, False], ids=["before", "afterwards"])
def test_debug_information_is_split_off(
    linker: str, tool: Literal["objcopy", "eu-strip"], tmp_path: Path, *, is_before: bool
) -> None:
    """Only if the conversion came first, gdb and eu-unstrip take the two files for one. With lld sections move."""
    need("cc", "gdb", "objcopy", "strip", "eu-strip", "eu-unstrip", f"ld.{linker}")
    program = tmp_path / "words"
    run("cc", "-O2", "-g", f"-fuse-ld={linker}", "-o", program, "main.c", "words.c", cwd=PROJECT)
    if is_before:
        assert main(["--in-place", str(program)]) == 0
    debug = split(program, tool)
    if not is_before:
        assert main(["--in-place", str(program)]) == 0
    assert lists_section(debug) == is_before
    assert ("warning: section .sframe not found in" in gdb_session(program, tmp_path)) == (not is_before)
    if is_before:
        run("eu-unstrip", program, debug, "-o", tmp_path / "joined")
        assert main(["verify", str(tmp_path / "joined")]) == 0
        assert attempt(tmp_path / "joined", "--help") == attempt(program, "--help")
