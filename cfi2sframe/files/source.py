# SPDX-License-Identifier: Apache-2.0
"""Files and folders by descriptors: a path is looked up once, whatever is exchanged under its names afterwards.

A path with its symbolic links resolved has none left. Whoever may write to one of its folders can put one there at any
moment, so such paths are followed name by name, and a link ends the way.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.errors import ChangedError, InputError, UnfitError
from cfi2sframe.jobs.records import FileState

if TYPE_CHECKING:
    from collections.abc import Iterator

#: O_PATH: a folder that may be passed need not be readable.
_FOLDER: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
#: PATH_MAX, which holds for whoever follows names one by one, too: each of them is looked up again for the next file.
_MAX_PATH_SIZE: Final = 4096


class Place(NamedTuple):
    """A name in an open folder; no link is followed from there."""

    folder: int
    name: str

    def status(self) -> os.stat_result:
        """Look at what has the name. Raises `OSError`."""
        return os.stat(self.name, dir_fd=self.folder, follow_symlinks=False)

    def is_free(self) -> bool:
        """Whether nothing is seen to have the name."""
        try:
            self.status()
        except OSError:
            return True
        return False


class Source(NamedTuple):
    """A regular file that is read: all that is used of it comes from one descriptor.

    `status` is how it was before anything was read from it.
    """

    descriptor: int
    status: os.stat_result

    def check(self) -> None:
        """Raise `ChangedError` when the file has been changed since it was opened, or has lost its last name."""
        if _identity(os.fstat(self.descriptor)) != _identity(self.status):
            raise ChangedError("the file was changed while it was being converted")

    def is_at(self, place: Place) -> bool:
        """Whether a place's name is, at this moment, a name of this file."""
        try:
            return os.path.samestat(place.status(), self.status)
        except OSError:
            return False

    def attributes(self) -> dict[str, bytes | None]:
        """Return the file's extended attributes, None for one that cannot be read; not every file system has any."""
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
    # Within one tick of the clock the times may miss a change; but a write by another user costs the set-ID bits.
    return FileState.of(status), status.st_mode, status.st_uid, status.st_gid


def open_folder(path: str) -> int:
    """Open a folder, to look names up in it, by an absolute path without symbolic links. Raises `OSError`."""
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
def open_resolved(path: str) -> Iterator[Source]:
    """Open the regular file that an absolute path without symbolic links leads to.

    Raises `InputError` when it cannot be opened or is a folder, `UnfitError` when it is anything else.
    """
    try:
        folder = open_folder(os.path.dirname(path))
        try:
            descriptor = open_unfollowed(os.path.basename(path), folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    try:
        source = source_of(descriptor)
        if source is None:
            is_folder = stat.S_ISDIR(os.fstat(descriptor).st_mode)
            raise InputError(os.strerror(errno.EISDIR)) if is_folder else UnfitError("not a regular file")
        yield source
    finally:
        os.close(descriptor)


def source_of(descriptor: int) -> Source | None:
    """Return what is open as a source; None where it is no regular file."""
    status = os.fstat(descriptor)
    return Source(descriptor, status) if stat.S_ISREG(status.st_mode) else None
