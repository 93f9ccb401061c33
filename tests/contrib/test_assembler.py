# SPDX-License-Identifier: Apache-2.0
"""The assembler's wrapper: what it hands on, which form the section has, and that linkers merge it."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import Options, decode_existing, load
from cfi2sframe.cli.wrapper.assembler import AssemblyRequest, options_for, request_of
from cfi2sframe.cli.wrapper.roles import role_of
from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_PROGBITS
from tests.contrib.support import PROJECT, attempt, check_section, environment, has_section, need, run
from tests.support.oracle.gas import assemble, pair_of, problems_of
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracle.tools import Binutils, BinutilsVersion
    from tests.support.walk import Sampler

SOURCE = """\
.globl f
f:
.cfi_startproc
push %rbp
.cfi_def_cfa_offset 16
.cfi_offset %rbp, -16
pop %rbp
.cfi_def_cfa_offset 8
ret
.cfi_endproc
"""
V1 = ("--sframe-version", "1", "--section-type", "progbits")
V2_ERRATA_0 = ("--sframe-version", "2", "--errata", "0", "--section-type", "progbits")
V2, V3 = ("--sframe-version", "2"), ("--sframe-version", "3")


@pytest.fixture
def folder(tmp_path: Path, programs: Path) -> Path:
    """A folder for `-B` with the wrapper as `as`."""
    need("gcc", "as")
    (tmp_path / "sframe").mkdir()
    (tmp_path / "sframe" / "as").symlink_to(programs / "cfi2sframe-as")
    return tmp_path / "sframe"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A function in assembly language."""
    need("as")
    path = tmp_path / "f.s"
    path.write_text(SOURCE)
    return path


def version_of(path: Path) -> int:
    return decode_existing(load(str(path))).header.version


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
    assert request_of(words) == AssemblyRequest(*expected)


def test_response_files(tmp_path: Path) -> None:
    (tmp_path / "own").write_text("--gsframe-2 -o 'a b'")
    (tmp_path / "others").write_text("--gdwarf-5")
    own, others = f"@{tmp_path}/own", f"@{tmp_path}/others"
    assert request_of([own, others]) == (True, 2, ("-o", "a b", "--gdwarf-5"))
    assert request_of([others, "x.s"]) == (True, None, (others, "x.s"))


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
    assert options_for(said) == options
    assert options_for(said, is_s390x=True) == (V3 if options == V3 else None)


@pytest.mark.parametrize(
    ("said", "version", "options"),
    [("", 1, V1), ("", 2, V2), ("", 3, V3), ("GNU ld 2.44", 2, V2_ERRATA_0), ("GNU ld 2.47", 2, V2)],
)
def test_a_named_version(said: str, version: int, options: tuple[str, ...]) -> None:
    assert options_for(said, version) == options


@pytest.mark.parametrize("name", ["as", "cfi2sframe-as", "/x/x86_64-linux-gnu-as"])
def test_names(name: str) -> None:
    role = role_of(name, ["-Wl,x"])
    assert role.variable == "CFI2SFRAME_AS"
    assert role.names == (Path(name).name.removeprefix("cfi2sframe-"),)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_gcc_with_a_folder(tmp_path: Path, programs: Path, folder: Path, version: int) -> None:
    words: list[str | Path] = ["-O2", "-c", PROJECT / "words.c", "-o", tmp_path / "words.o"]
    result = run("gcc", "-B", folder, f"-Wa,--gsframe-{version}", *words, env=environment(programs))
    assert (result.out, result.err) == ("", "")
    assert version_of(tmp_path / "words.o") == version


@pytest.mark.parametrize("target", ["aarch64-linux-gnu", "s390x-linux-gnu"])
def test_a_cross_compiler_gets_its_own_assembler(tmp_path: Path, programs: Path, folder: Path, target: str) -> None:
    need(f"{target}-gcc", f"{target}-as")
    words: list[str | Path] = ["-O2", "-c", PROJECT / "words.c", "-o", tmp_path / "words.o"]
    result = run(f"{target}-gcc", "-B", folder, "-Wa,--gsframe-3", *words, env=environment(programs))
    assert (result.out, result.err) == ("", "")
    assert version_of(tmp_path / "words.o") == 3


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


def test_a_driver_s_wrapper_leaves_objects_to_the_assembler_s(tmp_path: Path, programs: Path, folder: Path) -> None:
    words: list[str | Path] = ["-c", PROJECT / "words.c", "-o", tmp_path / "words.o"]
    run("cfi2sframe-cc", f"-B{folder}", *words, env=environment(programs, CFI2SFRAME_FLAGS="--sframe-version 2"))
    assert version_of(tmp_path / "words.o") == 2


@pytest.mark.parametrize(
    ("words", "made"), [(["f.s", "-o", "f.o"], "f.o"), (["f.s"], "a.out"), (["-of.o", "g.s", "f.s"], "f.o")]
)
def test_outputs(tmp_path: Path, programs: Path, source: Path, words: list[str], made: str) -> None:
    (source.parent / "g.s").write_text("nop\n")
    run("cfi2sframe-as", "--gsframe-3", *words, cwd=tmp_path, env=environment(programs))
    assert version_of(tmp_path / made) == 3


def test_no_section_is_wanted(tmp_path: Path, programs: Path, source: Path) -> None:
    run("cfi2sframe-as", "--gsframe=no", source, "-o", "f.o", cwd=tmp_path, env=environment(programs))
    run("as", source, "-o", "plain.o", cwd=tmp_path)
    assert (tmp_path / "f.o").read_bytes() == (tmp_path / "plain.o").read_bytes()


