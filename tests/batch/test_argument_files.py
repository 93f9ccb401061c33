# SPDX-License-Identifier: Apache-2.0
"""Argument files as GNU programs read them, and lists of names."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.cli.argument_files import expand, names_from, split_words
from cfi2sframe.errors import RequestError
from tests.cli import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        (" \n\t ", []),
        ("one two\nthree\r\n", ["one", "two", "three"]),
        ("'one two' \"three  four\"", ["one two", "three  four"]),
        ("a'b c'd\"e f\"g", ["ab cde fg"]),
        (r"one\ two \'three \\ \"", ["one two", "'three", "\\", '"']),
        ("'' \"\"", ["", ""]),
        ("'it\"s' \"it's\"", ['it"s', "it's"]),
        ("'never ended\n", ["never ended\n"]),
        ("ends with \\", ["ends", "with", ""]),
    ],
)
def test_words(text: str, words: list[str]) -> None:
    assert split_words(text) == words


def test_files_stand_for_their_words(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("c 'd e'\n")
    outer.write_text(f"b @{inner} f @missing")
    assert expand(["a", f"@{outer}", "@", "@missing", "x@y"]) == [
        *("a", "b", "c", "d e", "f", "@missing"),
        *("@", "@missing", "x@y"),
    ]


def test_names_are_bytes(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"latin-\xe9")
    assert expand([f"@{listed}"]) == [os.fsdecode(b"latin-\xe9")]


def test_files_that_name_themselves_come_to_an_end(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.write_text(f"@{loop}")
    with pytest.raises(RequestError, match="nested too deeply"):
        expand([f"@{loop}"])
    status, out, err = run("--in-place", f"@{loop}")
    assert (status, out, err) == (2, b"", (f"cfi2sframe: error: @{loop}: argument files are nested too deeply",))


def test_a_folder_is_no_argument_file(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="Is a directory"):
        expand([f"@{tmp_path}"])


def test_every_verb_reads_them(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("--help")
    assert run("dump", f"@{listed}") == run("dump", "--help")


def test_names_end_with_nul(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    for data, names in (
        (b"", []),
        (b"a\0b c\0", ["a", "b c"]),
        (b"a\0two\nlines", ["a", "two\nlines"]),
        (b"one", ["one"]),
        (b"\0\0latin-\xe9\0", [os.fsdecode(b"latin-\xe9")]),
    ):
        listed.write_bytes(data)
        assert names_from(str(listed)) == names


def test_lines_are_taken_for_a_mistake(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"a.o\nb.o\n")
    with pytest.raises(RequestError, match="NUL"):
        names_from(str(listed))
