# SPDX-License-Identifier: Apache-2.0
"""Read the command line of a linker or a compiler driver: whether it links, and which file it writes."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: What linkers and compiler drivers write without -o.
_DEFAULT_OUTPUT: Final = "a.out"
#: GNU ld takes shorter ones for --out-implib.
_MIN_ABBREVIATION: Final = len("--outp")
#: Words with which a driver prints, or stops before the link; and with which a linker prints, or writes an index.
_NO_LINK: Final = re.compile(
    r"-[cSE]|-MM?|-###|-cc1.*|-fsyntax-only|-emit-.*|.*-header"
    r"|-?-(version|help|target-help|print-|analyze|precompile|dump(version|fullversion|machine|specs)).*"
)
_NO_OUTPUT: Final = re.compile(r"--?(version|help|target-help|print-.*)|.*thinlto-index-only.*")
#: Headers, which a driver precompiles.
_HEADERS: Final = (".h", ".hh", ".hpp", ".hxx")
#: More levels of response files than this are a circle.
_MAX_DEPTH: Final = 32
#: Words that files may expand to, however small the files are; each byte of a file allows one more.
_BASE_WORDS: Final = 1 << 12
#: The largest file (bytes): more than any real one, because some devices never end.
_MAX_FILE_SIZE: Final = 1 << 26
_SPACE: Final = " \t\n\r\v\f"


def link_request(words: Sequence[str], *, is_driver: bool) -> tuple[str, bool]:
    """Return the output that a command line names, and whether it is a link that has to write one."""
    for_driver, for_linker = _sorted_words(words) if is_driver else ([], list(expand_response_files(words)))
    # A driver's own output comes before what it passes on.
    output = output_of([*for_driver, *for_linker])
    prints = any(map(_NO_LINK.fullmatch, for_driver)) or any(map(_NO_OUTPUT.fullmatch, for_linker))
    # A word may be the value of an option; only files that exist count as inputs.
    inputs = (word for word in (*for_driver, *for_linker) if word != output and not word.endswith(_HEADERS))
    has_input = any(word == "-" or word.startswith("-l") or os.path.isfile(word) for word in inputs)
    return output, has_input and not prints


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
    """Yield the words of a linker's command line, each `@FILE` replaced by the words in that file.

    White space separates words; either quote keeps white space in a word, and a backslash takes the next character as
    it is. As in GNU ld, the word stays if the file cannot be read; also if files nest too deeply or have too many
    words, where GNU ld gives up. Raises nothing.
    """
    files: dict[str, list[str] | None] = {}
    words_left = _BASE_WORDS
    levels = [iter(words)]
    while levels:
        word = next(levels[-1], None)
        if word is None:
            levels.pop()
            continue
        inner = None
        if word.startswith("@") and len(levels) <= _MAX_DEPTH:
            if word not in files:
                text = _text_of(word[1:])
                files[word] = None if text is None else split_words(text)
                words_left += len(text or "")
            inner = files[word]
        if inner is not None:
            words_left -= 1 + len(inner)
        if inner is None or words_left < 0:
            yield word
        else:
            levels.append(iter(inner))


def _text_of(path: str) -> str | None:
    """Return the text of a response file; None of what cannot be one."""
    try:
        # File names are bytes.
        with open(path, "rb") as file:
            text = os.fsdecode(file.read(_MAX_FILE_SIZE))
    except (OSError, ValueError):
        # Also for a NUL byte in the name.
        return None
    return None if "\0" in text else text


def split_words(text: str) -> list[str]:
    """Split the text of a response file."""
    words: list[str] = []
    word: list[str] | None = None
    quote = ""
    characters = iter(text)
    for character in characters:
        if not quote and character in _SPACE:
            if word is not None:
                words.append("".join(word))
            word = None
            continue
        word = word or []
        if character == "\\":
            word.append(next(characters, ""))
        elif character == quote:
            quote = ""
        elif not quote and character in "'\"":
            quote = character
        else:
            word.append(character)
    return words if word is None else [*words, "".join(word)]
