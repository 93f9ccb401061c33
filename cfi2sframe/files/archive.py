# SPDX-License-Identifier: Apache-2.0
"""Static archives: where their members are (ar(5), in GNU's form)."""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC: Final = b"!<arch>\n"
_DEBIAN_PACKAGE: Final = MAGIC + b"debian-binary"
_HEADER_SIZE: Final = 60
_END: Final = b"`\n"
#: Tables of GNU: symbols, symbols with 64-bit offsets, names.
_TABLES: Final = (b"/", b"/SYM64/", b"//")


def is_archive(start: bytes) -> bool:
    """Whether a file that begins so is an archive of objects."""
    return start.startswith(MAGIC) and not start.startswith(_DEBIAN_PACKAGE)


def members_of(file: BinaryIO) -> Iterator[tuple[str, int, int]]:
    """Yield the name, the offset and the size of each member that is no table. Raises `ValueError` for damage."""
    names, offset, end = b"", len(MAGIC), file.seek(0, 2)
    while offset < end:
        file.seek(offset)
        header = file.read(_HEADER_SIZE)
        if len(header) < _HEADER_SIZE or header[58:] != _END or not header[48:58].strip().isdigit():
            raise ValueError(f"no archive member at 0x{offset:x}")
        name, start, size = header[:16].rstrip(), offset + _HEADER_SIZE, int(header[48:58])
        if start + size > end:
            raise ValueError(f"truncated: the archive member at 0x{offset:x} reaches past the end")
        offset = start + size + size % 2
        if name == b"//":
            names = file.read(size)
        if name in _TABLES:
            continue
        if name[:1] == b"/" and name[1:].isdigit():
            name = names[int(name[1:]) :].partition(b"\n")[0]
        yield name.removesuffix(b"/").decode(errors="surrogateescape"), start, size
