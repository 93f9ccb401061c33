# SPDX-License-Identifier: Apache-2.0
"""Mistakes that a user makes, each with all that the program answers, and with every file as it was before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.arch import AMD64
from tests.contrib.support import run as compile_program
from tests.support.cli import ROOT, run
from tests.support.needs import need
from tests.support.samples import object_file, push_fp

if TYPE_CHECKING:
    from collections.abc import Iterator

ERROR: Final = "cfi2sframe: {}: error: {}"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A program, with CFI and without a section."""
    need("cc")
    path = tmp_path_factory.mktemp("program") / "prog"
    sources = [ROOT / "contrib/project" / name for name in ("main.c", "words.c")]
    compile_program("cc", "-O2", "-o", path, *sources)
    return path.read_bytes()


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: bytes) -> Iterator[None]:
    """A folder with a program, the objects of a C library's start, an archive, and a file with a damaged section."""
    monkeypatch.chdir(tmp_path)
    Path("prog").write_bytes(program)
    Path("tree/lib").mkdir(parents=True)
    Path("tree/prog").write_bytes(Path("prog").read_bytes())
    Path("tree/lib/crt1.o").write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}))
    Path("lib.a").write_bytes(b"!<arch>\n" + b"member.o/".ljust(16) + b"0 0 0 644 4".ljust(42) + b"`\nbody")
    Path("script").write_text("#!/bin/sh\n")
    assert run("prog", "-o", "damaged").status == 0
    data = bytearray(Path("damaged").read_bytes())
    section = load("damaged").sframe_section
    assert section is not None
    # An offset of the last row.
    data[section.file_offset + section.size - 1] ^= 8
    Path("damaged").write_bytes(data)
    before = _contents()
    yield
    assert _contents() == before


def _contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path().rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    ("words", "status", "lines"),
    [
        pytest.param(
            "removee --in-place prog",
            2,
            ["cfi2sframe: error: no verb and no file is called 'removee'; did you mean 'remove'?"],
            id="a misspelled verb",
        ),
        pytest.param(
            "Verify prog",
            2,
            ["cfi2sframe: error: no verb and no file is called 'Verify'; did you mean 'verify'?"],
            id="a verb in capitals",
        ),
        pytest.param(
            "help", 2, ["cfi2sframe: error: no verb and no file is called 'help'; did you mean '--help'?"], id="help"
        ),
        pytest.param(
            "--in-place dmup prog",
            2,
            ["cfi2sframe: error: no verb and no file is called 'dmup'; did you mean 'dump'?"],
            id="a misspelled verb after an option",
        ),
        pytest.param(
            "--in-place verify prog",
            2,
            ["cfi2sframe: error: a verb is the first word: cfi2sframe verify ..."],
            id="a verb after an option",
        ),
        pytest.param(
            "pgro --in-place prog", 3, [ERROR.format("pgro", "No such file or directory")], id="a misspelled file"
        ),
        pytest.param("prog", 2, [ERROR.format("prog", "no output: -o OUT or --in-place is needed")], id="no output"),
        pytest.param(
            "tree --in-place", 3, [ERROR.format("tree", "Is a directory; -r takes the ELF files in it")], id="a folder"
        ),
        pytest.param(
            "tree -o out",
            3,
            [ERROR.format("tree", "Is a directory; --in-place -r takes the ELF files in it")],
            id="a folder and an output",
        ),
        pytest.param(
            "--in-place lib.a",
            3,
            [ERROR.format("lib.a", "not an ELF file but a static archive; convert the objects before ar puts them in")],
            id="an archive",
        ),
        pytest.param("--in-place script", 3, [ERROR.format("script", "not an ELF file")], id="a script"),
        pytest.param(
            "--in-place damaged",
            3,
            [ERROR.format("damaged", "the file already has a different .sframe section (use --replace)")],
            id="a section that differs",
        ),
        pytest.param(
            "verify prog",
            3,
            [ERROR.format("prog", "no .sframe section; --would-be checks the one that convert would write")],
            id="no section to verify",
        ),
        pytest.param(
            "remove prog --in-place", 3, [ERROR.format("prog", "the file has no .sframe section")], id="remove"
        ),
        pytest.param("dump prog", 3, [ERROR.format("prog", "no .sframe section")], id="dump"),
        pytest.param(
            "-r --in-place --exclude",
            2,
            ["cfi2sframe: error: argument --exclude: expected one argument"],
            id="no pattern",
        ),
        pytest.param(
            "verify tree",
            3,
            ["cfi2sframe: error: none of these files has an .sframe section (--would-be: what convert would write)"],
            id="no section in a folder",
        ),
        pytest.param(
            "dump tree", 3, ["cfi2sframe: error: none of these files has an .sframe section"], id="nothing in a folder"
        ),
        pytest.param("verify", 2, ["cfi2sframe: error: no input: name a file"], id="nothing to verify"),
        pytest.param("dump", 2, ["cfi2sframe: error: no input: name a file"], id="nothing to dump"),
        pytest.param("coverage", 2, ["cfi2sframe: error: no input: name a file"], id="nothing to account for"),
        pytest.param("size", 2, ["cfi2sframe: error: no input: name a file"], id="nothing to measure"),
    ],
)
def test_a_mistake(words: str, status: int, lines: list[str]) -> None:
    result = run(*words.split())
    said = [line for line in result.err if not line.startswith(("usage: ", "       cfi2sframe "))]
    assert (result.status, result.out, said) == (status, b"", lines)


def test_a_damaged_section_is_found() -> None:
    """`verify` checks what the file has; the section that `convert` would write is right."""
    result = run("verify", "damaged")
    assert (result.status, result.err) == (1, ())
    assert result.out.startswith(b"damaged: 0x")
    assert b": wrong: " in result.out
    assert run("verify", "--would-be", "damaged") == (0, b"", ())


def test_objects_in_trees_are_left_alone() -> None:
    """A linker of Debian 12 or 13 cannot read crt1.o with version 3: every link would print an error."""
    result = run("--check", "-r", "tree")
    assert (result.status, result.err) == (1, ())
    lines = result.out.decode().splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["tree/prog", "would convert"], ["tree/lib/crt1.o", "skip"]]
    assert run("--check", "-r", "--objects", "tree").out.count(b"would convert") == 2


@pytest.mark.parametrize(
    ("verb", "option"), [("coverage", "--output"), ("size", "--output"), ("dump", "--output"), ("verify", "--report")]
)
def test_a_report_does_not_replace_what_it_is_about(verb: str, option: str) -> None:
    os.symlink("prog", "link")
    for output in ("prog", "./prog", "link"):
        status, out, err = run(verb, "prog", option, output)
        assert (status, out) == (2, b"")
        assert err[0].endswith(f"error: {option} {output} would overwrite an input")
    os.unlink("link")


@pytest.mark.parametrize("verb", ["coverage", "size", "dump"])
def test_failures_are_not_in_the_report(verb: str) -> None:
    """Whatever the output is, they are on standard error."""
    for output in ("-", "report.json"):
        result = run(verb, "prog", "script", "missing", "-o", output)
        assert result.status == 3
        assert ERROR.format("missing", "No such file or directory") in result.err
        assert ERROR.format("script", "not an ELF file") in result.err
    os.unlink("report.json")
