# SPDX-License-Identifier: Apache-2.0
"""What a linker's command line says: its words with response files opened, and the file that it will write."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import RequestError
from cfi2sframe.files.words import ArgumentFiles

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What linkers and compiler drivers write when nothing is said.
DEFAULT_OUTPUT: Final = "a.out"
#: Response files may name others; more levels than this are a circle.
_MAX_DEPTH: Final = 32
_MIN_ABBREVIATION: Final = len("--ou")
_BLANKS: Final = " \t\n\v\f\r"


def expanded(words: Iterable[str]) -> Iterator[str]:
    """Yield the words with every `@FILE` replaced by the words in that file, as GNU programs and LLVM's do.

    A file that cannot be read leaves its word as it is: that is how GNU ld takes it. So do files that are nested too
    deeply or name one another over and over; there GNU ld gives up.
    """
    return _expanded(words, ArgumentFiles(split), 0)


def _expanded(words: Iterable[str], files: ArgumentFiles, depth: int) -> Iterator[str]:
    for word in words:
        if word.startswith("@") and depth < _MAX_DEPTH:
            try:
                inner = files.words_of(word)
            except (OSError, ValueError, RequestError):
                # A name with a NUL byte is a `ValueError`.
                yield word
            else:
                yield from _expanded(inner, files, depth + 1)
        else:
            yield word


def split(text: str) -> Iterator[str]:
    """Yield the words of a response file: parted by white space, quoted by either quote, any character by backslash."""
    word: list[str] = []
    quote = ""
    is_word = is_escaped = False
    for character in text:
        if is_escaped:
            word.append(character)
            is_escaped = False
        elif character == "\\":
            is_word = is_escaped = True
        elif quote:
            if character == quote:
                quote = ""
            else:
                word.append(character)
        elif character in "'\"":
            quote = character
            is_word = True
        elif character in _BLANKS:
            if is_word:
                yield "".join(word)
            word, is_word = [], False
        else:
            word.append(character)
            is_word = True
    if is_word:
        yield "".join(word)


def output_of(words: Sequence[str]) -> str:
    """Return the file that a linker or a compiler driver will write: the last `-o`, in any of its spellings.

    The options that take values are not known here: a value that looks like `-o` is taken for one. Whoever asks
    looks at the file before and after.
    """
    output = DEFAULT_OUTPUT
    is_next = False
    for word in expanded(words):
        if is_next:
            output, is_next = word, False
        elif word == "-o" or (len(word) >= _MIN_ABBREVIATION and "--output".startswith(word)):
            is_next = True
        elif word.startswith("--") and "=" in word:
            name, value = word.split("=", 1)
            if len(name) >= _MIN_ABBREVIATION and "--output".startswith(name):
                output = value
        elif word.startswith("-o"):
            output = word[2:]
    return output


def is_for_driver(words: Sequence[str]) -> bool:
    """Whether the words are for a compiler driver: it alone knows `-Wl,`, which rustc, CMake and others pass."""
    return any(word.startswith("-Wl,") for word in expanded(words))
