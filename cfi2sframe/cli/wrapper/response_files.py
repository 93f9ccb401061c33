# SPDX-License-Identifier: Apache-2.0
"""Response files: `@FILE` on the command line of a linker."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: More levels of response files than this are a circle.
_MAX_DEPTH: Final = 32
#: Words that files may expand to, however small the files are; each byte of a file allows one more.
_BASE_WORDS: Final = 1 << 12
#: The largest file (bytes): more than any real one, because some devices never end.
_MAX_FILE_SIZE: Final = 1 << 26
_SPACE: Final = " \t\n\r\v\f"


def expand_response_files(words: Iterable[str]) -> Iterator[str]:
    """Yield the words of a linker's command line, each `@FILE` replaced by the words in that file.

    Words in a file are separated by white space; either quote keeps white space in a word, and a backslash makes the
    next character part of a word. Like GNU ld, keeps the word of a file that cannot be read. Also keeps those of files
    that are nested too deeply or name one another too often, where GNU ld gives up. Raises nothing.
    """
    return _expanded(words, _ResponseFiles(), 0)


class _ResponseFiles:
    """Files that stand for words: each is read and split once, and all words are counted.

    Files that name one another could expand to exponentially many words.
    """

    def __init__(self) -> None:
        self._words: dict[str, tuple[str, ...]] = {}
        self._words_left = _BASE_WORDS

    def replacement(self, word: str, depth: int) -> tuple[str, ...] | None:
        """Return the words that a word beginning with `@` stands for, not expanded further; None if it stays."""
        if depth >= _MAX_DEPTH:
            return None
        words = self._words.get(word)
        if words is None:
            try:
                # File names are bytes.
                with open(word[1:], "rb") as file:
                    text = os.fsdecode(file.read(_MAX_FILE_SIZE))
            except (OSError, ValueError):
                # Also for a NUL byte in the name.
                return None
            if "\0" in text:
                return None
            words = self._words[word] = tuple(split_words(text))
            self._words_left += len(text)
        self._words_left -= 1 + len(words)
        return words if self._words_left >= 0 else None


def _expanded(words: Iterable[str], files: _ResponseFiles, depth: int) -> Iterator[str]:
    for word in words:
        inner = files.replacement(word, depth) if word.startswith("@") else None
        if inner is None:
            yield word
        else:
            yield from _expanded(inner, files, depth + 1)


def split_words(text: str) -> list[str]:
    """Split the text of a response file."""
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
