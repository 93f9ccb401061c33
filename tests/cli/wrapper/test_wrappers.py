# SPDX-License-Identifier: Apache-2.0
"""The wrappers of linker and driver: what they convert, what they leave alone, and that they never break a link."""

import os
import shutil
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from tests.support.consumer.walk import Sampler, check_walks
from tests.support.contrib import SOURCES, check_section, environment, has_section, run, wrapper_folder
from tests.support.needs import Result, attempt, need

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc", "s390x-linux-gnu-gcc"])
def test_gcc_with_a_folder(tmp_path: Path, programs: Path, sampler: Sampler, compiler: str) -> None:
    """A cross compiler gets its own linker."""
    need(compiler)
    folder, program = wrapper_folder(programs, tmp_path / "sframe-ld"), tmp_path / "words"
    result = run(compiler, "-B", folder, "-O2", "-o", program, *SOURCES, env=environment(programs))
    assert result.err == ""
    check_section(program)
    if compiler == "gcc":
        check_walks(sampler, program)


def test_driver(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("cc")
    env = environment(programs)
    run("cfi2sframe-cc", "-O2", "-c", *SOURCES, cwd=tmp_path, env=env)
    assert not has_section(tmp_path / "words.o")
    run("cfi2sframe-cc", "main.o", "words.o", cwd=tmp_path, env=env)
    check_section(tmp_path / "a.out")
    check_walks(sampler, tmp_path / "a.out")


def test_the_linker_s_output_is_the_driver_s(tmp_path: Path, programs: Path) -> None:
    need("cc", "ld")
    (tmp_path / "arguments").write_text("-Wl,--output=out")
    env = environment(programs, CFI2SFRAME_STRICT="1")
    assert attempt("cfi2sframe-cc", *SOURCES, "@arguments", cwd=tmp_path, env=env) == Result(0, "", "")
    assert has_section(tmp_path / "out")


@pytest.mark.parametrize(
    "words",
    [["--version"], ["-Wl,--version"], ["-c"], ["-E"], ["-fsyntax-only"], ["-o", "/dev/null"], ["-o", "X", "-r"]],
)
def test_probes_are_no_failures(tmp_path: Path, programs: Path, words: list[str]) -> None:
    """Configure scripts ask for what writes no program."""
    need("cc", "ld")
    result = attempt("cfi2sframe-cc", *SOURCES, *words, cwd=tmp_path, env=environment(programs, CFI2SFRAME_STRICT="1"))
    assert (result.status, "cfi2sframe" in result.err) == (0, False)


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the assembly is that of AMD64")
def test_rows_from_code(tmp_path: Path, programs: Path) -> None:
    """The wrappers take them as convert does."""
    need("gcc", "ld")
    (tmp_path / "main.c").write_text("void through(int (*)(void)); int main(void) { return 0; }")
    without_cfi = ".globl through\n.type through, @function\nthrough: push %rbx\ncall *%rdi\npop %rbx\nret\n"
    (tmp_path / "through.s").write_text(without_cfi)
    folder = wrapper_folder(programs, tmp_path / "sframe-ld")
    for flags, has_rows in (("", False), ("--from code", True)):
        env = environment(programs, CFI2SFRAME_FLAGS=flags)
        run("gcc", "-B", folder, "-o", "program", "main.c", "through.s", cwd=tmp_path, env=env)
        image = load(str(tmp_path / "program"))
        table = next(section for section in image.sections if section.name == ".symtab")
        (vaddr,) = (s.vaddr for s in image.symbols(table) if s.name == "through")
        assert vaddr is not None
        assert (decode_existing(image).find(vaddr + 1) is not None) is has_rows
        assert verify(image, source="code" if has_rows else None).is_clean


def test_a_section_that_the_linker_merged_is_replaced(tmp_path: Path, programs: Path, objects: list[str]) -> None:
    """One object has a section of its own: linkers merge it or copy it, and either way it is replaced."""
    env = environment(programs)
    run("cfi2sframe", "--in-place", "--sframe-version", "2", "main.o", cwd=tmp_path, env=env)
    result = attempt("cfi2sframe-cc", "-o", "words", *objects, cwd=tmp_path, env=env)
    if "sframe" in result.err and result.status:
        pytest.skip("this linker does not take SFrame sections of objects")
    assert result.status == 0
    check_section(tmp_path / "words")


LIBTOOL = [Path("/usr/share/aclocal", f"{part}.m4") for part in ("libtool", "ltoptions", "ltsugar", "ltversion")]
LIBTOOL += [Path("/usr/share/aclocal/lt~obsolete.m4"), Path("/usr/share/libtool/build-aux")]
CONFIGURE = """\
AC_INIT([words], [1])
AC_CONFIG_AUX_DIR([aux])
AC_PROG_CC
LT_INIT
AC_CHECK_LIB([m], [cos])
AC_CHECK_FUNCS([backtrace no_such_function])
AC_OUTPUT
"""


@pytest.mark.slow
def test_libtool_finds_what_it_finds_without(tmp_path: Path, programs: Path) -> None:
    """It takes a static link that prints something for one that fails; parts of libc cannot be described."""
    need("autoconf", "make", "gcc", "as", "ld")
    if not all(path.exists() for path in LIBTOOL):
        pytest.skip("no libtool: make packages")
    # Its parts are used directly, so that automake is not needed.
    shutil.copytree(LIBTOOL[-1], tmp_path / "aux")
    (tmp_path / "configure.ac").write_text(CONFIGURE)
    (tmp_path / "aclocal.m4").write_text("".join(path.read_text() for path in LIBTOOL[:-1]))
    run("autoconf", cwd=tmp_path)
    log = tmp_path / "log"
    env = environment(programs, CFI2SFRAME_LOG=str(log))
    found = []
    for name, option in (("plain", ""), ("wrapped", f" -B{wrapper_folder(programs, tmp_path / 'B', 'as', 'ld')}")):
        (tmp_path / name).mkdir()
        run("../configure", "--cache-file=cache", f"CC=gcc{option}", cwd=tmp_path / name, env=env)
        text = (tmp_path / name / "cache").read_text()
        # How the tools are called is what differs.
        lines = text.replace(option, "").replace("'gcc'", "gcc").splitlines()
        found.append([line for line in lines if not line.startswith(("lt_cv_path_LD", "#"))])
    assert found[1] == found[0]
    assert "lt_cv_prog_compiler_static_works=${lt_cv_prog_compiler_static_works=yes}" in found[1]
    assert log.read_text().count("info: SFrame version") > 10
