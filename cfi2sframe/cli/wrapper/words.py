# SPDX-License-Identifier: Apache-2.0
"""What a linker's command line asks for: the file that it writes, and whether the words are for a compiler driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.files.words import expand_response_files

if TYPE_CHECKING:
    from collections.abc import Sequence

#: What linkers and compiler drivers write without -o.
DEFAULT_OUTPUT: Final = "a.out"
_MIN_ABBREVIATION: Final = len("--ou")


def output_of(words: Sequence[str]) -> str:
    """Return the file that a linker or a compiler driver will write: the last `-o`, in any of its spellings.

    Options that take values are not known here, so that a value that looks like `-o` counts as one. The caller
    compares the file before and after the link.
    """
    output = DEFAULT_OUTPUT
    is_next = False
    for word in expand_response_files(words):
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
    return any(word.startswith("-Wl,") for word in expand_response_files(words))
