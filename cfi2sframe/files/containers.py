# SPDX-License-Identifier: Apache-2.0
"""Open a source: yield its ELF images, those of a container one at a time and all on the container's budget."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.budget import Budget
from cfi2sframe.elf.constants import SHT_NOBITS
from cfi2sframe.elf.contents import FileBytes
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import image_of, open_unfollowed, read_file, read_open, read_stream
from cfi2sframe.errors import ChangedError, InputError
from cfi2sframe.files.ar import members_of
from cfi2sframe.files.deb import payload_of_deb, tar_entries
from cfi2sframe.files.records import ELF_MAGIC, STANDARD_INPUT, Unusable
from cfi2sframe.files.rpm import cpio_entries, payload_of_rpm

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.files.payload import Payload
    from cfi2sframe.files.records import Entry, Source

#: The cost of a packaged file that compresses to almost nothing: microseconds for itself and its line of the report,
#: microseconds for a byte of CFI, and how many other bytes are read in a microsecond.
_STEPS_PER_IMAGE: Final = 300
_STEPS_PER_CFI_BYTE: Final = 1
_BYTES_PER_STEP: Final = 8
_CFI_SECTIONS: Final = (".eh_frame", ".debug_frame", ".zdebug_frame", ".gopclntab")


def open_source(source: Source) -> Iterator[ElfImage | Unusable]:
    """Yield the images of a source, or of a container's ELF members. Raises nothing but `OSError`.

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
                yield from _open_container(source, data)
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
    """Return the name of a member in reports: `libx.a(member.o)`, `x.deb(usr/bin/tool)`."""
    return f"{source.name}({member})"


def _open_container(source: Source, data: FileData) -> Iterator[ElfImage | Unusable]:
    budget = _budget_of(data)
    if source.kind == "archive":
        for member in members_of(data, budget):
            if bytes(member.data[: len(ELF_MAGIC)]) == ELF_MAGIC:
                yield _image(member_name(source, member.name), member.data, budget)
    elif source.kind == "deb":
        payload = payload_of_deb(data, budget)
        yield from _open_entries(source, payload, tar_entries(payload))
    else:
        payload = payload_of_rpm(data, budget)
        yield from _open_entries(source, payload, cpio_entries(payload))


def _budget_of(data: FileData) -> Budget:
    """Return the budget of a container; that of a large file does not count its holes."""
    return data.budget if isinstance(data, FileBytes) else Budget(len(data))


def _open_entries(source: Source, payload: Payload, entries: Iterator[Entry]) -> Iterator[ElfImage | Unusable]:
    budget = payload.budget
    for name, size in entries:
        if size < len(ELF_MAGIC):
            continue
        start = payload.read(len(ELF_MAGIC))
        if start != ELF_MAGIC:
            continue
        budget.hold(size, f"the bytes of {name}")
        budget.spend(_STEPS_PER_IMAGE + len(name) + size // _BYTES_PER_STEP, "its files")
        data = payload.read_after(start, size - len(start))
        image = _image(member_name(source, name.removeprefix("./")), data, budget)
        if isinstance(image, ElfImage):
            budget.spend(_STEPS_PER_CFI_BYTE * _cfi_size(image), "its files")
        yield image
        budget.release(size)


def _image(name: str, data: FileData, budget: Budget) -> ElfImage | Unusable:
    try:
        return ElfImage(data, name, budget)
    except InputError as error:
        return Unusable(name, error.detail, error.kind)


def _cfi_size(image: ElfImage) -> int:
    """Return the size of the CFI; of a file without section headers, the size of the file."""
    if not image.sections:
        return len(image.data)
    return sum(s.size for s in image.sections if s.name in _CFI_SECTIONS and s.type != SHT_NOBITS)
