# SPDX-License-Identifier: Apache-2.0
"""Files and folders by descriptors: a path is looked up once, whatever is exchanged under its names afterwards.

A resolved path contains no symbolic link. A user who may write to one of its folders can put a link there at any
moment, so resolved paths are followed name by name, and a link is an error.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.load import open_unfollowed, read_open, read_stream
from cfi2sframe.errors import ChangedError, FileError, IsFolderError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.contents import FileData

#: O_PATH: a folder on the way need not be readable.
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: PATH_MAX. It bounds paths that are followed name by name, too, because each name is looked up again for each file.
_MAX_PATH_SIZE: Final = 4096


class FileState(NamedTuple):
    """What identifies a file and shows that it was changed. Times are nanoseconds, `size` is bytes."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    link_count: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return the state that a `stat` found."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink
        )


class FolderEntry(NamedTuple):
    """A name in an open folder; symbolic links are not followed from there."""

    folder: int
    name: str

    def status(self) -> os.stat_result:
        """Return the status of the file with this name. Raises `OSError`."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def is_free(self) -> bool:
        """Whether no file is seen to have the name."""
        try:
            self.status()
        except OSError:
            return True
        return False


class InputFile(NamedTuple):
    """A regular file that is read: everything used of it comes from one descriptor.

    `status` was taken before anything was read.
    """

    descriptor: int
    status: os.stat_result

    def check(self) -> None:
        """Raise `ChangedError` when the file has been changed since it was opened, or has lost its last name."""
        if _identity(os.fstat(self.descriptor)) != _identity(self.status):
            raise ChangedError("the file was changed while it was being converted")

    def is_at(self, entry: FolderEntry) -> bool:
        """Whether an entry is, at this moment, a name of this file."""
        try:
            return os.path.samestat(entry.status(), self.status)
        except OSError:
            return False

    def attributes(self) -> dict[str, bytes | None]:
        """Return the extended attributes, None for one that cannot be read; not every file system has any."""
        try:
            return {name: self._attribute(name) for name in os.listxattr(self.descriptor)}
        except OSError:
            return {}

    def _attribute(self, name: str) -> bytes | None:
        try:
            return os.getxattr(self.descriptor, name)
        except OSError:
            return None


def _identity(status: os.stat_result) -> tuple[FileState, int, int, int]:
    # Within one tick of the clock the times may miss a change; but a write by another user clears the set-ID bits.
    return FileState.of(status), status.st_mode, status.st_uid, status.st_gid


def open_folder(path: str) -> int:
    """Open a folder, to look up names in it, by an absolute resolved path. Raises `OSError`."""
    if len(os.fsencode(path)) >= _MAX_PATH_SIZE:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    descriptor = os.open(os.sep, _FOLDER)
    for name in path.split(os.sep):
        if not name:
            continue
        outer = descriptor
        try:
            descriptor = os.open(name, _FOLDER, dir_fd=outer)
        finally:
            os.close(outer)
    return descriptor


@contextmanager
def open_resolved(path: str) -> Iterator[tuple[FileData, InputFile]]:
    """Open the regular file at an absolute resolved path; give its bytes and the file.

    Raises `InputError` when it cannot be opened or is a folder, `UnfitError` when it is anything else.
    """
    try:
        folder = open_folder(os.path.dirname(path))
        try:
            descriptor = open_unfollowed(os.path.basename(path), folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise FileError.of(error) from None
    with _closing(descriptor):
        file = _input_file(descriptor)
        if file is None:
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            raise (
                IsFolderError(os.strerror(errno.EISDIR), number=errno.EISDIR)
                if is_folder
                else UnfitError("not a regular file")
            )
        yield read_open(descriptor), file


@contextmanager
def open_named(path: str) -> Iterator[tuple[FileData, InputFile | None]]:
    """Open a file, a device, a pipe, or `-` for standard input; give its bytes, and the file if it is a regular one.

    Raises `FileError` when it cannot be read, `OSError` when standard input cannot.
    """
    if path == "-":
        yield read_stream(sys.stdin.buffer), None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise FileError.of(error) from None
    with _closing(descriptor):
        # The status is taken before anything is read, so that every later change is noticed.
        file = _input_file(descriptor)
        yield read_open(descriptor), file


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    try:
        yield
    finally:
        os.close(descriptor)


def _input_file(descriptor: int) -> InputFile | None:
    """Return an open file, or None if it is not a regular one."""
    status = os.fstat(descriptor)
    return InputFile(descriptor, status) if stat.S_ISREG(status.st_mode) else None
