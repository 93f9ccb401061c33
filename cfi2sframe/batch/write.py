# SPDX-License-Identifier: Apache-2.0
"""Write a whole file or none; with all of its names, when it has several.

What is written has no name until it is whole and checked (O_TMPFILE): should the process be killed, the kernel takes it
back. A name that exists can only be exchanged by a rename, and that needs a second name; it stands for the few
microseconds between two system calls. File systems without unnamed files get that name from the start.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.batch.records import FileState
from cfi2sframe.errors import ChangedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cfi2sframe.elf.records import Buffer

_TEMPORARY_PREFIX: Final = ".cfi2sframe-"
_ACCESS_LIST: Final = "system.posix_acl_access"


class Watched(NamedTuple):
    """A file, and how it was before anything was read from it."""

    path: str
    state: FileState

    @classmethod
    def of(cls, path: str) -> Watched | None:
        """Look at a regular file; None where there is none, and reading it will say what is wrong."""
        try:
            status = os.stat(path)
        except OSError:
            return None
        return cls(path, FileState.of(status)) if stat.S_ISREG(status.st_mode) else None

    def check(self) -> None:
        """Raise `ChangedError` when the file is another one now, has other bytes, or is gone."""
        now = Watched.of(self.path)
        if now is None or now.state != self.state:
            raise ChangedError("the file was changed while it was being converted")


class _NoLinkError(Exception):
    """A file without a name cannot be given one here."""


def write_file(
    target: str,
    chunks: Iterable[Buffer],
    *,
    like: str | None = None,
    keep_times: bool = False,
    check: Callable[[str], None] | None = None,
    more_targets: Sequence[str] = (),
    source: Watched | None = None,
) -> None:
    """Write to a temporary file in the same folder, then put it in its place. `target` is no symbolic link.

    `chunks` may be asked for twice, and are written as they come: those of a large file are read then.

    The mode is that of the file `like` (with owner and extended attributes as far as permitted, and with `keep_times`
    its times), else of the file that is replaced, else what the umask leaves. `check` may look at the temporary file
    and raise. `more_targets` become further hard links of the new file; each is exchanged atomically, and none before
    all are prepared. `source` must be as it was at that moment. Raises `OSError`, and `ChangedError` when it is not.
    """
    new = _NewFile([target, *more_targets], source)
    try:
        try:
            new.write(chunks, like, check, keep_times=keep_times, is_named=False)
        except _NoLinkError:
            new.write(chunks, like, check, keep_times=keep_times, is_named=True)
    except BaseException:
        new.take_back()
        raise


class _NewFile:
    """A file on its way to its names, and the names made for it on the way."""

    def __init__(self, targets: list[str], source: Watched | None) -> None:
        self._targets = targets
        self._source = source
        self._made: list[str] = []

    def write(
        self,
        chunks: Iterable[Buffer],
        like: str | None,
        check: Callable[[str], None] | None,
        *,
        keep_times: bool,
        is_named: bool,
    ) -> None:
        descriptor = None if is_named else _create_unnamed(self._targets[0])
        if descriptor is None:
            descriptor = _create(self._name_beside(self._targets[0]))
        with open(descriptor, "wb") as file:
            file.writelines(chunks)
            file.flush()
            # Some file systems say only at a close that what was written could not be kept.
            os.close(os.dup(descriptor))
            path = self._made[0] if self._made else _path_of(descriptor)
            if check is not None:
                check(path)
            _set_attributes(descriptor, self._targets[0], like, keep_times=keep_times)
            with _signals_held():
                if self._source is not None:
                    self._source.check()
                self._publish(path, descriptor)

    def _publish(self, path: str, descriptor: int) -> None:
        is_unnamed = not self._made
        links = list(self._made)
        if is_unnamed:
            is_free = len(self._targets) == 1 and not os.path.lexists(self._targets[0])
            if is_free and _took_free_name(path, self._targets[0], descriptor):
                return
            links.append(self._name_beside(self._targets[0]))
            try:
                _link(path, links[0], descriptor)
            except OSError:
                self._made.clear()
                raise _NoLinkError from None
        for other in self._targets[1:]:
            links.append(self._name_beside(other))
            os.link(links[0], links[-1])
        for link, target in zip(links, self._targets, strict=True):
            os.replace(link, target)

    def _name_beside(self, path: str) -> str:
        """Return a name that nobody else uses, and note it before it is: an interrupt must find it.

        The standard library's way would double what a small conversion loads.
        """
        temporary = os.path.join(os.path.dirname(path), f"{_TEMPORARY_PREFIX}{os.urandom(12).hex()}")
        self._made.append(temporary)
        return temporary

    def take_back(self) -> None:
        """Remove what has been made and is not yet in its place; what cannot be removed must not hide the reason."""
        if not self._made:
            return
        with _signals_held():
            for path in self._made:
                try:
                    os.unlink(path)
                except OSError:
                    continue


@contextmanager
def _signals_held() -> Iterator[None]:
    """Put off what would end the process, for some system calls in a row."""
    import signal

    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _create_unnamed(target: str) -> int | None:
    """Make a file without a name in a target's folder; None where that, or naming it later, is not possible."""
    try:
        descriptor = os.open(os.path.dirname(target) or ".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
    except OSError:
        # A folder that is missing, or that must not be written to: the other way will say so.
        return None
    if not os.path.exists(_path_of(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def _create(path: str) -> int:
    """Make a file that was not there, readable by its owner alone; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _link(path: str, name: str, descriptor: int) -> None:
    # Only a call that names a folder follows the link in /proc; for an absolute path it may be any descriptor.
    os.link(path, name, src_dir_fd=descriptor, follow_symlinks=True)


def _took_free_name(path: str, name: str, descriptor: int) -> bool:
    """Give the file its final name, if nothing has that name. A SIGKILL then has no moment to leave anything."""
    try:
        _link(path, name, descriptor)
    except FileExistsError:
        return False
    except OSError:
        raise _NoLinkError from None
    return True


def _set_attributes(temporary: int, target: str, like: str | None, *, keep_times: bool) -> None:
    if like is None:
        os.chmod(temporary, _mode_of(target))
        return
    status = os.stat(like)
    mode = stat.S_IMODE(status.st_mode)
    try:
        os.chown(temporary, status.st_uid, status.st_gid)
    except PermissionError:
        mine = os.stat(temporary)
        if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
            # A set-user-ID bit must not come to mean another user.
            os.chmod(temporary, mode & ~(stat.S_ISUID | stat.S_ISGID))
            return
    if not _copy_extended_attributes(like, temporary):
        # The group's bits were the most that anyone in the list had: without the list they would be the group's own.
        mode &= ~stat.S_IRWXG
    # After chown, which clears the set-ID bits.
    os.chmod(temporary, mode)
    if keep_times:
        os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_extended_attributes(source: str, destination: int) -> bool:
    """Copy what can be copied, capabilities among it; not every file system has such attributes.

    Return whether the file's access control list, if it has one, is among what was copied.
    """
    try:
        names = os.listxattr(source)
    except OSError:
        return True
    is_list_kept = True
    for name in names:
        try:
            os.setxattr(destination, name, os.getxattr(source, name))
        except OSError:
            is_list_kept = is_list_kept and name != _ACCESS_LIST
    return is_list_kept


def _mode_of(target: str) -> int:
    """Return the mode that a file written in place would have: its own, or what the umask leaves."""
    try:
        # Set-ID bits were granted to the bytes that were there.
        return stat.S_IMODE(os.stat(target).st_mode) & 0o777
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
