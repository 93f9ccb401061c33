# SPDX-License-Identifier: Apache-2.0
"""Static archives (ar), with the long names of GNU and BSD."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.contents import part_of
from cfi2sframe.errors import ContainerError
from cfi2sframe.files.records import AR_MAGIC, MAX_NAME_SIZE, Member, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData

#: A member's header: name, times, owners and mode, decimal size, two magic bytes.
_HEADER: Final = struct.Struct("16s12s6s6s8s10s2s")
_HEADER_END: Final = b"`\n"
_NAMES: Final = b"//"
_SYMBOL_TABLES: Final = (b"/", b"/SYM64/")


def members_of(data: FileData) -> Iterator[Member]:
    """Yield the members of an archive, without its symbol and name tables.

    Raises `ContainerError` when it is damaged.
    """
    names = b""
    position = len(AR_MAGIC)
    while position + _HEADER.size <= len(data):
        raw_name, *_, raw_size, end = _HEADER.unpack(data[position : position + _HEADER.size])
        if end != _HEADER_END or not raw_size.strip().isdigit():
            raise ContainerError("damaged member header", "archive", position)
        position += _HEADER.size
        size = int(raw_size)
        if position + size > len(data):
            raise ContainerError("truncated member", "archive", position)
        content = part_of(data, position, position + size)
        name = raw_name.rstrip(b" ")
        if name == _NAMES:
            # The table may be in a hole of a sparse file.
            names = bytes(content)
        elif name not in _SYMBOL_TABLES:
            yield _member(name, content, names, position)
        position += size + size % 2


def _member(name: bytes, content: FileData, names: bytes, position: int) -> Member:
    if name.startswith(b"#1/") and name[3:].isdigit():
        length = min(int(name[3:]), len(content))
        if length > MAX_NAME_SIZE:
            raise ContainerError("a member's name is too long", "archive", position)
        name, content = bytes(content[:length]).rstrip(b"\0"), part_of(content, length, len(content))
    elif name.startswith(b"/") and name[1:].isdigit():
        start = int(name[1:])
        end = names.find(b"\n", start, start + MAX_NAME_SIZE)
        if end < 0:
            raise ContainerError("a member's name is too long, or not in the table of names", "archive", position)
        name = names[start:end]
    # Many members may refer to one name in the table; each gets a string of its own.
    return Member(text_of(name.removesuffix(b"/")), content)
