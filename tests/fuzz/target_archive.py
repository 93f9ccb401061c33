# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as what a user names: a static archive by its first bytes."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.abi import AMD64
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import InputError
from cfi2sframe.files.find import Unusable, find_sources
from cfi2sframe.files.read import images_of, open_source
from cfi2sframe.report.size import measure
from tests.fuzz.harness import expect
from tests.fuzz.seeds import small_object
from tests.support.archives import ar

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Images that are measured; the others are opened only.
_MEASURED: Final = 4


def run(data: bytes) -> None:
    """Open whatever a file is, and measure what is in it."""
    descriptor = os.memfd_create("archive")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        (source,) = find_sources([f"/proc/self/fd/{descriptor}"])
        if isinstance(source, Unusable):
            return
        with open_source(source) as opened:
            for number, image in enumerate(images_of(source, opened)):
                if isinstance(image, Unusable):
                    expect(bool(image.reason), "a file is unusable without a reason")
                elif number < _MEASURED:
                    with suppress(InputError):
                        measure(convert_image(image))
    finally:
        os.close(descriptor)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield an archive with a member of every kind of name."""
    content = small_object(AMD64)
    members = [
        (b"/", bytes(4)),
        (b"//", b"a-member-with-a-long-name.o/\n"),
        (b"/0", content),
        (b"#1/8", b"bsd.o\0\0\0" + content),
        (b"short.o/", b"text"),
    ]
    yield "archive", ar(members)
