# SPDX-License-Identifier: Apache-2.0
"""Argument files as GNU programs read them, and lists of names."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.errors import RequestError
from cfi2sframe.files.words import expand, expand_response_files, names_from, split_words
from tests.support.bounds import run_within_bound
from tests.support.cli import run

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


def test_lists_that_name_one_another_over_and_over(tmp_path: Path) -> None:
    """Five files of some bytes stand for a million words."""
    for number in range(5):
        (tmp_path / f"{number}").write_text(f"@{tmp_path}/{number + 1} " * 20)
    (tmp_path / "5").write_text("word " * 20)
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    run = run_within_bound("--check", f"@{tmp_path}/0", input_size=size)
    assert run.status == 2
    assert run.err.startswith(f"cfi2sframe: error: @{tmp_path}/")
    assert run.err.endswith(": argument files name one another too often\n")
    assert len(list(islice(expand_response_files([f"@{tmp_path}/0"]), 1 << 20))) < (1 << 12) + 2 * size


def test_a_list_may_be_named_in_proportion_to_its_size(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("a-name-of-some-length " * 10_000)
    assert expand([f"@{listed}"] * 20) == ["a-name-of-some-length"] * 200_000


def test_many_options_in_a_list(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text("-q " * 20_000)
    run = run_within_bound("--check", f"@{listed}", input_size=listed.stat().st_size)
    assert (run.status, run.err) == (2, "cfi2sframe: error: more than 1,000 options, argument files included\n")
    # What follows `--` is no option.
    listed.write_text("-q -- " + "-name " * 5000)
    assert len(expand([f"@{listed}"])) == 5002


def test_a_file_whose_name_begins_so_is_no_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cfi2sframe --in-place *` in a folder into which another user has put `@a` and `a`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").write_text("--help")
    (tmp_path / "@a").write_bytes(b"text")
    (tmp_path / "outer").write_text("@a @./a")
    assert expand(["@a", "a"]) == ["@a", "a"]
    assert expand(["@./a", "@outer"]) == ["--help", "@a", "--help"]
    status, _, err = run("--in-place", "@a", "a")
    assert status == 3
    assert [name in line for name, line in zip((": @a: ", ": a: "), err, strict=False)] == [True, True]


def test_no_argument_has_a_nul_byte(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"a\0b\0")
    with pytest.raises(RequestError, match="--files-from"):
        expand([f"@{listed}"])
    # GNU ld opens no such file either.
    assert list(expand_response_files([f"@{listed}", "@a\0b"])) == [f"@{listed}", "@a\0b"]


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


def test_quotes_and_backslashes() -> None:
    text = "a  'b c'\td\\ e \"f'g\" '' h\\\ni \"j\\\"k\""
    assert split_words(text) == ["a", "b c", "d e", "f'g", "", "h\ni", 'j"k']
