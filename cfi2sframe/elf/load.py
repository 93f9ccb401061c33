# SPDX-License-Identifier: Apache-2.0
"""Load an ELF file, however a caller names it; read the bytes of paths, open descriptors and pipes."""

import errno
import os
import stat
import sys
from typing import BinaryIO, Final

from cfi2sframe.constants.elf import ELF_MAGIC
from cfi2sframe.constants.perf import PERF_MAGICS
from cfi2sframe.constants.sframe import SFRAME_MAGIC
from cfi2sframe.elf.contents import FileBytes, FileData, LazyBytes, OpenFile, part_of
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import InputError, RequestError, check_type, checked_path, naming_path, with_file_name

#: A file as callers of the library name it: its path, its bytes, the file opened for reading bytes, or its image.
File = str | os.PathLike[str] | bytes | bytearray | memoryview | LazyBytes | BinaryIO | ElfImage


def load(source: File, name: str | None = None) -> ElfImage:
    """Load an ELF file from its path, its bytes or an open binary file; an image is returned as it is.

    `name` is its name in messages. A large file at a path is read on demand and stays open as long as the image exists;
    reading it raises `ChangedError` when it was truncated meanwhile. Raises `OSError` when the file cannot be opened or
    read, `ElfError` when it is no ELF file that SFrame is defined for, and `RequestError` when `source` is no file.
    """
    if isinstance(source, ElfImage):
        return source
    data, shown = content_of(source, name)
    shown = shown or "<bytes>"
    with with_file_name(shown):
        return ElfImage(data, shown)


def content_of(source: File, name: str | None = None) -> tuple[FileData, str]:
    """Return the bytes of a file, and its name in messages, empty for bytes. Raises `OSError`, `RequestError`."""
    if isinstance(source, ElfImage):
        return source.data, name or source.name
    if isinstance(source, LazyBytes):
        return source, name or ""
    if isinstance(source, Buffer):
        # A copy, since the caller may change its buffer.
        return bytes(source), name or ""
    if isinstance(source, str | os.PathLike):
        path = checked_path(source)
        return read_file(path), path if name is None else name
    way_out = "give a path, bytes, or a file that is open for reading bytes"
    if not callable(getattr(source, "read", None)):
        raise RequestError(f"not a file: {type(source).__name__}; {way_out}")
    shown = name or str(getattr(source, "name", "<file>"))
    try:
        if source.seekable():
            source.seek(0)
        content = source.read()
    except ValueError as error:
        raise RequestError(str(error), file=shown) from None
    check_type(content, bytes, "the bytes of a file", way_out)
    return content, shown


def stored_size(data: FileData) -> int:
    """Return how many of a file's bytes are stored: all but those of holes."""
    return len(data) if isinstance(data, Buffer) else getattr(data, "stored_size", len(data))


#: Files of this many bytes or more are read on demand, since most of their bytes are not needed. For smaller ones, a
#: single read costs less than several.
_LARGE_SIZE: Final = 1 << 20
#: The unit of st_blocks, in bytes.
_BLOCK_UNIT: Final = 512
_SFRAME_MAGICS: Final = (SFRAME_MAGIC.to_bytes(2, "little"), SFRAME_MAGIC.to_bytes(2, "big"))
#: Opens the path alone; 0 where the system has no such flag. PyPy 7.3 lacks the name only; the number is that of all
#: machines that SFrame is defined for.
PATH_ONLY: Final[int] = getattr(os, "O_PATH", 0o10000000 if sys.platform == "linux" else 0)
#: A FIFO must not block, and a terminal must not become this process's.
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
#: The directory in which the kernel lists the open descriptors of this process.
DESCRIPTORS: Final = "/proc/self/fd"
#: As many links as Linux follows.
_MAX_LINKS: Final = 40


def open_unfollowed(path: str, folder: int | None = None) -> int:
    """Open a path, which may be relative to an open folder, for reading. Raises `OSError`.

    The caller has seen a regular file there, which may have been replaced since: a symbolic link is not followed, and a
    FIFO does not block.
    """
    return os.open(path, _READ | os.O_NOFOLLOW, dir_fd=folder)


def open_regular(path: str, root: str = "") -> int:
    """Open a regular file for reading, and nothing else: opening may start a device, or release the writer of a FIFO.

    `root` is the directory that "/" means in the path and in symbolic links, so that none leads out of it; empty, the
    kernel follows the path. Linux opens the path alone (O_PATH), and then, if it is that of a regular file, that file
    by its descriptor. Where the system has no O_PATH, or /proc is not mounted, the file is checked by its name: what
    replaces it in the next moment may be opened, without blocking, but is not read.

    Raises `OSError`, and `InputError` when it is no regular file, or is empty: those of /proc are, and reading them may
    have effects.
    """
    looks_first = PATH_ONLY and os.path.isdir(DESCRIPTORS)
    flags = PATH_ONLY | os.O_CLOEXEC if looks_first else _READ
    if root:
        descriptor = _open_below(root, path, flags)
    else:
        _refuse_irregular(os.stat(path))
        descriptor = os.open(path, flags)
    try:
        _refuse_irregular(os.fstat(descriptor))
        return os.open(f"{DESCRIPTORS}/{descriptor}", _READ) if looks_first else os.dup(descriptor)
    finally:
        os.close(descriptor)


