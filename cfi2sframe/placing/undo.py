# SPDX-License-Identifier: Apache-2.0
"""The record before the section headers of a file that has a section: what removal needs to restore the original."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.headers import FILE_HEADER_SIZE

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData

_MAGIC: Final = b"c2sfundo"
#: After the bytes of variable size: how many those are, the fields of `Undo`, and the magic number.
_FIXED: Final = struct.Struct("<IIQQQQ8s")


class Undo(NamedTuple):
    """What the bytes of a converted file do not tell about the original.

    `header` is its file header, `head` are the bytes in place of the program headers and of what is near them. The
    section with the old index `n` has the new index `numbering[n]`. `file_size` counts its bytes. At `added_start` (a
    file offset), `added_size` bytes were inserted or, unless `is_inserted`, were zeros.
    """

    header: bytes
    head: bytes
    numbering: tuple[int, ...]
    file_size: int
    added_start: int
    added_size: int
    is_inserted: bool

    def pack(self) -> bytes:
        """Return the bytes of the record, which end with its fixed part."""
        numbers = struct.pack(f"<{len(self.numbering)}H", *self.numbering)
        numbers += _FIXED.pack(
            len(self.head),
            len(self.numbering),
            self.file_size,
            self.added_start,
            self.added_size,
            self.is_inserted,
            _MAGIC,
        )
        return self.header + self.head + numbers


def undo_of(data: FileData, end: int) -> Undo | None:
    """Return the undo record of a file, whose section headers start at the file offset `end`; None without one."""
    if end < _FIXED.size or end > len(data):
        return None
    head_size, count, size, start, added, is_inserted, magic = _FIXED.unpack(data[end - _FIXED.size : end])
    begin = end - _FIXED.size - 2 * count - head_size - FILE_HEADER_SIZE
    if magic != _MAGIC or begin < 0:
        return None
    content = bytes(data[begin : end - _FIXED.size])
    numbering = struct.unpack(f"<{count}H", content[FILE_HEADER_SIZE + head_size :])
    head = content[FILE_HEADER_SIZE : FILE_HEADER_SIZE + head_size]
    return Undo(content[:FILE_HEADER_SIZE], head, numbering, size, start, added, bool(is_inserted))
