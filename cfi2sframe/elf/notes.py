# SPDX-License-Identifier: Apache-2.0
"""ELF notes of a file, of a core, or of a program in memory (gABI, "Note Section")."""

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from cfi2sframe.elf.headers import Buffer, ByteOrder

#: Notes of these owners hold no addresses, as their specifications tell: build-id, ABI, properties, package, dlopen.
_SPECIFIED_OWNERS: Final = frozenset({b"GNU\0", b"FDO\0"})
#: Owner and type of Mozilla's crash annotations, which may move: a second number is the distance of the ELF header, by
#: which readers learn how far the note is from its first place (elfhack moves it, too).
_ALLOWS_FOR_MOVES: Final = (b"mozannotation\0", 0x415A4F4D)


class Note(NamedTuple):
    """A note: its owner without the NUL, its type and its contents."""

    owner: bytes
    type: int
    data: bytes


def _notes_in(data: Buffer, byte_order: ByteOrder, alignment: int) -> Iterator[tuple[bytes, int, int, int]]:
    """Yield owner and type of each note, and where its contents are. Raises `struct.error` when one is truncated."""
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


def may_be_elsewhere(content: bytes, byte_order: ByteOrder, alignment: int, vaddr: int, image: range) -> bool:
    """Whether bytes are well-formed notes that mean the same at another address.

    Some programs leave the address of a variable in a note for their crash reporters, as its distance from the note:
    Crashpad, GWP-ASan. The readers find the note through PT_NOTE, and would find the variable elsewhere after a move.

    `alignment` and `vaddr` are those of the bytes, `image` are the addresses of the file. A number of 64 bits counts as
    a relative address when it leads from its own place to one of the image, outside of these notes.
    """
    own = range(vaddr, vaddr + len(content))
    try:
        for owner, kind, start, end in _notes_in(content, byte_order, alignment):
            if owner in _SPECIFIED_OWNERS or (owner, kind) == _ALLOWS_FOR_MOVES:
                continue
            for at in range(start, end - 7, 4):
                target = vaddr + at + struct.unpack_from(byte_order + "q", content, at)[0]
                if target in image and target not in own:
                    return False
    except struct.error:
        return False
    return True