def in_root(path: str, root: str) -> tuple[str, str]:
    """Return path and root for `open_regular`: a path that is not below a root is opened as it is."""
    own, whole = os.path.abspath(root).rstrip(os.sep) + os.sep, os.path.abspath(path)
    return (os.sep + whole.removeprefix(own), root) if root and whole.startswith(own) else (path, "")


def _open_below(root: str, path: str, flags: int) -> int:
    """Open a folder or a regular file as `open_regular` does. Raises `OSError`, `InputError`."""
    opened = [os.open(root, flags | os.O_DIRECTORY)]
    names, link_count = path.split("/")[::-1], 0
    try:
        while names:
            name = names.pop()
            if name == ".." and len(opened) > 1:
                # The kernel's ".." would lead out of a folder that has been moved out of the root.
                os.close(opened.pop())
            if name in ("", ".", ".."):
                continue
            status = os.stat(name, dir_fd=opened[-1], follow_symlinks=False)
            if stat.S_ISLNK(status.st_mode):
                link_count += 1
                if link_count > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                target = os.readlink(name, dir_fd=opened[-1])
                names += target.split("/")[::-1]
                while target.startswith("/") and len(opened) > 1:
                    os.close(opened.pop())
                continue
            if not stat.S_ISDIR(status.st_mode):
                _refuse_irregular(status)
            opened.append(os.open(name, flags | os.O_NOFOLLOW, dir_fd=opened[-1]))
        return opened.pop()
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _refuse_irregular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode) or not status.st_size:
        raise InputError("not a regular file, or empty")


def read_stream(stream: BinaryIO) -> bytes:
    """Return the bytes of a pipe or device; only the first four unless they are those of ELF, SFrame or perf.

    Some devices never end. Raises `OSError`.
    """
    head = stream.read(len(ELF_MAGIC))
    is_known = head == ELF_MAGIC or is_section(head) or is_recording(head)
    return head + stream.read() if is_known else head


def is_recording(data: FileData) -> bool:
    """Return whether bytes begin as those of a recording of perf do, in either byte order."""
    return any(bytes(data[:4]) == magic[:4] for magic in PERF_MAGICS)


def is_section(data: FileData) -> bool:
    """Return whether bytes begin as those of an SFrame section do, in either byte order."""
    return bytes(data[:2]) in _SFRAME_MAGICS


def read_file(path: str) -> memoryview | FileBytes:
    """Return a file's bytes; those of a large one are read on demand. Raises `OSError` with the path."""
    with naming_path(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return read_open(descriptor)
        finally:
            os.close(descriptor)


def read_open(descriptor: int) -> memoryview | FileBytes:
    """Return the bytes of an open file as `read_file` does; the caller closes the descriptor.

    For pipes and devices see `read_stream`. Raises `OSError` when it cannot be read.
    """
    status = os.fstat(descriptor)
    stored = _stored_size(descriptor, status) if stat.S_ISREG(status.st_mode) else 0
    # Files with holes are read on demand: only their stored bytes count for the limits of a job.
    if stat.S_ISREG(status.st_mode) and (status.st_size >= _LARGE_SIZE or stored < status.st_size):
        return FileBytes(OpenFile(os.dup(descriptor)), 0, status.st_size, stored)
    with open(descriptor, "rb", closefd=False) as file:
        if not stat.S_ISREG(status.st_mode):
            return memoryview(read_stream(file))
        # If this process wrote the file through this descriptor, its position is at the end.
        file.seek(0)
        return memoryview(file.read())


def read_part(data: FileData, start: int, end: int) -> FileData:
    """Return a part of a file's bytes as `read_file` returns a file: a large one is read on demand."""
    part = part_of(data, start, end)
    return part if isinstance(part, Buffer) or len(part) >= _LARGE_SIZE else memoryview(bytes(part))


def _stored_size(descriptor: int, status: os.stat_result) -> int:
    """Return how many bytes of a file are not in holes; all if the file system does not tell. Raises `OSError`."""
    size = status.st_size
    # Some file systems count the blocks of a new file later, so this alone does not show a hole.
    if status.st_blocks * _BLOCK_UNIT >= size:
        return size
    total = position = 0
    try:
        while position < size:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            total += max(0, min(position, size) - start)
    except OSError as error:
        # ENXIO: only a hole is left, or the file has just been truncated.
        if error.errno not in (errno.ENXIO, errno.EINVAL):
            raise
        return total if error.errno == errno.ENXIO else size
    return total
