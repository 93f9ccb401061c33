# SPDX-License-Identifier: Apache-2.0
"""Write a whole file or none, under all of its names when it has several; or to a stream or device.

A new file has no name until it is whole and checked (O_TMPFILE): if the process is killed, the kernel frees it. An
existing name can only be replaced by a rename, which needs a second name; that one exists for the few microseconds
between two system calls. On file systems without O_TMPFILE it exists from the start.

Folders are opened once, and names are looked up only in them. A user who may write to a folder can exchange its
entries, and nothing else.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.load import read_open
from cfi2sframe.errors import ChangedError, OutputError, reason_of
from cfi2sframe.files.descriptors import FolderEntry, open_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedWriter

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.files.descriptors import InputFile

_TEMPORARY_PREFIX: Final = ".cfi2sframe-"
_ACCESS_LIST: Final = "system.posix_acl_access"
#: Extended attributes that vouch for the bytes of a file: a hash, or a signature of it.
_SEALS: Final = ("security.ima", "security.evm")
_CHANGED: Final = "the file was changed while it was being converted"


class _NoLinkError(Exception):
    """A file without a name cannot be given one here."""


def write_file(
    targets: Sequence[str],
    content: FileData,
    *,
    source: InputFile | None = None,
    is_copy: bool = False,
    in_place: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[str, ...]:
    """Write a temporary file in the targets' folders, then rename it to each target. Returns warnings about it.

    `targets` are absolute resolved paths. If there are several, they become hard links of one new file; each is
    exchanged atomically, and none before all are prepared. Large content is read while it is written, and its holes
    stay holes. `check` is called with the new file's bytes before the rename, and may raise.

    `source` must be as it was when it was opened. A copy of it (`is_copy`) has its mode and extended attributes; if it
    replaces the source, also its owner as far as permitted. Any other new file belongs to the caller: a copy of another
    owner's file has no set-ID bits, no extended attributes, and the mode bits that the umask leaves. `in_place`: a
    copy whose targets all have to be names of the source, and which keeps its times. A file that is no copy has the
    mode of the file that it replaces, or what the umask leaves.

    Raises `OSError`, and `ChangedError` when the source, or the file that a target names, has been changed.
    """
    folders: dict[str, int] = {}
    try:
        for path in map(os.path.dirname, targets):
            if path not in folders:
                folders[path] = open_folder(path)
        entries = [FolderEntry(folders[os.path.dirname(target)], os.path.basename(target)) for target in targets]
        new = _NewFile(entries, source, is_copy=is_copy or in_place, in_place=in_place)
        try:
            try:
                return new.write(content, check, is_named=False)
            except _NoLinkError:
                return new.write(content, check, is_named=True)
        except BaseException:
            new.take_back()
            raise
    finally:
        for folder in folders.values():
            os.close(folder)


def write_output(
    path: str,
    content: FileData,
    *,
    source: InputFile | None = None,
    is_copy: bool = False,
    in_place: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[str, ...]:
    """Write to what a user names, through a symbolic link: a file as `write_file` does, a device, `-` for stdout.

    A device or a pipe is written to directly, after all of the content has been read and checked in memory. Returns
    warnings. Raises `OutputError` when it cannot be written, `BrokenPipeError` when the reader of a pipe has closed it,
    `ChangedError` when `source` has been changed, and what `check` raises.
    """
    try:
        return _write_to(path, content, source=source, is_copy=is_copy, in_place=in_place, check=check)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(reason_of(error), "<stdout>" if path == "-" else path) from None


def _write_to(
    path: str,
    content: FileData,
    *,
    source: InputFile | None,
    is_copy: bool,
    in_place: bool,
    check: Callable[[FileData], None] | None,
) -> tuple[str, ...]:
    if path != "-" and not _is_special(path):
        targets = [os.path.realpath(path)]
        return write_file(targets, content, source=source, is_copy=is_copy, in_place=in_place, check=check)
    # Output to a stream cannot be taken back, and the source may be changed after the check.
    data = bytes(content)
    if check is not None:
        check(data)
    if source is not None:
        source.check()
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        with open(_open_special(path), "wb") as device:
            device.write(data)
    return ()


def _is_special(path: str) -> bool:
    """Whether the path names something other than a regular file. Raises `OSError` where no file can be."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        if not path:
            raise
        if path.endswith(os.sep):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
        return False


