# SPDX-License-Identifier: Apache-2.0
"""The assembler's wrapper: what it hands on, which form the section has, and that linkers merge it."""

from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode_existing
from cfi2sframe.cli.wrapper.assembler import options_for_linker, section_wanted
from cfi2sframe.constants.elf import SHT_GNU_SFRAME, SHT_PROGBITS
from cfi2sframe.conversion.options import Options
from tests.support.consumer.walk import Sampler, check_walks
from tests.support.contrib import PROJECT, check_section, environment, run, shell_script, wrapper_folder
from tests.support.needs import attempt, need
from tests.support.oracle.gas import assemble, pair_of, problems_of
from tests.support.oracle.tools import BinutilsVersion, find_binutils

pytestmark = pytest.mark.sampled

V1 = ("--for", "ld-2.40")
V2_ERRATA_0 = ("--for", "ld-2.41")
V2, V3 = ("--sframe-version", "2"), ("--sframe-version", "3")


@pytest.fixture
def folder(tmp_path: Path, programs: Path) -> Path:
    """A folder for `-B` with the wrapper as `as`."""
    need("gcc", "as")
    return wrapper_folder(programs, tmp_path / "sframe", "as")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["x.s", "-o", "x.o"], (True, None, ("x.s", "-o", "x.o"))),
        (["--gsframe", "x.s"], (True, None, ("x.s",))),
        (["-gsframe", "x.s"], (True, None, ("x.s",))),
        (["--gsframe-2", "x.s"], (True, 2, ("x.s",))),
        (["--gsframe=yes", "x.s"], (True, None, ("x.s",))),
        (["--gsframe=no", "x.s"], (False, None, ("x.s",))),
        (["--gsframe=no", "--gsframe-1", "x.s"], (True, 1, ("x.s",))),
        (["--gsframe-3", "--gsframe=no"], (False, None, ())),
        (["--gsframe-4", "--gstabs", "--gdwarf-5"], (True, None, ("--gsframe-4", "--gstabs", "--gdwarf-5"))),
    ],
)
def test_what_is_asked_for(words: list[str], expected: tuple[bool, int | None, tuple[str, ...]]) -> None:
    assert section_wanted(words) == expected


@pytest.mark.parametrize(
    ("said", "options"),
    [
        ("GNU ld (GNU Binutils for Debian) 2.40\nCopyright", V1),
        ("GNU ld version 2.41-38.fc41\n", V2_ERRATA_0),
        ("GNU ld (Gentoo 2.44 p3) 2.44.0\n", V2_ERRATA_0),
        ("GNU ld (GNU Binutils) 2.45.1\n", V2),
        ("GNU ld (GNU Binutils) 2.46\n", V3),
        ("GNU ld (GNU Binutils for Debian) 2.47.50.20261021\n", V3),
        ("GNU ld (GNU Binutils; openSUSE Leap 15.6) 2.39.0.20220810-150100.7\n", None),
        ("GNU gold (GNU Binutils for Debian 2.46) 1.16\n", None),
        ("mold 2.40.4 (compatible with GNU ld)\n", None),
        ("mold 3.0.0 (compatible with GNU ld)\n", V3),
        ("Debian LLD 14.0.6 (compatible with GNU linkers)\n", None),
        ("", None),
    ],
)
def test_the_form_that_a_linker_merges(said: str, options: tuple[str, ...] | None) -> None:
    assert options_for_linker(said) == options
    assert options_for_linker(said, is_s390x=True) == (V3 if options == V3 else None)


@pytest.mark.parametrize(
    ("compiler", "version"),
    [("gcc", 1), ("gcc", 2), ("gcc", 3), ("aarch64-linux-gnu-gcc", 3), ("s390x-linux-gnu-gcc", 3)],
)
def test_gcc_with_a_folder(tmp_path: Path, programs: Path, folder: Path, compiler: str, version: int) -> None:
    """A cross compiler gets its own assembler."""
    need(compiler)
    target = tmp_path / "words.o"
    words = (f"-Wa,--gsframe-{version}", "-O2", "-c", PROJECT / "words.c", "-o", target)
    result = run(compiler, "-B", folder, *words, env=environment(programs))
    assert (result.out, result.err) == ("", "")
    assert decode_existing(load(str(target))).version == version