def test_an_assembler_that_writes_sections_is_told_not_to(tmp_path: Path, programs: Path, source: Path) -> None:
    fake = tmp_path / "fake-as"
    fake.write_text('#!/bin/sh\n[ "$1" != --help ] || { echo "  --gsframe[={no|yes}]"; exit; }\necho "$@"\n')
    fake.chmod(0o755)
    env = environment(programs, CFI2SFRAME_AS=str(fake))
    assert run("cfi2sframe-as", "--gsframe=no", source, env=env).out == f"--gsframe=no {source}\n"
    assert run("cfi2sframe-as", "--gsframe", source, env=env).out == f"{source}\n"


def test_a_section_of_the_assembler_s_is_left(
    tmp_path: Path, programs: Path, source: Path, binutils: Callable[[BinutilsVersion], Binutils]
) -> None:
    """Some assemblers are built to write one."""
    tool = binutils("2.40").tool("as")
    fake = tmp_path / "fake-as"
    fake.write_text(f'#!/bin/sh\nexec {tool} --gsframe "$@"\n')
    fake.chmod(0o755)
    run(tool, "--gsframe", source, "-o", tmp_path / "plain.o")
    run(
        "cfi2sframe-as",
        "--gsframe-3",
        source,
        "-o",
        tmp_path / "f.o",
        env=environment(programs, CFI2SFRAME_AS=str(fake)),
    )
    assert (tmp_path / "f.o").read_bytes() == (tmp_path / "plain.o").read_bytes()


def test_errors_are_the_assembler_s(tmp_path: Path, programs: Path) -> None:
    (tmp_path / "bad.s").write_text("no such instruction\n")
    ours = attempt("cfi2sframe-as", "--gsframe", "bad.s", "-o", "bad.o", cwd=tmp_path, env=environment(programs))
    theirs = attempt("as", "bad.s", "-o", "bad.o", cwd=tmp_path)
    assert ours == theirs
    assert ours.status != 0


@pytest.mark.parametrize("strict", ["0", "1"])
def test_no_linker_beside(tmp_path: Path, programs: Path, source: Path, strict: str) -> None:
    """Objects that no linker merges are left without a section, unless a version is named."""
    alone = tmp_path / "alone" / "as"
    alone.parent.mkdir()
    alone.symlink_to(str(shutil.which("as")))
    log = tmp_path / "log"
    env = environment(programs, CFI2SFRAME_AS=str(alone), CFI2SFRAME_LOG=str(log), CFI2SFRAME_STRICT=strict)
    result = attempt("cfi2sframe-as", source, "-o", "f.o", cwd=tmp_path, env=env)
    why = f"no linker is known beside {alone} that merges these .sframe sections; --gsframe-N names a version"
    assert (result.status, result.out) == (int(strict), "")
    if strict == "0":
        assert result.err == ""
    else:
        reason, verdict = result.err.splitlines()
        assert reason == f"cfi2sframe-as: ./f.o: error: {why}"
        assert verdict == "cfi2sframe-as: f.o: error: no .sframe section was put in, and CFI2SFRAME_STRICT forbids that"
    assert log.read_text() == (
        f"cfi2sframe-as: {tmp_path}/f.o: error: {why}\n"
        f"cfi2sframe-as: {tmp_path}/f.o: warning: assembled, but no .sframe section was put in\n"
    )
    assert not has_section(tmp_path / "f.o")
    run("cfi2sframe-as", "--gsframe-3", source, "-o", tmp_path / "f.o", cwd=tmp_path, env=env)
    assert has_section(tmp_path / "f.o")


OPTIONS: dict[BinutilsVersion, Options] = {
    "2.40": Options(version=1),
    "2.44": Options(version=2, errata=0),
    "newest": Options(version=3),
}


@pytest.mark.oracle
@pytest.mark.parametrize("version", OPTIONS)
def test_the_object_means_what_the_assembler_s_own_does(
    tmp_path: Path, programs: Path, binutils: Callable[[BinutilsVersion], Binutils], version: BinutilsVersion
) -> None:
    """Of each release: the same rows at every PC, in the version and with the type that its linker merges."""
    need("gcc")
    tools = binutils(version)
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
        assert decoded.header.version == options.version
        function_count += len(decoded.functions)
        assert problems_of(pair_of(theirs, options)._replace(ours=decoded)) == []
    linked = run(tools.tool("ld"), "-shared", *sorted(tmp_path.glob("*.ours.o")), "-o", tmp_path / "words.so")
    assert (linked.out, linked.err) == ("", "")
    # Those of its own stubs are beside them, right or wrong.
    assert len(decode_existing(load(str(tmp_path / "words.so"))).functions) > function_count > 2


def test_a_source_from_a_pipe(tmp_path: Path, programs: Path, folder: Path) -> None:
    words: list[str | Path] = ["-pipe", "-Wa,--gsframe-3", "-c", PROJECT / "words.c", "-o", tmp_path / "words.o"]
    run("gcc", "-B", folder, *words, env=environment(programs))
    assert version_of(tmp_path / "words.o") == 3


def test_clang_with_a_folder(tmp_path: Path, programs: Path, folder: Path) -> None:
    need("clang")
    words: list[str | Path] = ["-Wa,--gsframe-3", "-c", PROJECT / "words.c", "-o", tmp_path / "words.o"]
    run("clang", "-fno-integrated-as", "-B", folder, *words, env=environment(programs))
    assert version_of(tmp_path / "words.o") == 3


def test_link_time_optimisation(tmp_path: Path, programs: Path, folder: Path) -> None:
    """Objects without code have no CFI, which is no failure."""
    env = environment(programs, CFI2SFRAME_STRICT="1")
    sources = [PROJECT / "main.c", PROJECT / "words.c"]
    result = run("gcc", "-B", folder, "-flto", "-O2", "-o", "words", *sources, cwd=tmp_path, env=env)
    assert (result.out, result.err) == ("", "")