def _open_special(path: str) -> int:
    """Open a device or a pipe by the given name: a link in /proc seems to lead to a name that may not exist."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ChangedError("a device or a pipe was replaced by a file")
    return descriptor


class _NewFile:
    """A file that is being written, and the temporary names made for it."""

    def __init__(self, entries: list[FolderEntry], source: InputFile | None, *, is_copy: bool, in_place: bool) -> None:
        self._entries = entries
        self._source = source
        self._is_copy = is_copy
        self._in_place = in_place
        # Permissions of the old file carry over to a new one that was made of it.
        self._replaces = source is not None and all(source.is_at(entry) for entry in entries)
        if in_place and not self._replaces:
            raise ChangedError(_CHANGED)
        self._made: list[FolderEntry] = []

    def write(self, content: FileData, check: Callable[[FileData], None] | None, *, is_named: bool) -> tuple[str, ...]:
        descriptor = None if is_named else _create_unnamed(self._entries[0].folder)
        if descriptor is None:
            descriptor = _create(self._name_beside(self._entries[0]))
        with open(descriptor, "wb") as file:
            _fill(file, content)
            file.flush()
            # Some file systems report a failed write only at close.
            os.close(os.dup(descriptor))
            if check is not None:
                check(read_open(descriptor))
            warnings = self._set_attributes(descriptor)
            with _signals_held():
                if self._source is not None:
                    self._source.check()
                self._publish(descriptor)
            return warnings

    def _set_attributes(self, new: int) -> tuple[str, ...]:
        """Give the new file its owner, mode, attributes and times; return warnings."""
        source = self._source
        if source is None or not self._is_copy:
            os.chmod(new, _mode_instead(self._entries[0]))
            return ()
        status, mode = source.status, stat.S_IMODE(source.status.st_mode)
        attributes = source.attributes()
        # Permissions are granted to the bytes that were read, not to what somebody has written since.
        source.check()
        if self._replaces:
            _chown(new, status)
        now = os.fstat(new)
        if (now.st_uid, now.st_gid) != (status.st_uid, status.st_gid):
            # A set-user-ID bit must not come to mean another user, nor a list another owner.
            mode &= ~(stat.S_ISUID | stat.S_ISGID)
            if not self._replaces:
                mode &= ~_umask()
            is_list_kept = _ACCESS_LIST not in attributes
        else:
            is_list_kept = _set_extended_attributes(new, attributes)
        if not is_list_kept:
            # The group's bits were the access list's mask: without the list they would be the group's own rights.
            mode &= ~stat.S_IRWXG
        # After chown, which clears the set-ID bits.
        os.chmod(new, mode)
        if self._in_place:
            os.utime(new, ns=(status.st_atime_ns, status.st_mtime_ns))
        return tuple(
            f"{name} no longer matches the contents; sign the file again" for name in _SEALS if name in attributes
        )

    def _publish(self, descriptor: int) -> None:
        is_unnamed = not self._made
        links = list(self._made)
        if is_unnamed:
            first = self._entries[0]
            if len(self._entries) == 1 and first.is_free() and _took_free_name(descriptor, first):
                return
            links.append(self._name_beside(first))
            try:
                _link(descriptor, links[0])
            except OSError:
                self._made.clear()
                raise _NoLinkError from None
        for entry in self._entries[1:]:
            links.append(self._name_beside(entry))
            os.link(
                links[0].name,
                links[-1].name,
                src_dir_fd=links[0].folder,
                dst_dir_fd=entry.folder,
                follow_symlinks=False,
            )
        self._check_names(links, os.fstat(descriptor))
        for link, entry in zip(links, self._entries, strict=True):
            os.replace(link.name, entry.name, src_dir_fd=link.folder, dst_dir_fd=entry.folder)

    def _check_names(self, links: list[FolderEntry], new: os.stat_result) -> None:
        """Raise `ChangedError` unless every temporary name is the new file's and every target still the source's."""
        are_new = all(os.path.samestat(link.status(), new) for link in links)
        are_old = not self._replaces or self._source is None or all(map(self._source.is_at, self._entries))
        if not (are_new and are_old):
            raise ChangedError(_CHANGED)

    def _name_beside(self, entry: FolderEntry) -> FolderEntry:
        """Return an unused name, and note it before it exists, so that an interrupt finds it.

        `tempfile` would double what a small conversion loads.
        """
        temporary = FolderEntry(entry.folder, f"{_TEMPORARY_PREFIX}{os.urandom(12).hex()}")
        self._made.append(temporary)
        return temporary

    def take_back(self) -> None:
        """Remove temporary names that are left; a failure to do so must not hide the first error."""
        if not self._made:
            return
        with _signals_held():
            for entry in self._made:
                try:
                    os.unlink(entry.name, dir_fd=entry.folder)
                except OSError:
                    continue


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block the signals that would end the process or the job (`cfi2sframe.guard`), for a few system calls."""
    import signal

    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPROF))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _path_of(descriptor: int) -> str:
    return f"/proc/self/fd/{descriptor}"


