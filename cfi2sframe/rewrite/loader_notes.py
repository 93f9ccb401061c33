# SPDX-License-Identifier: Apache-2.0
"""Notes for which a loader may refuse a program.

glibc for x86-64 refuses a program when a property note in a PT_NOTE requires a newer processor, whatever the notes in
PT_GNU_PROPERTY require; and glibc refuses a library for another system (NT_GNU_ABI_TAG). So only a PT_NOTE whose notes
require nothing may be added or dropped.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ByteOrder

_OWNER: Final = b"GNU\0"
_NT_GNU_ABI_TAG: Final = 1
_NT_GNU_BUILD_ID: Final = 3
_NT_GNU_PROPERTY_TYPE_0: Final = 5
_PROPERTY_ALIGNMENT: Final = 8
_X86_ISA_1_NEEDED: Final = 0xC0008002
_X86_ISA_1_BASELINE: Final = 1
_MAX_LINUX_VERSION: Final = 6


class LoaderNote(NamedTuple):
    """A note; `owner` includes the NUL, `content` is the descriptor, `raw` the whole entry with its padding.

    `content_offset` is the descriptor's offset in the bytes that were read.
    """

    owner: bytes
    type: int
    content: bytes
    raw: bytes
    content_offset: int

    @property
    def identity(self) -> tuple[bytes, int, bytes]:
        """The note without its padding, for comparisons."""
        return self.owner, self.type, self.content

    @property
    def is_build_id(self) -> bool:
        """Whether this is the build-id."""
        return self.owner == _OWNER and self.type == _NT_GNU_BUILD_ID


def notes_in(data: bytes, order: ByteOrder, alignment: int) -> list[LoaderNote] | None:
    """Return the notes of a segment or section; None when the last one is truncated.

    `alignment` is that of the segment or section: with 8, property notes are aligned to 8 bytes; all others to 4.
    """
    found = []
    position = 0
    while position < len(data):
        if position + 12 > len(data):
            return None
        owner_size, size, kind = struct.unpack_from(order + "III", data, position)
        unit = 8 if alignment == _PROPERTY_ALIGNMENT and kind == _NT_GNU_PROPERTY_TYPE_0 else 4
        start = position + _padded(12 + owner_size, unit)
        end = start + size
        if end > len(data):
            return None
        following = min(start + _padded(size, unit), len(data))
        owner = data[position + 12 : position + 12 + owner_size]
        found.append(LoaderNote(owner, kind, data[start:end], data[position:following], start))
        position = following
        if alignment == _PROPERTY_ALIGNMENT and position % 8 and not any(data[position : position + 4]):
            position += 4
    return found


def _padded(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def require_nothing(data: bytes, order: ByteOrder, alignment: int) -> bool:
    """Whether bytes are well-formed notes, none of which makes a loader refuse the program."""
    notes = notes_in(data, order, alignment)
    return notes is not None and all(_requires_nothing(note, order) for note in notes)


def _requires_nothing(note: LoaderNote, order: ByteOrder) -> bool:
    if note.owner != _OWNER:
        return True
    if note.type == _NT_GNU_PROPERTY_TYPE_0:
        return _properties_require_nothing(note.content, order)
    if note.type == _NT_GNU_ABI_TAG:
        if len(note.content) != 16:
            return False
        system, version, _, _ = struct.unpack(order + "IIII", note.content)
        return bool(system == 0 and version <= _MAX_LINUX_VERSION)
    return True


def _properties_require_nothing(content: bytes, order: ByteOrder) -> bool:
    position, last = 0, -1
    while position < len(content):
        if position + 8 > len(content):
            return False
        kind, size = struct.unpack_from(order + "II", content, position)
        end = position + 8 + size
        if kind <= last or end > len(content):
            return False
        if kind == _X86_ISA_1_NEEDED:
            value = content[position + 8 : end]
            if size != 4 or int.from_bytes(value, "little") & ~_X86_ISA_1_BASELINE:
                return False
        last, position = kind, position + 8 + _padded(size, 8)
    return True
