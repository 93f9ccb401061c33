# SPDX-License-Identifier: Apache-2.0
"""The wrappers of linker and driver: what they convert, what they leave alone, and that they never break a link."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from cfi2sframe.cli.wrapper.programs import role_of
from cfi2sframe.cli.wrapper.words import is_for_driver, output_of, output_of_driver
from tests.support.consumer.walk import Sampler, check_walks
from tests.support.contrib import (
    PROGRAMS,
    PROJECT,
    ROOT,
    check_section,
    environment,
    has_section,
    run,
    shell_script,
    wrapper_folder,
)
from tests.support.needs import Result, attempt, need

pytestmark = pytest.mark.sampled

SOURCES = [str(PROJECT / "main.c"), str(PROJECT / "words.c")]


@pytest.fixture
def objects(tmp_path: Path) -> list[str]:
    """The project's objects, in the test's folder."""
    need("cc", "ld")
    run("cc", "-O2", "-c", *SOURCES, cwd=tmp_path)
    return ["main.o", "words.o"]


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["x.o"], "a.out"),
        (["-o", "X", "x.o"], "X"),
        (["-oX", "x.o"], "X"),
        (["x.o", "--output=X"], "X"),
        (["--output", "X"], "X"),
        (["--outp=X"], "X"),
        (["--out=X"], "a.out"),
        (["--oformat=elf64-x86-64"], "a.out"),
        (["-o", "X", "-o", "Y"], "Y"),
        (["-o", "-strange"], "-strange"),
        (["@missing", "-o", "X"], "X"),
    ],
)
def test_output_of(words: list[str], output: str) -> None:
    assert output_of(words) == output


def test_output_of_response_files(tmp_path: Path) -> None:
    (tmp_path / "inner").write_text('\'-o\' "a b"\\"c\n')
    (tmp_path / "outer").write_text(f"x.o @{tmp_path}/inner y.o")
    assert output_of([f"@{tmp_path}/outer"]) == 'a b"c'
    (tmp_path / "circle").write_text(f"-o X @{tmp_path}/circle")
    assert output_of([f"@{tmp_path}/circle"]) == "X"
    (tmp_path / "flags").write_text("-Wl,--gc-sections")
    assert is_for_driver([f"@{tmp_path}/flags"])
    assert not is_for_driver(["-Wall", "x.o"])


@pytest.mark.parametrize(
    ("name", "words", "variable", "names"),
    [
        ("/x/ld", [], "CFI2SFRAME_LD", ("ld",)),
        ("cfi2sframe-ld", [], "CFI2SFRAME_LD", ("ld",)),
        ("ld.lld", [], "CFI2SFRAME_LD", ("ld.lld",)),
        ("aarch64-linux-gnu-ld.bfd", [], "CFI2SFRAME_LD", ("aarch64-linux-gnu-ld.bfd",)),
        ("cfi2sframe-ld", ["-Wl,-z,now"], "CFI2SFRAME_CC", ("cc", "gcc", "clang")),
        ("cfi2sframe-cc", [], "CFI2SFRAME_CC", ("cc", "gcc", "clang")),
        ("cfi2sframe-g++-12", [], "CFI2SFRAME_CC", ("g++-12",)),
    ],
)
def test_role_of(name: str, words: list[str], variable: str, names: tuple[str, ...]) -> None:
    role = role_of(name, words)
    assert (role.variable, role.names) == (variable, names)


OBJECT = "x.o"


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ([OBJECT, "-Wl,-o,X"], "X"),
        ([OBJECT, "-Wl,--output=X", "-o", "Y"], "X"),
        (["-Wl,-o,X", OBJECT, "-o", "Y"], "X"),
        (["-Xlinker", "-o", "-Xlinker", "X", OBJECT, "-o", "Y"], "X"),
        ([OBJECT, "-Wl,@arguments"], "X"),
        (["-flto", OBJECT, "-o", "X"], "X"),
        ([OBJECT, "-c"], "a.out"),
    ],
)
def test_the_output_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], output: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arguments").write_text("-o X")
    assert output_of_driver(words) == output


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


def test_the_linker_s_exit_status_counts(tmp_path: Path, programs: Path, objects: list[str]) -> None:
    result = attempt("cfi2sframe-ld", "-o", "words", objects[0], cwd=tmp_path, env=environment(programs))
    assert result.status == 1
    assert "undefined reference" in result.err
    assert "cfi2sframe" not in result.err.replace("cfi2sframe-ld", "")


@pytest.mark.parametrize("strict", ["0", "1"])
def test_an_output_that_no_argument_names(tmp_path: Path, programs: Path, objects: list[str], strict: str) -> None:
    """A linker script names it: there is no section, and that is said."""
    (tmp_path / "script").write_text("OUTPUT(out)\n")
    log = tmp_path / "log"
    env = environment(programs, CFI2SFRAME_STRICT=strict, CFI2SFRAME_LOG=str(log))
    result = attempt("cfi2sframe-ld", *objects, "-shared", "-T", "script", cwd=tmp_path, env=env)
    assert (tmp_path / "out").exists()
    assert result.status == int(strict)
    assert "a.out: warning: no .sframe section was put in: the linker has not written this file" in log.read_text()
    assert ("a.out: error: no .sframe section" in result.err) is (strict == "1")


@pytest.mark.parametrize(
    "words",
    [["--version"], ["-Wl,--version"], ["-c"], ["-E"], ["-fsyntax-only"], ["-o", "/dev/null"], ["-o", "X", "-r"]],
)
def test_probes_are_no_failures(tmp_path: Path, programs: Path, words: list[str]) -> None:
    """Configure scripts ask for what writes no program."""
    need("cc", "ld")
    result = attempt("cfi2sframe-cc", *SOURCES, *words, cwd=tmp_path, env=environment(programs, CFI2SFRAME_STRICT="1"))
    assert (result.status, "cfi2sframe" in result.err) == (0, False)


def link_with(tmp_path: Path, programs: Path, script: str, **variables: str) -> Result:
    """Run the wrapper around a linker that follows the script."""
    env = environment(programs, CFI2SFRAME_LD=str(shell_script(tmp_path / "linker", script)), **variables)
    return attempt("cfi2sframe-ld", "-o", "out", cwd=tmp_path, env=env)


DAMAGED = "head -c 20000 /bin/ls > out; head -c 20000 /dev/zero >> out"


@pytest.mark.parametrize("strict", ["0", "1"])
def test_what_cannot_be_converted_stays_linked(tmp_path: Path, programs: Path, strict: str) -> None:
    """Unless STRICT asks nothing is printed: libtool and configure take that for a failure. There is a log."""
    log = tmp_path / "log"
    result = link_with(tmp_path, programs, DAMAGED, CFI2SFRAME_LOG=str(log), CFI2SFRAME_STRICT=strict)
    assert (result.status, result.out) == (int(strict), "")
    assert (tmp_path / "out").stat().st_size == 40000
    why, verdict = log.read_text().splitlines()
    assert why.startswith(f"cfi2sframe: {tmp_path}/out: error: ")
    assert verdict == f"cfi2sframe-ld: {tmp_path}/out: warning: no .sframe section was put in"
    told = [why, "cfi2sframe-ld: out: error: no .sframe section was put in (CFI2SFRAME_STRICT)"]
    assert result.err.splitlines() == (told if strict == "1" else [])


def test_the_log_has_a_line_for_each_link(tmp_path: Path, programs: Path) -> None:
    log = tmp_path / "log"
    for _ in range(2):
        result = link_with(tmp_path, programs, "cp /bin/ls out", CFI2SFRAME_LOG=str(log))
        assert result == Result(0, "", "")
    lines = [line for line in log.read_text().splitlines() if " of .sframe" in line]
    assert len(lines) == 2
    assert all(line.startswith(f"cfi2sframe: {tmp_path}/out: info: SFrame version 3 describes ") for line in lines)


def test_what_sframe_is_not_defined_for_is_no_failure(tmp_path: Path, programs: Path) -> None:
    """Configure scripts try to link for other machines; STRICT is about files that should have a section."""
    need("gcc")
    (tmp_path / "none.s").write_text(".globl _start\n_start: ret\n")
    run("gcc", "-c", "none.s", cwd=tmp_path)
    env = environment(programs, CFI2SFRAME_STRICT="1")
    assert attempt("cfi2sframe-ld", "-o", "none", "none.o", cwd=tmp_path, env=env) == Result(0, "", "")
    assert not has_section(tmp_path / "none")


@pytest.mark.parametrize(
    "flags",
    [
        *("--sframe-version 7", "'unbalanced", "--no-such-option", "file", "-o file", "--report file", "--check"),
        *("--help", "--files-from list"),
    ],
)
def test_wrong_flags_are_an_error_of_one_line(tmp_path: Path, programs: Path, flags: str) -> None:
    """A mistake of the user's, which would cost every file its section; nothing has been linked."""
    result = link_with(tmp_path, programs, "cp /bin/ls out", CFI2SFRAME_FLAGS=flags)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("cfi2sframe-ld: error: CFI2SFRAME_FLAGS: ")
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_standard_error_is_written_to_its_end(tmp_path: Path, programs: Path) -> None:
    """Opened by name, the file has a position of its own, and the next line of the build overwrites the log's."""
    linker = shell_script(tmp_path / "linker", "cp /bin/ls out")
    env = environment(programs, CFI2SFRAME_LD=str(linker), CFI2SFRAME_LOG="/dev/stderr")
    with (tmp_path / "heard").open("wb") as heard:
        for _ in range(2):
            subprocess.run(["cfi2sframe-ld", "-o", "out"], cwd=tmp_path, env=env, stderr=heard, check=True)
    assert (tmp_path / "heard").read_text().count(": info: converted: ") == 2


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, programs: Path) -> None:
    result = link_with(tmp_path, programs, "cp /bin/ls out", CFI2SFRAME_LOG=f"{tmp_path}/missing/log")
    assert (result.status, result.err.count("\n")) == (0, 1)
    assert "CFI2SFRAME_LOG: " in result.err


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


