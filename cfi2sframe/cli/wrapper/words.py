# SPDX-License-Identifier: Apache-2.0
"""What the command line of a linker or a compiler driver asks for: a link or none, and the file that it writes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.wrapper.response_files import expand_response_files

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

#: What linkers and compiler drivers write without -o.
_DEFAULT_OUTPUT: Final = "a.out"
#: GNU ld takes shorter ones for --out-implib.
_MIN_ABBREVIATION: Final = len("--outp")
#: With these a driver prints or ends before the link; with those a linker prints, or writes an index.
_NO_LINK: Final = re.compile(
    r"-[cSE]|-MM?|-###|-cc1.*|-fsyntax-only|-emit-.*|.*-header"
    r"|-?-(version|help|target-help|print-|analyze|precompile|dump(version|fullversion|machine|specs)).*"
)
_NO_OUTPUT: Final = re.compile(r"--?(version|help|target-help|print-.*)|.*thinlto-index-only.*")
#: Of a header alone a driver makes a precompiled one.
_HEADERS: Final = (".h", ".hh", ".hpp", ".hxx")


class LinkRequest(NamedTuple):
    """The file that a command line names as its output, and whether it is a link that has to write one."""

    output: str
    is_link: bool


def link_request(words: Sequence[str], *, is_driver: bool) -> LinkRequest:
    """Return what a command line of a linker, or of a compiler driver, asks for."""
    for_driver, for_linker = _sorted_words(words) if is_driver else ([], list(expand_response_files(words)))
    # A driver's own output comes before what it passes on.
    output = output_of([*for_driver, *for_linker])
    prints = any(map(_NO_LINK.fullmatch, for_driver)) or any(map(_NO_OUTPUT.fullmatch, for_linker))
    # Values of options are no inputs: files that are there have to be named.
    inputs = (word for word in (*for_driver, *for_linker) if word != output and not word.endswith(_HEADERS))
    has_input = any(word == "-" or word.startswith("-l") or os.path.isfile(word) for word in inputs)
    return LinkRequest(output, has_input and not prints)


def _sorted_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words that a driver keeps, and those that it passes to the linker."""
    for_driver: list[str] = []
    for_linker: list[str] = []
    expanded = expand_response_files(words)
    for word in expanded:
        if word in ("-Xlinker", "--for-linker"):
            for_linker += [next(expanded, "")]
        elif word.startswith("-Wl,"):
            for_linker += word.split(",")[1:]
        elif word.startswith("--for-linker="):
            for_linker += [word.partition("=")[2]]
        else:
            for_driver += [word]
    return for_driver, list(expand_response_files(for_linker))


def output_of(words: Iterable[str]) -> str:
    """Return the last output that words name, in any spelling.

    Options that take values are not known here, so that a value that looks like `-o` counts as one. The caller
    compares the file before and after the run.
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
