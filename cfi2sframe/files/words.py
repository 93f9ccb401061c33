# SPDX-License-Identifier: Apache-2.0
"""Arguments that stand in files: `@LIST`, as GNU programs read it, and lists of names that end with a NUL byte."""

from __future__ import annotations

import os
import sys
from itertools import takewhile
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import BinaryIO

#: Files that name themselves, directly or not, come to an end.
_MAX_DEPTH: Final = 16
#: Words that files may stand for, however small they are; each of their bytes adds one.
_BASE_WORDS: Final = 1 << 12
#: Options, where there are argument files: the time to parse them grows with the square of their number.
_MAX_OPTIONS: Final = 1000
#: Larger lists (bytes) are none that anybody has written: some devices never end.
_MAX_LIST_SIZE: Final = 1 << 28
_BLOCK_SIZE: Final = 1 << 20
_SPACE: Final = " \t\n\r\v\f"


class ArgumentFiles:
    """Files that stand for words: each is read and split once, however often it is named, and all words are counted.

    Files that name one another over and over would stand for exponentially many words.
    """

    def __init__(self, split: Callable[[str], Iterable[str]]) -> None:
        self._split = split
        self._words: dict[str, tuple[str, ...]] = {}
        self._words_left = _BASE_WORDS

    def words_of(self, word: str) -> tuple[str, ...]:
        """Return the words that `@FILE` stands for, not expanded further.

        Raises `OSError` when the file cannot be read, `RequestError` when it has NUL bytes, which no argument has,
        or when files have given too many words.
        """
        words = self._words.get(word)
        if words is None:
            # Names of files are bytes.
            with open(word[1:], "rb") as file:
                text = os.fsdecode(_read_list(file, word, may_hold_nul=False))
            words = self._words[word] = tuple(self._split(text))
            self._words_left += len(text)
        self._words_left -= 1 + len(words)
        if self._words_left < 0:
            raise RequestError(f"{word}: argument files name one another too often")
        return words


def expand(words: Iterable[str]) -> list[str]:
    """Put the words of each file LIST in the place of `@LIST`.

    A word stays as it is when there is no such file, and when it is itself the name of a file: `*` gives such words
    where the user has not asked for a list. Words in a file are separated by white space; quotes of either kind hold
    white space together, and a backslash makes any character part of a word. Raises `RequestError` when files are
    nested too deeply, name one another too often, hold too many options, or when one cannot be read.
    """
    expanded = list(_expanded(words, ArgumentFiles(split_words), 0))
    if sum(word.startswith("-") for word in takewhile("--".__ne__, expanded)) > _MAX_OPTIONS:
        raise RequestError(f"more than {_MAX_OPTIONS:,} options, argument files included")
    return expanded


def _expanded(words: Iterable[str], files: ArgumentFiles, depth: int) -> Iterator[str]:
    for word in words:
        if not word.startswith("@") or os.path.lexists(word) or not os.path.lexists(word[1:]):
            yield word
            continue
        if depth >= _MAX_DEPTH:
            raise RequestError(f"{word}: argument files are nested too deeply")
        try:
            inner = files.words_of(word)
        except OSError as error:
            raise RequestError(f"{word}: {error.strerror or error}") from None
        yield from _expanded(inner, files, depth + 1)


def split_words(text: str) -> list[str]:
    """Split the text of an argument file."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if character == "\\":
            word = word or []
            word.append(next(characters, ""))
        elif quote:
            if character == quote:
                quote = ""
            elif word is not None:
                word.append(character)
        elif character in "'\"":
            quote, word = character, word or []
        elif character in _SPACE:
            if word is not None:
                words.append("".join(word))
                word = None
        else:
            word = word or []
            word.append(character)
    if word is not None:
        words.append("".join(word))
    return words


def _read_list(file: BinaryIO, name: str, *, may_hold_nul: bool = True) -> bytes:
    """Read a list to its end, or to where it cannot be one. Raises `RequestError` then, and `OSError`."""
    blocks = []
    size = 0
    while block := file.read(_BLOCK_SIZE):
        if not may_hold_nul and b"\0" in block:
            raise RequestError(f"{name}: an argument file with a NUL byte; --files-from reads lists of such names")
        size += len(block)
        if size > _MAX_LIST_SIZE:
            raise RequestError(f"{name}: a list of more than {_MAX_LIST_SIZE >> 20:,} MiB")
        blocks.append(block)
    return b"".join(blocks)


def names_from(path: str) -> list[str]:
    """Return the names in a list, each ended by a NUL byte (as `find -print0` does it); `-` is standard input.

    Raises `OSError` when it cannot be read, `RequestError` when its names are obviously separated by something else.
    """
    if path == "-":
        data = _read_list(sys.stdin.buffer, "--files-from -")
    else:
        with open(path, "rb") as file:
            data = _read_list(file, f"--files-from {path}")
    names = [os.fsdecode(name) for name in data.split(b"\0") if name]
    if b"\0" not in data and b"\n" in data:
        raise RequestError(
            f"--files-from {path}: names are to end with NUL bytes, as with find -print0, not with lines"
        )
    return names