def test_a_wrapper_is_not_its_own_linker(tmp_path: Path, programs: Path) -> None:
    """Neither under another name, nor in a folder of PATH, nor by its variable."""
    need("ld")
    folder = wrapper_folder(programs, tmp_path / "sframe-ld")
    env = environment(programs)
    env["PATH"] = os.pathsep.join([str(folder), env["PATH"]])
    assert "GNU ld" in run(folder / "ld", "--version", cwd=tmp_path, env=env).out
    env["CFI2SFRAME_LD"] = str(folder / "ld")
    assert attempt("cfi2sframe-ld", "--version", cwd=tmp_path, env=env).status == 127


def test_a_linker_that_cannot_be_started(tmp_path: Path, programs: Path) -> None:
    linker = tmp_path / "linker"
    linker.write_text("#!/no/such/interpreter\n")
    linker.chmod(0o755)
    result = attempt("cfi2sframe-ld", "x.o", cwd=tmp_path, env=environment(programs, CFI2SFRAME_LD=str(linker)))
    assert (result.status, f"{linker}: error: cannot be started" in result.err) == (126, True)


def test_a_section_that_the_linker_merged_is_replaced(tmp_path: Path, programs: Path, objects: list[str]) -> None:
    """One object has a section of its own: linkers merge it or copy it, and either way it is replaced."""
    env = environment(programs)
    run("cfi2sframe", "--in-place", "--sframe-version", "2", "main.o", cwd=tmp_path, env=env)
    result = attempt("cfi2sframe-cc", "-o", "words", *objects, cwd=tmp_path, env=env)
    if "sframe" in result.err and result.status:
        pytest.skip("this linker does not take SFrame sections of objects")
    assert result.status == 0
    check_section(tmp_path / "words")


