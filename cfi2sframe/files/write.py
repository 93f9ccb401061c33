# SPDX-License-Identifier: Apache-2.0
"""Write a whole file or none; with all of its names, when it has several.

What is written has no name until it is whole and checked (O_TMPFILE): should the process be killed, the kernel takes it
back. A name that exists can only be exchanged by a rename, and that needs a second name; it stands for the few
microseconds between two system calls. File systems without unnamed files get that name from the start.

Folders are opened once, and names are looked up in them alone. Whoever may write to a folder can exchange what is in
it, and nothing else.
"""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.load import read_open
from cfi2sframe.errors import ChangedError
from cfi2sframe.files.source import Place, open_folder
from cfi2sframe.jobs.records import FileState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from io import BufferedWriter

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.files.source import Source

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
    source: Source | None = None,
    is_copy: bool = False,
    in_place: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[FileState, tuple[str, ...]]:
    """Write to a temporary file in a target's folder, then put it in the target's place.

    Returns how the new file is then, and what has to be said about it.

    `targets` are absolute paths without symbolic links. Of several, the further ones become hard links of the new
    file; each is exchanged atomically, and none before all are prepared. The content of a large file is read while it
    is written, and its holes stay holes. `check` is given the new file's bytes and may raise.

    A file `source` must be as it was when it was opened. A copy of it (`is_copy`) has its mode and extended attributes,
    and if the source is what is replaced, its owner as far as permitted. Any other new file belongs to whoever writes
    it; a copy of another owner's file has no set-ID bits, no extended attributes, and of the mode what the umask
    leaves. `in_place`: a copy, all targets have to be names of the source, and its times stay. What is no copy has the
    mode of the file that is replaced, or what the umask leaves.

    Raises `OSError`, and `ChangedError` when the source, or what a target's name stands for, has been changed.
    """
    folders: dict[str, int] = {}
    try:
        for path in map(os.path.dirname, targets):
            if path not in folders:
                folders[path] = open_folder(path)
        places = [Place(folders[os.path.dirname(target)], os.path.basename(target)) for target in targets]
        new = _NewFile(places, source, is_copy=is_copy or in_place, in_place=in_place)
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


