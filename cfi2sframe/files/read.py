# SPDX-License-Identifier: Apache-2.0
"""Open a source: yield its ELF images, those of a static archive (ar, with the long names of GNU and BSD) one by one.

An archive is one input to the limits of time and memory (`cfi2sframe.guard`), by its size on disk.
"""

from __future__ import annotations

import os
import stat
import struct
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import ELF_MAGIC
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import open_unfollowed, read_file, read_open, read_stream
from cfi2sframe.errors import ChangedError, ContainerError, InputError
from cfi2sframe.files.find import AR_MAGIC, STANDARD_INPUT, Unusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.files.find import Source

#: A member's header: name, times, owners and mode, decimal size, two magic bytes.
_HEADER: Final = struct.Struct("16s12s6s6s8s10s2s")
_HEADER_END: Final = b"`\n"
_NAMES: Final = b"//"
_SYMBOL_TABLES: Final = (b"/", b"/SYM64/")
#: No file has a longer name (bytes): PATH_MAX, with the terminating NUL byte.
_MAX_NAME_SIZE: Final = 4096


@contextmanager
def open_source(source: Source) -> Iterator[FileData]:
    """Give the bytes of a source; leaving the context closes its file. Raises `InputError`, `OSError`."""
    if source.is_in_folder:
        data: FileData = _read_unfollowed(source.path)
    else:
        data = read_stream(sys.stdin.buffer) if source.path == STANDARD_INPUT else read_file(source.path)
    try:
        yield data
    finally:
        if not isinstance(data, Buffer):
            data.close()


def _read_unfollowed(path: str) -> FileData:
    """Return the bytes of a file found in a folder. Raises `InputError` when something else has its name now."""
    try:
        descriptor = open_unfollowed(path)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ChangedError("no longer a regular file")
        return read_open(descriptor)
    finally:
        os.close(descriptor)


def images_of(source: Source, data: FileData) -> Iterator[ElfImage | Unusable]:
    """Yield the image of a source that is an ELF file, or those of an archive's ELF members.

    The caller should be done with an image before it asks for the next. Raises nothing but `CostError`.
    """
    if source.kind == "elf":
        yield _image(source.name, data)
        return
    try:
        for name, member in members_of(data):
            if member[: len(ELF_MAGIC)] == ELF_MAGIC:
                yield _image(f"{source.name}({name})", member)
    except InputError as error:
        yield Unusable(source.name, error.detail, error.kind)


def _image(name: str, data: FileData) -> ElfImage | Unusable:
    try:
        return ElfImage(data, name)
    except InputError as error:
        return Unusable(name, error.detail, error.kind)


def members_of(data: FileData) -> Iterator[tuple[str, Buffer]]:
    """Yield the names and bytes of an archive's members, without its tables. Raises `ContainerError` when damaged."""
    names = b""
    position = len(AR_MAGIC)
    while position + _HEADER.size <= len(data):
        name, *_, raw_size, end = _HEADER.unpack(data[position : position + _HEADER.size])
        if end != _HEADER_END or not raw_size.strip().isdigit():
            raise ContainerError("damaged member header", "archive", position)
        position += _HEADER.size
        size = int(raw_size)
        if position + size > len(data):
            raise ContainerError("truncated member", "archive", position)
        content = data[position : position + size]
        name = name.rstrip(b" ")
        if name == _NAMES:
            names = bytes(content)
        elif name not in _SYMBOL_TABLES:
            yield _member(name, content, names, position)
        position += size + size % 2


def _member(name: bytes, content: Buffer, names: bytes, position: int) -> tuple[str, Buffer]:
    if name.startswith(b"#1/") and name[3:].isdigit():
        length = min(int(name[3:]), len(content))
        if length > _MAX_NAME_SIZE:
            raise ContainerError("a member's name is too long", "archive", position)
        name, content = bytes(content[:length]).rstrip(b"\0"), content[length:]
    elif name.startswith(b"/") and name[1:].isdigit():
        start = int(name[1:])
        end = names.find(b"\n", start, start + _MAX_NAME_SIZE)
        if end < 0:
            raise ContainerError("a member's name is too long, or not in the table of names", "archive", position)
        name = names[start:end]
    # Many members may refer to one name in the table; each gets a string of its own.
    return name.removesuffix(b"/").decode("utf-8", "backslashreplace"), content
