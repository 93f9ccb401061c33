# SPDX-License-Identifier: Apache-2.0
"""The record before the section headers of a file that has a section: what removal needs to restore the original."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.headers import FILE_HEADER_SIZE, SFRAME_NAME
from cfi2sframe.placing.movable import SectionPlace

if TYPE_CHECKING:
    from typing import TypeAlias

    from cfi2sframe.elf.contents import FileData

    #: Pieces of a file: the file offset and the bytes of each.
    OldBytes: TypeAlias = tuple[tuple[int, bytes], ...]

#: What inserting appends to the section names.
NAME: Final = SFRAME_NAME.encode() + b"\0"
_MAGIC: Final = b"c2sfundo"
#: After the parts of variable size: how many bytes and items those are, the fields of `Undo`, and the magic number.
_FIXED: Final = struct.Struct("<IIIIQQQQQ8s")
_PLACE: Final = struct.Struct("<QQQ")
#: Of a record that begins with the bytes of an old section, each with file offset and size, and with the size of all.
_MAGIC_OLD: Final = b"c2sfund2"
_OLD: Final = struct.Struct("<QQ")
_OLD_SIZE: Final = struct.Struct("<Q")


class Undo(NamedTuple):
    """What the bytes of a file with a section do not tell about the original.

    `header` is its file header, `head` are the bytes in place of the program headers and of what is near them. The
    section with the old index `n` has the new index `numbering[n]`. `places` are those of sections that moved, by old
    index. The first `kept_size` of its `file_size` bytes are still there; section headers, and section names at
    `names_file_offset` (0: they stayed), may follow. At `added_start`, `added_size` bytes were inserted or, unless
    `is_inserted`, were zeros. `old` are the bytes of another section, and of its headers, that was there.
    """

    header: bytes
    head: bytes
    numbering: tuple[int, ...]
    places: dict[int, SectionPlace]
    is_inserted: bool
    file_size: int
    kept_size: int
    names_file_offset: int
    added_start: int
    added_size: int
    old: OldBytes = ()

    def pack(self) -> bytes:
        """Return the bytes of the record, which end with its fixed part."""
        numbers = struct.pack(f"<{len(self.numbering)}H", *self.numbering)
        places = b"".join(_PLACE.pack(index, *place) for index, place in self.places.items())
        sizes = (len(self.head), len(self.numbering), len(self.places))
        old = b"".join(_OLD.pack(start, len(content)) + content for start, content in self.old)
        begin, magic = (old + _OLD_SIZE.pack(len(old)), _MAGIC_OLD) if old else (b"", _MAGIC)
        return begin + self.header + self.head + numbers + places + _FIXED.pack(*sizes, *self[4:10], magic)


def undo_of(data: FileData, end: int) -> Undo | None:
    """Return the undo record of a file, whose section headers start at the file offset `end`; None without one.

    It may be for another file: whoever restores the original by it has to see that inserting again gives the file.
    """
    if end < _FIXED.size or end > len(data):
        return None
    head_size, count, place_count, is_inserted, *sizes, magic = _FIXED.unpack(data[end - _FIXED.size : end])
    begin = end - _FIXED.size - _PLACE.size * place_count - 2 * count - head_size - FILE_HEADER_SIZE
    if magic not in (_MAGIC, _MAGIC_OLD) or begin < 0:
        return None
    old = _old_before(data, begin) if magic == _MAGIC_OLD and begin >= _OLD_SIZE.size else ()
    content = bytes(data[begin : end - _FIXED.size])
    head_end = FILE_HEADER_SIZE + head_size
    numbering = struct.unpack_from(f"<{count}H", content, head_end)
    places = {index: SectionPlace(*place) for index, *place in _PLACE.iter_unpack(content[head_end + 2 * count :])}
    header, head = content[:FILE_HEADER_SIZE], content[FILE_HEADER_SIZE:head_end]
    return Undo(header, head, numbering, places, bool(is_inserted), *sizes)._replace(old=old)


def _old_before(data: FileData, end: int) -> OldBytes:
    """Return the bytes of an old section, which a record has before a file offset."""
    position = end - _OLD_SIZE.size
    (size,) = _OLD_SIZE.unpack(data[position:end])
    content, at, found = bytes(data[max(position - size, 0) : position]), 0, []
    while at + _OLD.size <= len(content):
        start, count = _OLD.unpack_from(content, at)
        at += _OLD.size + count
        found.append((start, content[at - count : at]))
    return tuple(found)
