# SPDX-License-Identifier: Apache-2.0
"""Notes that hold an address relative to themselves, and so may not move.

Some programs leave the address of a variable in a note for their crash reporters, as its distance from the note:
Crashpad, GWP-ASan. The readers find the note through PT_NOTE, and would find the variable elsewhere after a move.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.rewrite.loader_notes import notes_in

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ByteOrder

#: Bytes of the largest section of notes that is read for such addresses.
MAX_NOTES_SIZE: Final = 1 << 12
#: Notes of these owners hold no addresses, as their specifications tell: build-id, ABI, properties, package, dlopen.
SPECIFIED_OWNERS: Final = frozenset({b"GNU\0", b"FDO\0"})
#: Owner and type of Mozilla's crash annotations, which may move: a second number is the distance of the ELF header, by
#: which readers learn how far the note is from its first place (elfhack moves it, too).
_ALLOWS_FOR_MOVES: Final = (b"mozannotation\0", 0x415A4F4D)


def may_be_elsewhere(content: bytes, order: ByteOrder, alignment: int, vaddr: int, image: range) -> bool:
    """Whether bytes are well-formed notes that mean the same at another address.

    `alignment` and `vaddr` are those of the bytes, `image` are the addresses of the file. A number of 64 bits counts as
    a relative address when it leads from its own place to one of the image, outside of these notes.
    """
    notes = notes_in(content, order, alignment)
    if notes is None:
        return False
    own = range(vaddr, vaddr + len(content))
    for note in notes:
        if note.owner in SPECIFIED_OWNERS or (note.owner, note.type) == _ALLOWS_FOR_MOVES:
            continue
        for at in range(note.content_offset, note.content_offset + len(note.content) - 7, 4):
            target = vaddr + at + struct.unpack_from(order + "q", content, at)[0]
            if target in image and target not in own:
                return False
    return True