def _create_unnamed(folder: int) -> int | None:
    """Make an unnamed file in a folder; return None where that, or naming it later, is not possible."""
    try:
        descriptor = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        # If the folder is not writable, creating a named file reports that.
        return None
    if not os.path.exists(_path_of(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def _create(entry: FolderEntry) -> int:
    """Create a file that only its owner can read; return its descriptor. Raises `OSError` if the name exists."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(entry.name, flags, 0o600, dir_fd=entry.folder)


def _fill(file: BufferedWriter, content: FileData) -> None:
    """Write the content to a new file; its holes stay holes."""
    if isinstance(content, Buffer):
        file.write(content)
        return
    position = 0
    for start, block in content.data_blocks():
        if start != position:
            file.seek(start)
        file.write(block)
        position = start + len(block)
    if position != len(content):
        file.truncate(len(content))


def _link(descriptor: int, entry: FolderEntry) -> None:
    # Only a call that names a folder follows the link in /proc; for an absolute path it may be any descriptor.
    os.link(_path_of(descriptor), entry.name, src_dir_fd=descriptor, dst_dir_fd=entry.folder, follow_symlinks=True)


def _took_free_name(descriptor: int, entry: FolderEntry) -> bool:
    """Give the file its final name if that is free: then not even SIGKILL can leave a temporary name."""
    try:
        _link(descriptor, entry)
    except FileExistsError:
        return False
    except OSError:
        raise _NoLinkError from None
    return True


def _chown(new: int, status: os.stat_result) -> None:
    try:
        os.chown(new, status.st_uid, status.st_gid)
    except PermissionError:
        # The caller looks at the owner afterwards.
        return


def _set_extended_attributes(new: int, attributes: dict[str, bytes | None]) -> bool:
    """Set the attributes that can be set, capabilities included.

    Return whether the access control list, if there is one, was set.
    """
    is_list_kept = True
    for name, value in attributes.items():
        try:
            if value is not None:
                os.setxattr(new, name, value)
                continue
        except OSError:
            pass
        is_list_kept = is_list_kept and name != _ACCESS_LIST
    return is_list_kept


def _mode_instead(entry: FolderEntry) -> int:
    """Return the mode of the file that is replaced, or what the umask leaves for a new one."""
    try:
        mode = entry.status().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISREG(mode):
        # Set-ID bits were granted to the old bytes.
        return mode & 0o777
    return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
