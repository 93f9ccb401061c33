# SPDX-License-Identifier: Apache-2.0
"""Open a source: yield its ELF images, those of an archive one at a time and all on the archive's budget."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from cfi2sframe.budget import Budget
from cfi2sframe.elf.contents import FileBytes
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


def open_source(source: Source) -> Iterator[ElfImage | Unusable]:
    """Yield the images of a source, or of an archive's ELF members. Raises nothing but `OSError`.

    The caller must be done with an image before it asks for the next: that closes the file.
    """
    try:
        if source.kind == "elf":
            image = image_of(_read(source), source.name)
            try:
                yield image
            finally:
                image.close()
        else:
            data = read_file(source.path)
            try:
                yield from _open_archive(source, data)
            finally:
                if not isinstance(data, Buffer):
                    data.close()
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
    # The budget of a large file does not count its holes.
    budget = data.budget if isinstance(data, FileBytes) else Budget(len(data))
    for member in members_of(data, budget):
        if bytes(member.data[: len(ELF_MAGIC)]) == ELF_MAGIC:
            yield _image(member_name(source, member.name), member.data, budget)


def _image(name: str, data: FileData, budget: Budget) -> ElfImage | Unusable:
    try:
        return ElfImage(data, name, budget)
    except InputError as error:
        return Unusable(name, error.detail, error.kind)
