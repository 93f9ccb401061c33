# SPDX-License-Identifier: Apache-2.0
"""Mistakes that a user makes, each with all that the program answers, and with every file as it was before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
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
    ("words", "status", "place", "hint"),
    [
        ("removee --in-place prog", 2, "", "'remove'"),
        ("Verify prog", 2, "", "'verify'"),
        ("help", 2, "", "'--help'"),
        ("--in-place dmup prog", 2, "", "'dump'"),
        ("--in-place verify prog", 2, "", "cfi2sframe verify ..."),
        ("pgro --in-place prog", 3, "", "'pgro' is neither a command nor a file"),
        ("prog", 2, "", "-o OUT or --in-place"),
        ("tree --in-place", 3, "tree", "-r processes"),
        ("tree -o out", 3, "tree", "--in-place or --check, -r"),
        ("--in-place lib.a", 3, "lib.a", "static archive"),
        ("--in-place script", 3, "script", "not an ELF file"),
        ("--in-place damaged", 3, "damaged", "--replace"),
        ("verify prog", 3, "prog", "--would-be"),
        ("remove prog --in-place", 3, "prog", "no .sframe section"),
        ("dump prog", 3, "prog", "no .sframe section"),
        ("-r --in-place --exclude", 2, "", "--exclude"),
        ("--in-place --files-from missing", 3, "missing", "No such file or directory"),
        ("--in-place prog --report no/file", 3, "no/file", "No such file or directory"),
        ("prog -o out --report no/file", 3, "no/file", "No such file or directory"),
        ("--in-place", 2, "", "no input file"),
        ("remove --in-place", 2, "", "no input file"),
        ("remove prog", 2, "", "no output specified; use -o OUT or --in-place"),
        ("prog tree/prog -o out", 2, "", "-o takes a single input; use --in-place to rewrite several files"),
        ("remove prog -o out tree/prog", 2, "", "-o takes a single input; use --in-place to rewrite several files"),
        ("prog -o out --in-place", 2, "", "-o and --in-place are mutually exclusive"),
        ("remove prog -o out --check", 2, "", "-o and --check are mutually exclusive"),
        ("prog -o out -r", 2, "", "--recursive is only valid with --in-place or --check"),
        ("remove prog -o out -r", 2, "", "--recursive is only valid with --in-place or --check"),
        ("prog -o out --files-from x", 2, "", "--files-from is only valid with --in-place or --check"),
        ("prog -o out -j 2", 2, "", "--jobs is only valid with --in-place or --check"),
        ("remove prog -o x --report y", 2, "", "--report is only valid with --in-place or --check"),
        ("--in-place prog --exclude x", 2, "", "--exclude is only valid with -r"),
        ("remove --in-place prog --exclude x", 2, "", "--exclude is only valid with -r"),
        ("prog - --in-place", 2, "", "standard input cannot be rewritten in place"),
        ("prog tree/prog --in-place --errata 1", 2, "", "--errata is only valid with --sframe-version 2"),
        ("prog --check --section-address 4096", 2, "", "--section-address is only valid for raw output"),
        ("prog -o out --section-address 4096", 2, "", "--section-address is only valid for raw output"),
        ("prog -o out.sframe --replace", 2, "", "--replace is only valid for ELF output"),
        ("prog --in-place -j 0", 2, "", "not a positive number: '0'"),
        ("remove --in-place prog --report prog", 2, "", "would overwrite an input or another output"),
        ("verify tree", 3, "", "--would-be"),
        ("dump tree", 3, "", "no"),
        *((verb, 2, "", "no input") for verb in ("verify", "dump", "coverage", "size")),
    ],
)
def test_a_mistake(words: str, status: int, place: str, hint: str) -> None:
    """The answer is one line: the file, if it is one's fault, and what leads on."""
    result = run(*words.split())
    said = tuple(line for line in result.err if not line.startswith(("usage: ", "       cfi2sframe ")))
    assert result._replace(err=said).failed(status, place)
    assert hint in said[0]


def test_a_damaged_section_is_found() -> None:
    """`verify` checks what the file has; the section that `convert` would write is right."""
    result = run("verify", "damaged")
    assert (result.status, result.err) == (1, ())
    assert result.out.startswith(b"damaged: 0x")
    assert b": wrong: " in result.out
    assert run("verify", "--would-be", "damaged") == (0, b"", ())


def test_objects_in_trees_are_left_alone() -> None:
    """A linker of Debian 12 or 13 cannot read crt1.o with version 3: every link would print an error."""
    result = run("--check", "-r", "-v", "tree")
    assert (result.status, len(result.err)) == (1, 1)
    lines = result.out.decode().splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["tree/prog", "would convert"], ["tree/lib/crt1.o", "skip"]]
    lines = run("--check", "-r", "-v", "--for", "ld", "tree").out.decode().splitlines()
    assert [line.split(": ")[:2] for line in lines] == [["tree/prog", "skip"], ["tree/lib/crt1.o", "would convert"]]


@pytest.mark.parametrize(
    ("verb", "option"), [("coverage", "--output"), ("size", "--output"), ("dump", "--output"), ("verify", "--report")]
)
def test_a_report_does_not_replace_what_it_is_about(verb: str, option: str) -> None:
    os.symlink("prog", "link")
    for output in ("prog", "./prog", "link"):
        status, out, err = run(verb, "prog", option, output)
        assert (status, out) == (2, b"")
        assert err[0].endswith(f"error: {option} {output} would overwrite an input or another output")
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
