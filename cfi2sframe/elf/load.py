# SPDX-License-Identifier: Apache-2.0
"""From a path, or bytes, to an image."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from typing import BinaryIO

    from cfi2sframe.elf.records import Buffer


def load(source: str | os.PathLike[str] | bytes, name: str | None = None) -> ElfImage:
    """Load an ELF file from a path, or from its bytes. `name` is what messages call it.

    A large file is mapped, not read, and must not be truncated while it is in use. Raises `InputError` when the file
    cannot be read or is no ELF file that SFrame is defined for.
    """
    if isinstance(source, bytes):
        return ElfImage(source, name or "<bytes>")
    path = os.fspath(source)
    return ElfImage(map_file(path), path if name is None else name)


#: From this size on (bytes) a file is mapped. A smaller one is read: whoever truncates a mapped file while it is
#: looked at ends the process with SIGBUS.
_MAPPED_FROM: Final = 1 << 24
_ELF_MAGIC: Final = b"\x7fELF"


def read_stream(stream: BinaryIO) -> bytes:
    """Return the bytes of an ELF file that come from a pipe or a device; only the first where they are none.

    Some devices never end. Raises `OSError`.
    """
    head = stream.read(len(_ELF_MAGIC))
    return head + stream.read() if head == _ELF_MAGIC else head


def map_file(path: str) -> Buffer:
    """Return a file's bytes, mapped if there are many. Raises `InputError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return memoryview(read_stream(file))
            if status.st_size < _MAPPED_FROM:
                return memoryview(file.read())
            import mmap

            try:
                # A memory map is a buffer in all that matters here; its type is just not one of the named ones.
                return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
            except (OSError, ValueError):
                return file.read()
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
