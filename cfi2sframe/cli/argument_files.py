# SPDX-License-Identifier: Apache-2.0
"""Arguments that stand in files: `@LIST`, as GNU programs read it, and lists of names that end with a NUL byte."""

from __future__ import annotations

import os
import sys
from typing import Final

from cfi2sframe.errors import RequestError

#: Files that name themselves, directly or not, come to an end.
_MAX_DEPTH: Final = 16
_SPACE: Final = " \t\n\r\v\f"


def expand(words: list[str], depth: int = 0) -> list[str]:
    """Put the words of each file LIST in the place of `@LIST`; a word stays as it is when there is no such file.

    Words in a file are separated by white space; quotes of either kind hold white space together, and a backslash takes
    any character as it is. Raises `RequestError` when files are nested too deeply or one cannot be read.
    """
    expanded: list[str] = []
    for word in words:
        if not word.startswith("@") or not os.path.lexists(word[1:]):
            expanded.append(word)
            continue
        if depth >= _MAX_DEPTH:
            raise RequestError(f"{word}: argument files are nested too deeply")
        try:
            # Names of files are bytes.
            with open(word[1:], "rb") as file:
                text = os.fsdecode(file.read())
        except OSError as error:
            raise RequestError(f"{word}: {error.strerror or error}") from None
        expanded += expand(split_words(text), depth + 1)
    return expanded


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


def names_from(path: str) -> list[str]:
    """Return the names in a list, each ended by a NUL byte (as `find -print0` does it); `-` is standard input.

    Raises `OSError` when it cannot be read, `RequestError` when its names are obviously separated by something else.
    """
    if path == "-":
        data = sys.stdin.buffer.read()
    else:
        with open(path, "rb") as file:
            data = file.read()
    names = [os.fsdecode(name) for name in data.split(b"\0") if name]
    if b"\0" not in data and b"\n" in data:
        raise RequestError(
            f"--files-from {path}: names are to end with NUL bytes, as with find -print0, not with lines"
        )
    return names
