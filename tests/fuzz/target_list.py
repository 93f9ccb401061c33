# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: response files that name one another, and lists of names."""

from __future__ import annotations

import os
import re
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.wrapper.words import is_for_driver, output_of
from cfi2sframe.errors import RequestError
from cfi2sframe.files.words import expand_response_files, names_from
from tests.fuzz.harness import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

#: What separates the files in an input; `@N` names number N, wherever the folder is.
_SEPARATOR: Final = b"\xff"
_COUNT: Final = 4
#: Words that files may stand for beyond their bytes, with those that are left as they are at the limit.
_WORDS: Final = 1 << 13


def run(data: bytes) -> None:
    """Expand the files, and look for a linker's output in them."""
    files = data.split(_SEPARATOR, _COUNT - 1)
    with tempfile.TemporaryDirectory() as folder:
        for number, text in enumerate(files):
            with open(f"{folder}/{number}", "wb") as file:
                file.write(re.sub(rb"@([0-3])", rb"@" + os.fsencode(folder) + rb"/\1", text))
        words = [f"@{folder}/0"]
        most = _WORDS + (len(data) + len(folder)) * 8
        with suppress(RequestError):
            names_from(f"{folder}/0")
        found = list(expand_response_files(words))
        expect(len(found) <= most, f"{len(found)} words of {len(data)} bytes")
        expect(not any("\0" in word for word in found), "a word with a NUL byte")
        output_of(words)
        is_for_driver(words)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield lists with quotes, nested ones, and those that name one another."""
    yield "words", b'one \'two words\' "three\\" " f\\ our -o out --output=x --outp y\n'
    yield "nested", b"a @1 b\xff@2 -o c\xff'@3'\xff@missing -Wl,d"
    yield "circle", b"@1 @1\xff@0 @2\xff@1"
    yield "over-and-over", b"@1 " * 20 + b"\xff" + b"@2 " * 20 + b"\xff" + b"@3 " * 20 + b"\xff" + b"word " * 20
    yield "nul", b"a\0b\0"
