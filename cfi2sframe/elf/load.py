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

    from cfi2sframe.elf.records import FileData


def load(source: str | os.PathLike[str] | bytes, name: str | None = None) -> ElfImage:
    """Load an ELF file from a path, or from its bytes. `name` is what messages call it.

    A large file stays open while the image lives, and is read when bytes of it are asked for; `ChangedError` says then
    that it has become shorter. Raises `InputError` when the file cannot be read or is no ELF file that SFrame is
    defined for.
    """
    if isinstance(source, bytes):
        return ElfImage(source, name or "<bytes>")
    path = os.fspath(source)
    return ElfImage(read_file(path), path if name is None else name)


#: From this size on (bytes) a file is read by ranges, since most of it is not asked for. Of a smaller one, a single
#: read costs less than several.
_LARGE_SIZE: Final = 1 << 20
_ELF_MAGIC: Final = b"\x7fELF"


def read_stream(stream: BinaryIO) -> bytes:
    """Return the bytes of an ELF file that come from a pipe or a device; only the first where they are none.

    Some devices never end. Raises `OSError`.
    """
    head = stream.read(len(_ELF_MAGIC))
    return head + stream.read() if head == _ELF_MAGIC else head


def read_file(path: str) -> FileData:
    """Return a file's bytes, of a large one those that are asked for. Raises `InputError` when it cannot be read."""
    try:
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                return memoryview(read_stream(file))
            if status.st_size < _LARGE_SIZE:
                return memoryview(file.read())
            from cfi2sframe.elf.contents import FileBytes, OpenFile

            return FileBytes(OpenFile(os.dup(file.fileno())), 0, status.st_size)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