class _NewFile:
    """A file on its way to its names, and the names made for it on the way."""

    def __init__(self, places: list[Place], source: Source | None, *, is_copy: bool, in_place: bool) -> None:
        self._places = places
        self._source = source
        self._is_copy = is_copy
        self._in_place = in_place
        # What is granted to the file that is replaced is granted to the new one, if that was made of it.
        self._replaces = source is not None and all(source.is_at(place) for place in places)
        if in_place and not self._replaces:
            raise ChangedError(_CHANGED)
        self._made: list[Place] = []

    def write(
        self, content: FileData, check: Callable[[FileData], None] | None, *, is_named: bool
    ) -> tuple[FileState, tuple[str, ...]]:
        descriptor = None if is_named else _create_unnamed(self._places[0].folder)
        if descriptor is None:
            descriptor = _create(self._name_beside(self._places[0]))
        with open(descriptor, "wb") as file:
            _fill(file, content)
            file.flush()
            # Some file systems say only at a close that what was written could not be kept.
            os.close(os.dup(descriptor))
            if check is not None:
                check(read_open(descriptor))
            warnings = self._set_attributes(descriptor)
            with _signals_held():
                if self._source is not None:
                    self._source.check()
                self._publish(descriptor)
            return FileState.of(os.fstat(descriptor)), warnings

    def _set_attributes(self, new: int) -> tuple[str, ...]:
        """Give the new file its owner, mode, attributes and times; return what has to be said."""
        source = self._source
        if source is None or not self._is_copy:
            os.chmod(new, _mode_instead(self._places[0]))
            return ()
        status, mode = source.status, stat.S_IMODE(source.status.st_mode)
        attributes = source.attributes()
        # What is granted now is granted to the bytes that were read: whoever changed them since has lost it.
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
            # The group's bits were the most that anyone in the list had: without it they would be the group's own.
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
            first = self._places[0]
            if len(self._places) == 1 and first.is_free() and _took_free_name(descriptor, first):
                return
            links.append(self._name_beside(first))
            try:
                _link(descriptor, links[0])
            except OSError:
                self._made.clear()
                raise _NoLinkError from None
        for place in self._places[1:]:
            links.append(self._name_beside(place))
            os.link(
                links[0].name,
                links[-1].name,
                src_dir_fd=links[0].folder,
                dst_dir_fd=place.folder,
                follow_symlinks=False,
            )
        self._check_names(links, os.fstat(descriptor))
        for link, place in zip(links, self._places, strict=True):
            os.replace(link.name, place.name, src_dir_fd=link.folder, dst_dir_fd=place.folder)

    def _check_names(self, links: list[Place], new: os.stat_result) -> None:
        """Raise `ChangedError` when a name made for the new file is another's, or a target is no longer the source."""
        are_new = all(os.path.samestat(link.status(), new) for link in links)
        are_old = not self._replaces or self._source is None or all(map(self._source.is_at, self._places))
        if not (are_new and are_old):
            raise ChangedError(_CHANGED)

    def _name_beside(self, place: Place) -> Place:
        """Return a name that nobody else uses, and note it before it is: an interrupt must find it.

        The standard library's way would double what a small conversion loads.
        """
        temporary = Place(place.folder, f"{_TEMPORARY_PREFIX}{os.urandom(12).hex()}")
        self._made.append(temporary)
        return temporary

    def take_back(self) -> None:
        """Remove what has been made and is not yet in its place; what cannot be removed must not hide the reason."""
        if not self._made:
            return
        with _signals_held():
            for place in self._made:
                try:
                    os.unlink(place.name, dir_fd=place.folder)
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


def _create_unnamed(folder: int) -> int | None:
    """Make a file without a name in a folder; None where that, or naming it later, is not possible."""
    try:
        descriptor = os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=folder)
    except OSError:
        # A folder that must not be written to: the other way will say so.
        return None
    if not os.path.exists(_path_of(descriptor)):
        os.close(descriptor)
        return None
    return descriptor


def _create(place: Place) -> int:
    """Make a file that was not there, readable by its owner alone; return its descriptor."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
    return os.open(place.name, flags, 0o600, dir_fd=place.folder)


def _fill(file: BufferedWriter, content: FileData) -> None:
    """Write a file's bytes to a new one; what is a hole is one there too."""
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


def _link(descriptor: int, place: Place) -> None:
    # Only a call that names a folder follows the link in /proc; for an absolute path it may be any descriptor.
    os.link(_path_of(descriptor), place.name, src_dir_fd=descriptor, dst_dir_fd=place.folder, follow_symlinks=True)


def _took_free_name(descriptor: int, place: Place) -> bool:
    """Give the file its final name, if nothing has that name. A SIGKILL then has no moment to leave anything."""
    try:
        _link(descriptor, place)
    except FileExistsError:
        return False
    except OSError:
        raise _NoLinkError from None
    return True


def _chown(new: int, status: os.stat_result) -> None:
    try:
        os.chown(new, status.st_uid, status.st_gid)
    except PermissionError:
        # Whether that is another owner is seen by looking.
        return


def _set_extended_attributes(new: int, attributes: dict[str, bytes | None]) -> bool:
    """Set what can be set, capabilities among it.

    Return whether the access control list, if there is one, is among what was set.
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


def _mode_instead(place: Place) -> int:
    """Return the mode that a file written in place would have: its own, or what the umask leaves."""
    try:
        mode = place.status().st_mode
    except FileNotFoundError:
        mode = 0
    if stat.S_ISREG(mode):
        # Set-ID bits were granted to the bytes that were there.
        return mode & 0o777
    return 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
