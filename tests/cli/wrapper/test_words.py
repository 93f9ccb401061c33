# SPDX-License-Identifier: Apache-2.0
"""Command lines of linkers and drivers: which file they write; response files as GNU programs read them."""

import os
import shlex
import time
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest

from cfi2sframe.cli.wrapper.words import expand_response_files, is_for_driver, output_of, output_of_driver, split_words


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
    (tmp_path / "outer").write_text(f"x.o '@{tmp_path}/inner' y.o")
    assert output_of([f"@{tmp_path}/outer"]) == 'a b"c'
    (tmp_path / "circle").write_text(f"-o X '@{tmp_path}/circle'")
    assert output_of([f"@{tmp_path}/circle"]) == "X"
    (tmp_path / "flags").write_text("-Wl,--gc-sections")
    assert is_for_driver([f"@{tmp_path}/flags"])
    assert not is_for_driver(["-Wall", "x.o"])


@pytest.mark.parametrize(
    ("words", "output"),
    [
        (["x.o", "-Wl,-o,X"], "X"),
        (["x.o", "-Wl,--output=X", "-o", "Y"], "X"),
        (["-Wl,-o,X", "x.o", "-o", "Y"], "X"),
        (["-Xlinker", "-o", "-Xlinker", "X", "x.o", "-o", "Y"], "X"),
        (["x.o", "-Wl,@arguments"], "X"),
        (["-flto", "x.o", "-o", "X"], "X"),
        (["x.o", "-c"], "a.out"),
    ],
)
def test_the_output_of_a_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], output: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arguments").write_text("-o X")
    assert output_of_driver(words) == output


def expanded(*words: str) -> list[str]:
    return list(expand_response_files(words))


def test_files_stand_for_their_words(tmp_path: Path) -> None:
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    inner.write_text("c 'd e'\n")
    outer.write_text(f"b '@{inner}' f @missing")
    assert expanded("a", f"@{outer}", "@", "@missing", "x@y", f"@{tmp_path}") == [
        *("a", "b", "c", "d e", "f", "@missing"),
        *("@", "@missing", "x@y", f"@{tmp_path}"),
    ]


def test_names_are_bytes(tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_bytes(b"latin-\xe9")
    assert expanded(f"@{listed}") == [os.fsdecode(b"latin-\xe9")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("one two\nthree\r\n", ["one", "two", "three"]),
        ("'' #no-comment", ["", "#no-comment"]),
        ("'never ended\n", None),
    ],
)
def test_words_of_a_file(text: str, words: list[str] | None, tmp_path: Path) -> None:
    listed = tmp_path / "list"
    listed.write_text(text)
    assert expanded(f"@{listed}") == ([f"@{listed}"] if words is None else words)


def test_files_that_name_themselves_come_to_an_end(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.write_text(f"'@{loop}' word")
    assert expanded(f"@{loop}") == [f"@{loop}", "word"]


def test_lists_that_name_one_another_over_and_over(tmp_path: Path) -> None:
    """Five files of some bytes stand for a million words, and 3,000 for a stack that is as deep."""
    for number in range(5):
        (tmp_path / f"{number}").write_text(f"'@{tmp_path}/{number + 1}' " * 20)
    (tmp_path / "5").write_text("word " * 20)
    assert len(expanded(f"@{tmp_path}/0")) < 2000 * 20
    for number in range(3000):
        (tmp_path / f"deep{number}").write_text(f"'@{tmp_path}/deep{number + 1}'")
    assert len(expanded(f"@{tmp_path}/deep0")) == 1


def test_words_are_those_of_a_shell() -> None:
    for letters in product("a '\"\\\n", repeat=5):
        text = "".join(letters)
        words: list[str] | None = None
        with suppress(ValueError):
            words = shlex.split(text)
        assert split_words(text) == words, text


@pytest.mark.parametrize("kind", ["a long word", "lists of lists", "a tree", "no list"])
def test_what_response_files_cost(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However they name one another, the time is that of reading some megabytes."""
    monkeypatch.chdir(tmp_path)
    texts = {"end": "-o x " * 100_000}
    if kind == "a long word":
        texts["0"] = f"'{'a' * 2_000_000}'"
    elif kind == "lists of lists":
        texts |= {"0": "@1 " * 100_000, "1": "@end " * 100_000}
    elif kind == "a tree":
        texts |= {str(n): f"@{n + 1 if n < 40 else 'end'} " * 2 for n in range(41)}
    else:
        texts["0"] = "@/dev/zero " * 1_000
    for name, text in texts.items():
        Path(name).write_text(text)
    before = time.process_time()
    words = expanded("@0")
    assert time.process_time() - before < 10
    assert len(words) <= 2 << 20


def test_no_word_has_a_nul_byte(tmp_path: Path) -> None:
    """GNU ld opens no such file either, and /dev/zero is not read to its end."""
    listed = tmp_path / "list"
    listed.write_bytes(b"a\0b\0")
    assert expanded(f"@{listed}", "@a\0b", "@/dev/zero") == [f"@{listed}", "@a\0b", "@/dev/zero"]
