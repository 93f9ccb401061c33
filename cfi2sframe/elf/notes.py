# SPDX-License-Identifier: Apache-2.0
"""ELF notes of a file, of a core, or of a program in memory (gABI, "Note Section")."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from cfi2sframe.elf.headers import Buffer, ByteOrder

#: Owners of the notes that toolchains write: build-id, ABI, properties, gold's version; Go's build ID. Their readers
#: find them by PT_NOTE or by the section's name.
_TOOLS: Final = frozenset({b"GNU\0", b"Go\0\0"})
#: Owners of notes that programs read, too: package and dlopen metadata (FDO), Mozilla's crash annotations. None points
#: relative to itself: Mozilla's hold their distance from the ELF header, since elfhack moves them.
_PROGRAMS: Final = frozenset({b"FDO\0", b"mozannotation\0"})


class Note(NamedTuple):
    """A note: its owner without the NUL, its type and its contents."""

    owner: bytes
    type: int
    data: bytes


def _notes_in(data: Buffer, byte_order: ByteOrder, alignment: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield each note's owner and type, and the start and end of its data. Raises `struct.error` at a truncated one."""
    position, unit = 0, 8 if alignment == 8 else 4
    while position < len(data):
        owner_size, size, kind = struct.unpack_from(byte_order + "III", data, position)
        start = -(-(position + 12 + owner_size) // unit) * unit
        if start + size > len(data):
            raise struct.error("truncated")
        yield bytes(data[position + 12 : position + 12 + owner_size]), kind, start, start + size
        position = -(-(start + size) // unit) * unit


def parse_notes(data: Buffer, byte_order: ByteOrder, alignment: int = 4) -> Iterator[Note]:
    """Yield the notes of a segment up to the first truncated one: kernels truncate cores."""
    with suppress(struct.error):
        for owner, kind, start, end in _notes_in(data, byte_order, alignment):
            yield Note(owner.rstrip(b"\0"), kind, bytes(data[start:end]))


def are_of_tools(content: bytes, byte_order: ByteOrder, alignment: int) -> bool | None:
    """Return True for whole notes that toolchains write, False if programs read some too, None for any other owner.

    `alignment` is that of the bytes. Notes of both kinds mean the same at another address. Those of other owners may
    not: programs leave the distance of a variable in a note for their crash reporters (Crashpad, GWP-ASan).
    """
    try:
        owners = {owner for owner, *_ in _notes_in(content, byte_order, alignment)}
    except struct.error:
        return None
    return owners <= _TOOLS if owners <= _TOOLS | _PROGRAMS else None
