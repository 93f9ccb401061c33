# SPDX-License-Identifier: Apache-2.0
"""Read the command line of a linker or a compiler driver: which file it writes."""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What linkers and compiler drivers write without -o.
_DEFAULT_OUTPUT: Final = "a.out"
#: GNU ld takes shorter ones for --out-implib.
_MIN_ABBREVIATION: Final = len("--outp")
#: Words with which a linker only prints, or writes an index.
_NO_OUTPUT: Final = re.compile(r"--?(version|help|target-help|print-.*)|.*thinlto-index-only.*")
#: After so many response files, GNU programs give up.
_MAX_FILES: Final = 2000
#: The largest response file (bytes): more than any real one, because some devices never end.
_MAX_FILE_SIZE: Final = 1 << 26


def must_write(words: Sequence[str]) -> bool:
    """Whether a linker with these words writes something: it has an input, and is not only asked to print."""
    expanded = list(expand_response_files(words))
    # A word may be the value of an option; only files that exist count as inputs.
    has_input = any(word.startswith("-l") or os.path.isfile(word) for word in expanded)
    return has_input and not any(map(_NO_OUTPUT.fullmatch, expanded))


def output_of_driver(words: Sequence[str]) -> str:
    """Return the output that a driver's words name: what it passes to the linker comes after its own."""
    own: list[str] = []
    passed_on: list[str] = []
    each = expand_response_files(words)
    for word in each:
        if word == "-Xlinker":
            passed_on.append(next(each, ""))
        elif word.startswith("-Wl,"):
            passed_on += word.split(",")[1:]
        else:
            own.append(word)
    return output_of([*own, *passed_on])


def output_of(words: Iterable[str]) -> str:
    """Return the last output that words name, in any spelling.

    A value of another option that looks like `-o` is taken for it; the caller checks that the file has changed.
    """
    output = _DEFAULT_OUTPUT
    each = expand_response_files(words)
    for word in each:
        name, equals, value = word.partition("=")
        is_long = len(name) >= _MIN_ABBREVIATION and "--output".startswith(name)
        if word == "-o" or (is_long and not equals):
            output = next(each, output)
        elif is_long:
            output = value
        elif word.startswith("-o"):
            output = word.removeprefix("-o")
    return output


def is_for_driver(words: Sequence[str]) -> bool:
    """Whether the words are for a compiler driver: it alone knows `-Wl,`, which rustc, CMake and others pass."""
    return any(word.startswith("-Wl,") for word in expand_response_files(words))


def expand_response_files(words: Iterable[str]) -> Iterator[str]:
    """Yield words, each `@FILE` replaced by the words in that file, as a shell would split them.

    The word stays if the file cannot be read, is one of those that it stands in, or comes after too many. Raises
    nothing.
    """
    files_left = _MAX_FILES
    levels = [("", iter(words))]
    while levels:
        word = next(levels[-1][1], None)
        if word is None:
            levels.pop()
            continue
        path = word.removeprefix("@")
        is_file = path != word and files_left > 0 and all(path != outer for outer, _ in levels)
        inner = _words_in(path) if is_file else None
        if inner is None:
            yield word
        else:
            files_left -= 1
            levels.append((path, iter(inner)))


def _words_in(path: str) -> list[str] | None:
    """Return the words in a response file; None for what cannot be one."""
    try:
        # File names are bytes.
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_MAX_FILE_SIZE))
        return None if "\0" in text else shlex.split(text)
    except (OSError, ValueError):
        # Also for a NUL byte in the name, or a quote without an end.
        return None