MAN_PAGE = ROOT / "data" / "share" / "man" / "man1" / "cfi2sframe-ld.1"
WRAPPERS = [name for name in PROGRAMS if name != "cfi2sframe"]


def test_the_man_page_has_the_variables_that_are_read_and_no_others() -> None:
    read = {name for each in WRAPPERS for name in (role_of(each, []).variable, role_of(each, []).running)}
    for path in (ROOT / "cfi2sframe" / "cli" / "wrapper").glob("*.py"):
        read.update(re.findall(r'\b(?:get|is_set)\("([A-Z_0-9]+)"', path.read_text()))
    section = MAN_PAGE.read_text().partition(".Sh ENVIRONMENT")[2].partition(".Sh EXIT STATUS")[0]
    items = re.findall(r"^\.It Ev (.*)$", section, re.MULTILINE)
    assert len(read) > 10
    assert {word for item in items for word in item.replace(",", " ").split()} == read


def test_the_man_page_is_that_of_each_wrapper(programs: Path) -> None:
    need("man", "mandoc")
    env = {"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
    for name in WRAPPERS:
        text = run("man", "-l", MAN_PAGE.with_name(f"{name}.1"), cwd=MAN_PAGE.parents[1], env=env).out
        assert all(each in text for each in WRAPPERS)
    assert attempt("mandoc", "-T", "lint", "-W", "warning", MAN_PAGE).out == ""
    assert "CFI2SFRAME_STRICT" in run("cfi2sframe-cc", "--cfi2sframe-help", env=environment(programs)).out


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
        pytest.skip("libtool is not here: apt-get install libtool")
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
