# SPDX-License-Identifier: Apache-2.0
"""Read the command line of a linker or a compiler driver: the name of the file that it writes."""

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

#: The output of linkers and compiler drivers without -o.
_DEFAULT_OUTPUT: Final = "a.out"
#: GNU ld takes shorter ones for --out-implib.
_MIN_ABBREVIATION: Final = len("--outp")
#: Words with which a linker only prints, or writes an index.
_NO_OUTPUT: Final = re.compile(r"--?(version|help|target-help|print-.*)|.*thinlto-index-only.*")
#: GNU programs give up after this many response files.
_MAX_FILES: Final = 2000
#: The bytes and the words of all response files: more than any real link has. Some devices never end, and a few files
#: that name one another stand for any number of words.
_MAX_SIZE: Final = 1 << 24
_MAX_WORDS: Final = 1 << 20
#: A space between words, or a part of a word: plain, escaped, or quoted either way.
_PART: Final = re.compile(
    r"""[ \t\r\n]++|(?P<plain>[^ \t\r\n'"\\]++)|\\(?P<escaped>.)|'(?P<raw>[^']*+)'|"(?P<quoted>(?:[^"\\]++|\\.)*+)\"""",
    re.DOTALL,
)


def must_write(words: Sequence[str]) -> bool:
    """Return whether a linker with these words writes a file: it has an input, and is not only asked to print."""
    expanded = list(expand_response_files(words))
    # A word may be the value of an option; only files that exist count as inputs.
    has_input = any(word.startswith("-l") or os.path.isfile(word) for word in expanded)
    return has_input and not any(map(_NO_OUTPUT.fullmatch, expanded))


def output_of_driver(words: Sequence[str]) -> str:
    """Return the output that a driver's words name: what it passes to the linker comes after its own."""
    own: list[str] = []
    passed_on: list[str] = []
    expanded = expand_response_files(words)
    for word in expanded:
        if word == "-Xlinker":
            passed_on.append(next(expanded, ""))
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
    expanded = expand_response_files(words)
    for word in expanded:
        name, equals, value = word.partition("=")
        is_long = len(name) >= _MIN_ABBREVIATION and "--output".startswith(name)
        if word == "-o" or (is_long and not equals):
            output = next(expanded, output)
        elif is_long:
            output = value
        elif word.startswith("-o"):
            output = word.removeprefix("-o")
    return output


def is_for_driver(words: Sequence[str]) -> bool:
    """Return whether the words are for a compiler driver: it alone knows `-Wl,`, which rustc, CMake and others pass."""
    return any(word.startswith("-Wl,") for word in expand_response_files(words))


def expand_response_files(words: Iterable[str]) -> Iterator[str]:
    """Yield words, each `@FILE` replaced by the words in that file, as a shell would split them.

    The word stays if the file cannot be read, is one of those that it stands in, or comes after too many files, bytes
    or words. Raises nothing.
    """
    files_left, size_left, words_left = _MAX_FILES, _MAX_SIZE, _MAX_WORDS
    levels = [("", iter(words))]
    outer = {""}
    while levels:
        word = next(levels[-1][1], None)
        if word is None:
            outer.remove(levels.pop()[0])
            continue
        path = word.removeprefix("@")
        text = _text_of(path, size_left) if path != word and files_left > 0 and path not in outer else None
        inner = None if text is None else split_words(text)
        if text is not None:
            files_left -= 1
            size_left -= len(text)
            words_left -= len(inner or ())
        if size_left < 0 or words_left < 0:
            files_left, inner = 0, None
        if inner is None:
            yield word
        else:
            outer.add(path)
            levels.append((path, iter(inner)))


def _text_of(path: str, max_size: int) -> str | None:
    """Return a response file, or more than `max_size` bytes of a longer one; None if it cannot be read."""
    try:
        # File names are bytes.
        with open(path, "rb") as file:
            return os.fsdecode(file.read(max_size + 1))
    except (OSError, ValueError):
        # Also for a NUL byte in the name.
        return None


def split_words(text: str) -> list[str] | None:
    """Split a text as `shlex.split` does, in linear time; None if a quote has no end, or for a NUL byte."""
    if "\0" in text:
        return None
    words: list[str] = []
    parts: list[str] | None = None
    end = 0
    for match in _PART.finditer(text):
        if match.start() != end:
            return None
        end = match.end()
        kind = match.lastgroup
        if kind is not None:
            part = match[kind]
            parts = [] if parts is None else parts
            parts.append(re.sub(r'\\(["\\])', r"\1", part) if kind == "quoted" else part)
        elif parts is not None:
            words.append("".join(parts))
            parts = None
    if parts is not None:
        words.append("".join(parts))
    return words if end == len(text) else None
