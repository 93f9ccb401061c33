# SPDX-License-Identifier: Apache-2.0
"""RPM packages: a lead, two headers, and a compressed cpio archive (the package format of rpm's documentation).

Only the length of the headers is read; the first bytes of the payload identify it.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from stat import S_ISREG
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.contents import part_of
from cfi2sframe.errors import ContainerError
from cfi2sframe.files.payload import Payload
from cfi2sframe.files.records import MAX_NAME_SIZE, Entry, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.budget import Budget
    from cfi2sframe.elf.contents import FileData

_LEAD_SIZE: Final = 96
#: A header starts with its magic number, four reserved bytes, the count of index entries and the size of its store.
_HEADER: Final = struct.Struct(">4s4xII")
_HEADER_MAGIC: Final = b"\x8e\xad\xe8\x01"
_INDEX_ENTRY_SIZE: Final = 16
_SIGNATURE_ALIGNMENT: Final = 8
_CPIO_HEADER_SIZE: Final = 110
_CPIO_MAGICS: Final = (b"070701", b"070702")
#: Thirteen numbers of eight hexadecimal digits each: mode, size of the content and size of the name are used.
_CPIO_FIELDS: Final = struct.Struct(">4xI16xI16xI4x")
_CPIO_ALIGNMENT: Final = 4
_CPIO_END: Final = b"TRAILER!!!"
#: The cost of a header in microseconds.
_STEPS_PER_HEADER: Final = 8


def payload_of_rpm(data: FileData, budget: Budget) -> Payload:
    """Return the cpio archive of a package's files. Raises `ContainerError` if there is none."""
    signature_end = _header_end(data, _LEAD_SIZE)
    start = _header_end(data, signature_end + -signature_end % _SIGNATURE_ALIGNMENT)
    return Payload(part_of(data, start, len(data)), "payload", budget)


def _header_end(data: FileData, offset: int) -> int:
    head = bytes(data[offset : offset + _HEADER.size])
    if len(head) < _HEADER.size:
        raise ContainerError("damaged package: truncated", "headers", offset)
    magic, entry_count, store_size = _HEADER.unpack(head)
    if magic != _HEADER_MAGIC:
        raise ContainerError("damaged package: no header", "headers", offset)
    end: int = offset + _HEADER.size + entry_count * _INDEX_ENTRY_SIZE + store_size
    if end > len(data):
        raise ContainerError("damaged package: truncated", "headers", offset)
    return end


def cpio_entries(payload: Payload) -> Iterator[Entry]:
    """Yield the regular files of a cpio archive in the "new ASCII" format (cpio(5)), in one pass.

    Raises `ContainerError` when it is damaged.
    """
    while True:
        header = payload.read(_CPIO_HEADER_SIZE)
        payload.budget.spend(_STEPS_PER_HEADER, "the headers of its files")
        if not header.startswith(_CPIO_MAGICS):
            what = "cpio header" if payload.position > _CPIO_HEADER_SIZE else "cpio header, or unknown compression"
            raise payload.damaged(f"damaged or unknown {what}")
        try:
            mode, size, name_size = _CPIO_FIELDS.unpack(unhexlify(header[len(_CPIO_MAGICS[0]) :]))
        except ValueError:
            raise payload.damaged("damaged cpio header") from None
        if name_size > MAX_NAME_SIZE:
            raise payload.damaged("a name is too long")
        name = payload.read(name_size).rstrip(b"\0")
        payload.skip_to(_aligned(payload.position))
        if name == _CPIO_END:
            return
        end = payload.position + size
        if S_ISREG(mode):
            yield Entry(text_of(name), size)
        payload.skip_to(_aligned(end))


def _aligned(position: int) -> int:
    return position + -position % _CPIO_ALIGNMENT