def test_assembler_and_linker(tmp_path: Path, programs: Path, folder: Path, sampler: Sampler) -> None:
    """The linker merges what the assembler's wrapper put in, then its own wrapper replaces that."""
    (folder / "ld").symlink_to(programs / "cfi2sframe-ld")
    program, log = tmp_path / "words", tmp_path / "log"
    env = environment(programs, CFI2SFRAME_LOG=str(log))
    result = run("gcc", "-B", folder, "-O2", "-o", program, PROJECT / "main.c", PROJECT / "words.c", env=env)
    assert (result.out, result.err) == ("", "")
    assert log.read_text().count("info: SFrame version") == 3
    check_section(program)
    check_walks(sampler, program)


def test_an_assembler_that_writes_sections_is_told_not_to(tmp_path: Path, programs: Path) -> None:
    script = '[ "$1" != --help ] || { echo "  --gsframe[={no|yes}]"; exit; }\necho "$@"'
    env = environment(programs, CFI2SFRAME_AS=str(shell_script(tmp_path / "fake-as", script)))
    assert run("cfi2sframe-as", "--gsframe=no", "f.s", env=env).out == "--gsframe=no f.s\n"
    assert run("cfi2sframe-as", "--gsframe", "f.s", env=env).out == "f.s\n"


def test_errors_are_the_assembler_s(tmp_path: Path, programs: Path) -> None:
    need("as")
    (tmp_path / "bad.s").write_text("no such instruction\n")
    ours = attempt("cfi2sframe-as", "--gsframe", "bad.s", "-o", "bad.o", cwd=tmp_path, env=environment(programs))
    theirs = attempt("as", "bad.s", "-o", "bad.o", cwd=tmp_path)
    assert ours == theirs
    assert ours.status != 0


OPTIONS: dict[BinutilsVersion, Options] = {
    "2.40": Options(version=1),
    "2.44": Options(version=2, errata=0),
    "newest": Options(version=3),
}


@pytest.mark.oracle
@pytest.mark.parametrize("version", OPTIONS)
def test_the_object_means_what_the_assembler_s_own_does(
    tmp_path: Path, programs: Path, version: BinutilsVersion
) -> None:
    """Of each release: the same rows at every PC, in the version and with the type that its linker merges."""
    need("gcc")
    tools = find_binutils(version)
    env = environment(programs, CFI2SFRAME_AS=tools.tool("as"))
    function_count = 0
    for name in ("main.c", "words.c"):
        assembly, ours = tmp_path / f"{name}.s", tmp_path / f"{name}.ours.o"
        run("gcc", "-O2", "-S", PROJECT / name, "-o", assembly)
        theirs = assemble(tools.tool("as"), assembly, tmp_path / f"{name}.theirs.o")
        assert theirs is not None
        result = run("cfi2sframe-as", "--gsframe", assembly, "-o", ours, env=env)
        assert (result.out, result.err) == ("", "")
        image, options = load(str(ours)), OPTIONS[version]
        section = image.sframe_section
        assert section is not None
        assert section.type == (SHT_GNU_SFRAME if version == "newest" else SHT_PROGBITS)
        decoded = decode_existing(image)
        assert decoded.version == options.version
        function_count += len(decoded.functions)
        assert problems_of(pair_of(theirs, options)._replace(ours=decoded)) == []
    linked = run(tools.tool("ld"), "-shared", *sorted(tmp_path.glob("*.ours.o")), "-o", tmp_path / "words.so")
    assert (linked.out, linked.err) == ("", "")
    # Those of its own stubs are beside them, right or wrong.
    assert len(decode_existing(load(str(tmp_path / "words.so"))).functions) > function_count > 2
