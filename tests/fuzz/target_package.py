# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a static archive, a Debian or an RPM package, by their first bytes."""

from __future__ import annotations

import bz2
import os
from typing import TYPE_CHECKING, Final

from cfi2sframe.arch import AMD64
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.files import Unusable, find_sources, open_source
from cfi2sframe.report.size.measure import measure
from tests.fuzz.harness import expect
from tests.fuzz.seeds import linked_file, small_object
from tests.support import package_files as make

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Images that are measured; the others are opened only.
_MEASURED: Final = 4


def run(data: bytes) -> None:
    """Open whatever a file is, and measure what is in it."""
    descriptor = os.memfd_create("package")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        (source,) = find_sources([f"/proc/self/fd/{descriptor}"])
        if isinstance(source, Unusable):
            return
        for number, image in enumerate(open_source(source)):
            if isinstance(image, Unusable):
                expect(bool(image.reason), "a file is unusable without a reason")
            elif number < _MEASURED:
                try:
                    measure(image)
                except Cfi2SFrameError:
                    continue
    finally:
        os.close(descriptor)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield every kind of container, few of them compressed: mutations rarely survive decompression."""
    files = {"./usr/lib/x.so": linked_file(AMD64), "./usr/share/doc/x": b"text"}
    tar, cpio = make.tar(files), make.cpio(files)
    yield "deb", make.deb(tar)
    yield "deb-gzip", make.deb(make.stored_gzip(tar), ".gz")
    yield "deb-bzip2", make.deb(bz2.compress(tar), ".bz2")
    yield "deb-zstd", make.deb(make.stored_zstd(tar), ".zst")
    yield "deb-long-names", make.deb(_long_names())
    yield "rpm", make.rpm(cpio)
    yield "rpm-gzip", make.rpm(make.stored_gzip(cpio))
    yield "rpm-bzip2", make.rpm(bz2.compress(cpio))
    yield "archive", _archive()


def _long_names() -> bytes:
    content = b"\x7fELF\x02\x01\x01" + bytes(57)
    extended = b"22 path=./usr/lib/z.so\n"
    extended = b"%d%s" % (len(extended), extended[2:])
    return b"".join(
        (
            make.tar_header(b"././@LongLink", 13, b"L") + make.tar_padded(b"./usr/lib/y.so"),
            make.tar_header(b"./short", len(content)) + make.tar_padded(content),
            make.tar_header(b"./pax", len(extended), b"x") + make.tar_padded(extended),
            make.tar_header(b"./short", len(content)) + make.tar_padded(content),
            make.tar_header(b"name", 4, more=b"ustar\x0000" + bytes(80) + b"prefix") + make.tar_padded(b"text"),
            make.tar_header(b"./last", 1 << 40),
        )
    )


def _archive() -> bytes:
    content = small_object(AMD64)
    members = [
        (b"/", bytes(4)),
        (b"//", b"a-member-with-a-long-name.o/\n"),
        (b"/0", content),
        (b"#1/8", b"bsd.o\0\0\0" + content),
        (b"short.o/", b"text"),
    ]
    return make.ar(members)
