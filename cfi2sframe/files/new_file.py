# SPDX-License-Identifier: Apache-2.0
"""A new file in an open directory, which has no name before it is complete, or a locked one; leftovers of a kill.

Where the file system has O_TMPFILE, a file gets a name right before it replaces another one: a kill leaves nothing.
Elsewhere it has one from the start, and its lock tells the next run over the directory whether it is still written.
"""

import errno
import fcntl
import os
import re
import stat
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import wraps
from typing import Final, NamedTuple, ParamSpec, TypeVar

from cfi2sframe.elf.load import DESCRIPTORS, PATH_ONLY, open_unfollowed

TEMPORARY_PREFIX: Final = ".cfi2sframe-"
_TEMPORARY_NAME: Final = re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]{24}\.new"
#: PATH_ONLY: a directory on the way need not be readable.
_DIRECTORY: Final = PATH_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NAMED: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
#: 0 where the system has no such flag.
_O_TMPFILE: Final[int] = getattr(os, "O_TMPFILE", 0)
P = ParamSpec("P")
R = TypeVar("R")


class DirectoryEntry(NamedTuple):
    """A name in an open directory."""

    directory: int
    name: str

    def is_of(self, status: os.stat_result) -> bool:
        """Return whether it is, at this moment, a name of the file with this status."""
        try:
            return os.path.samestat(os.stat(self.name, dir_fd=self.directory, follow_symlinks=False), status)
        except OSError:
            return False


def open_directory(path: str, stack: ExitStack) -> int:
    """Open a directory by an absolute resolved path, into which a user may have put a link since. Raises `OSError`.

    It is closed with the stack.
    """
    descriptor = os.open(os.sep, _DIRECTORY)
    for name in filter(None, path.split(os.sep)):
        outer = descriptor
        try:
            descriptor = os.open(name, _DIRECTORY, dir_fd=outer)
        finally:
            os.close(outer)
    stack.callback(os.close, descriptor)
    return descriptor


def entries_of(targets: Sequence[str], stack: ExitStack) -> list[DirectoryEntry]:
    """Open the directories of absolute resolved paths, each once, until the stack ends; return the names in them."""
    directories = {path: open_directory(path, stack) for path in dict.fromkeys(map(os.path.dirname, targets))}
    return [DirectoryEntry(directories[os.path.dirname(target)], os.path.basename(target)) for target in targets]


def check_replaceable(entries: Sequence[DirectoryEntry]) -> None:
    """Raise `OSError` where a file may not get another's name: in a sticky directory, after chattr +i or +a, etc.

    That the first directory cannot be written is left to `create`.
    """
    for entry in entries:
        # rmdir(2) removes no file, and says ENOTDIR only after the kernel has checked that the name may be removed.
        try:
            os.rmdir(entry.name, dir_fd=entry.directory)
        except NotADirectoryError:
            continue
        except PermissionError as error:
            if error.errno != errno.EACCES or entry.directory != entries[0].directory:
                raise


class _UnlinkableError(Exception):
    """A file without a name cannot get one: the file system, or a policy, forbids that."""


class _Unnamed:
    """State of this process: files can be made without a name, unless an attempt has failed."""

    works = bool(_O_TMPFILE)


def named_if_need_be(write: Callable[P, R]) -> Callable[P, R]:
    """Let a function that writes by `create` and `give_names` write again, where its file could not get a name."""

    @wraps(write)
    def written(*arguments: P.args, **options: P.kwargs) -> R:
        try:
            return write(*arguments, **options)
        except _UnlinkableError:
            _Unnamed.works = False
            return write(*arguments, **options)

    return written


def temporary_name() -> str:
    """Return a name that nothing has. `tempfile` would be a slow import."""
    return f"{TEMPORARY_PREFIX}{os.urandom(12).hex()}.new"


def create(entry: DirectoryEntry) -> tuple[int, bool]:
    """Open a new file, which only its owner may read, in the directory of an entry; return whether it has that name.

    Raises `OSError`.
    """
    descriptor = _open_unnamed(entry.directory)
    is_named = descriptor is None
    if descriptor is None:
        descriptor = os.open(entry.name, _NAMED, 0o600, dir_fd=entry.directory)
    with suppress(OSError):
        # Where there are no locks, `remove_leftover` gets none either.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return descriptor, is_named


def _open_unnamed(directory: int) -> int | None:
    """Open a new file without a name; None where that is not possible, or a name could not be given to it."""
    if not _Unnamed.works:
        return None
    # Where this is forbidden, a named file may be permitted, or its error tells more.
    with suppress(OSError):
        descriptor = os.open(os.curdir, os.O_RDWR | _O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=directory)
        with suppress(OSError):
            if os.path.samestat(os.stat(f"{DESCRIPTORS}/{descriptor}"), os.fstat(descriptor)):
                return descriptor
        os.close(descriptor)
    return None


def give_names(descriptor: int, entries: Sequence[DirectoryEntry], *, is_named: bool) -> None:
    """Give a file its names; `is_named`: it has the first. Raises `OSError`, and what `named_if_need_be` expects."""
    first = entries[0]
    if not is_named:
        try:
            # With a descriptor of a directory this is linkat(AT_SYMLINK_FOLLOW): the link in /proc leads to the file.
            os.link(f"{DESCRIPTORS}/{descriptor}", first.name, dst_dir_fd=first.directory, follow_symlinks=True)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO):
                raise
            raise _UnlinkableError from error
    for to in entries[1:]:
        os.link(first.name, to.name, src_dir_fd=first.directory, dst_dir_fd=to.directory, follow_symlinks=False)


def remove_leftover(path: str) -> None:
    """Remove a file that a killed run has left: with a name that only `create` gives, this user's, and not locked.

    `path` is absolute and resolved. Any other file stays.
    """
    directory, name = os.path.split(path)
    if re.fullmatch(_TEMPORARY_NAME, name) is None:
        return
    with suppress(OSError), ExitStack() as stack:
        entry = DirectoryEntry(open_directory(directory, stack), name)
        descriptor = open_unfollowed(name, entry.directory)
        stack.callback(os.close, descriptor)
        status = os.fstat(descriptor)
        if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if entry.is_of(status):
                os.unlink(name, dir_fd=entry.directory)
