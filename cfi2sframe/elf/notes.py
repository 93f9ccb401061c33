# SPDX-License-Identifier: Apache-2.0
"""ELF notes of a file, of a core, or of a program in memory (gABI, "Note Section")."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.headers import Buffer, ByteOrder

NT_GNU_BUILD_ID: Final = 3


class Note(NamedTuple):
    """A note: its owner without the NUL, its type and its contents."""

    owner: bytes
    type: int
    data: bytes


def parse_notes(data: Buffer, byte_order: ByteOrder, alignment: int = 4) -> Iterator[Note]:
    """Yield the notes of a segment up to the first truncated one: kernels truncate cores."""
    align = 8 if alignment == 8 else 4
    header = struct.Struct(byte_order + "III")
    position = 0
    while position + header.size <= len(data):
        name_size, data_size, note_type = header.unpack_from(data, position)
        name_offset = position + header.size
        data_offset = -(-(name_offset + name_size) // align) * align
        end = data_offset + data_size
        if end > len(data):
            return
        owner = bytes(data[name_offset : name_offset + name_size]).rstrip(b"\0")
        yield Note(owner, note_type, bytes(data[data_offset:end]))
        position = -(-end // align) * align
