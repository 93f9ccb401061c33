# SPDX-License-Identifier: Apache-2.0
"""From a path, or bytes, to an image."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.records import Buffer
from cfi2sframe.errors import InputError

if TYPE_CHECKING:
    from typing import BinaryIO

    from cfi2sframe.elf.contents import FileBytes
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
    return image_of(read_file(path), path if name is None else name)


def load_open(descriptor: int, name: str) -> ElfImage:
    """Load an ELF file from an open descriptor, as `load` does from a path; closing it is the caller's business."""
    return image_of(read_open(descriptor), name)


def image_of(data: FileData, name: str) -> ElfImage:
    """Return the image of a file's bytes; those of a sparse file do not pay for its holes (see `load`)."""
    if isinstance(data, Buffer):
        return ElfImage(data, name)
    from cfi2sframe.elf.contents import FileBytes

    return ElfImage(data, name, data.budget if isinstance(data, FileBytes) else None)


#: From this size on (bytes) a file is read by ranges, since most of it is not asked for. Of a smaller one, a single
#: read costs less than several.
_LARGE_SIZE: Final = 1 << 20
#: The unit of st_blocks, in bytes.
_BLOCK_UNIT: Final = 512
_ELF_MAGIC: Final = b"\x7fELF"
_UNFOLLOWED: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def open_unfollowed(path: str, folder: int | None = None) -> int:
    """Open what was a file a moment ago, by a path that may be relative to an open folder. Raises `OSError`.

    By now it may be a symbolic link, which is not followed, or a FIFO whose writer never comes.
    """
    return os.open(path, _UNFOLLOWED, dir_fd=folder)


def read_stream(stream: BinaryIO) -> bytes:
    """Return the bytes of an ELF file that come from a pipe or a device; only the first where they are none.

    Some devices never end. Raises `OSError`.
    """
    head = stream.read(len(_ELF_MAGIC))
    return head + stream.read() if head == _ELF_MAGIC else head


def read_file(path: str) -> memoryview | FileBytes:
    """Return a file's bytes, of a large one those that are asked for. Raises `InputError` when it cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    try:
        return read_open(descriptor)
    finally:
        os.close(descriptor)


def read_open(descriptor: int) -> memoryview | FileBytes:
    """Return the bytes of an open file as `read_file` does; closing the descriptor is the caller's business."""
    try:
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_size >= _LARGE_SIZE:
            return _read_later(descriptor, status)
        with open(descriptor, "rb", closefd=False) as file:
            if not stat.S_ISREG(status.st_mode):
                return memoryview(read_stream(file))
            # What has been written by this descriptor has left it at the end.
            file.seek(0)
            return memoryview(file.read())
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None


def _read_later(descriptor: int, status: os.stat_result) -> FileBytes:
    from cfi2sframe.budget import Budget
    from cfi2sframe.elf.contents import FileBytes, OpenFile, extents_of

    size = status.st_size
    extents = extents_of(descriptor, size) if status.st_blocks * _BLOCK_UNIT < size else None
    data_size = size if extents is None else sum(end - start for start, end in extents)
    return FileBytes(OpenFile(os.dup(descriptor), Budget(data_size), extents), 0, size)
