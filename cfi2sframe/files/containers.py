# SPDX-License-Identifier: Apache-2.0
"""Open a source: yield its ELF images, those of an archive one at a time one in memory at a time."""

from __future__ import annotations

import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import image_of, open_unfollowed, read_file, read_open, read_stream
from cfi2sframe.errors import ChangedError, InputError
from cfi2sframe.files.ar import members_of
from cfi2sframe.files.records import ELF_MAGIC, STANDARD_INPUT, Unusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.files.records import Source


@contextmanager
def open_source(source: Source) -> Iterator[FileData]:
    """Give the bytes of a source; leaving the context closes its file. Raises `InputError`, `OSError`."""
    data = _read(source) if source.kind == "elf" else read_file(source.path)
    try:
        yield data
    finally:
        if not isinstance(data, Buffer):
            data.close()


def images_of(source: Source, data: FileData) -> Iterator[ElfImage | Unusable]:
    """Yield the image of a source that is an ELF file, or those of an archive's ELF members.

    The caller should be done with an image before it asks for the next. Raises nothing but `CostError`.
    """
    try:
        if source.kind == "elf":
            yield image_of(data, source.name)
        else:
            yield from _open_archive(source, data)
    except InputError as error:
        yield Unusable(source.name, error.detail, error.kind)


def _read(source: Source) -> FileData:
    if source.is_in_folder:
        return _read_unfollowed(source.path)
    return read_stream(sys.stdin.buffer) if source.path == STANDARD_INPUT else read_file(source.path)


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


def member_name(source: Source, member: str) -> str:
    """Return the name of a member in reports: `libx.a(member.o)`."""
    return f"{source.name}({member})"


def _open_archive(source: Source, data: FileData) -> Iterator[ElfImage | Unusable]:
    for member in members_of(data):
        if bytes(member.data[: len(ELF_MAGIC)]) == ELF_MAGIC:
            yield _image(member_name(source, member.name), member.data)


def _image(name: str, data: FileData) -> ElfImage | Unusable:
    try:
        return ElfImage(data, name)
    except InputError as error:
        return Unusable(name, error.detail, error.kind)
