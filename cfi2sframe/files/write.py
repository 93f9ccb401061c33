# SPDX-License-Identifier: Apache-2.0
"""Write a whole file or none, under all of its names when it has several; or to a stream or device.

A new file is made in the old one's directory, and renamed over it when it is complete, checked and on the disk
(`new_file`). Directories are opened once, name by name and without following links, and files are looked up only in
them: a user who may write to a directory can exchange its entries, and nothing else.
"""

import errno
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import BinaryIO, Final, NamedTuple

from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.load import open_unfollowed, read_open, read_stream
from cfi2sframe.errors import ChangedError, EmbedError, OutputError, UnfitError, naming_path, reason_of
from cfi2sframe.files.new_file import (
    DirectoryEntry,
    check_replaceable,
    create,
    entries_of,
    give_names,
    named_if_need_be,
    open_directory,
    temporary_name,
)

#: Bytes written at once.
_BLOCK_SIZE: Final = 1 << 18
#: More links than Linux follows.
_MAX_LINKS: Final = 41
_CHANGED: Final = "the file was changed while it was being converted"
_ACCESS_LIST: Final = "system.posix_acl_access"
_SET_ID: Final = "set-ID bits"
_CAPABILITY: Final = "security.capability"
_UNKNOWN: Final = "extended attributes that cannot be listed"
#: Attributes that grant rights: a warning names those that a copy with another owner loses.
_RIGHTS: Final = (_SET_ID, _CAPABILITY, _ACCESS_LIST, _UNKNOWN)
#: Errors for an attribute that does not exist. After any other error, it may exist.
_ABSENT: Final = (errno.ENODATA, errno.ENOTSUP, errno.ENOSYS)
#: Extended attributes that vouch for the bytes of a file: a hash, or a signature of it.
_SEALS: Final = ("security.ima", "security.evm")
# Within one tick of the clock the times may miss a change; but a write by another user clears the set-ID bits.
_identity = attrgetter(
    *("st_dev", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns", "st_nlink", "st_mode", "st_uid", "st_gid")
)


class InputFile(NamedTuple):
    """A regular file: everything used of it comes from one descriptor. `status` was taken before anything was read."""

    descriptor: int
    status: os.stat_result

    def check(self) -> None:
        """Raise `ChangedError` when the file has been changed since it was opened, or has lost its last name."""
        if _identity(os.fstat(self.descriptor)) != _identity(self.status):
            raise ChangedError(_CHANGED)

    def is_at(self, entries: Sequence[DirectoryEntry]) -> bool:
        """Return whether all of the entries are, at this moment, names of this file."""
        return all(entry.is_of(self.status) for entry in entries)


@contextmanager
def open_input(path: str, *, in_place: bool) -> Iterator[tuple[FileData, InputFile | None]]:
    """Open a file, a device, a pipe, or `-` for standard input; give its bytes, and the file if it is a regular one.

    `in_place`: it has to be one, at an absolute resolved path. Raises `OSError` when it cannot be read,
    `UnfitError` when it is no file.
    """
    if path == "-":
        yield read_stream(sys.stdin.buffer), None
        return
    with ExitStack() as stack:
        with naming_path(path):
            if in_place:
                directory, name = os.path.split(path)
                with ExitStack() as directories:
                    descriptor = open_unfollowed(name, open_directory(directory, directories))
            else:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            status = os.fstat(descriptor)
            is_regular = stat.S_ISREG(status.st_mode)
            if in_place and not is_regular and not stat.S_ISDIR(status.st_mode):
                raise UnfitError("not a regular file")
            data = read_open(descriptor)
        yield data, InputFile(descriptor, status) if is_regular else None


@named_if_need_be
def rewrite_file(
    targets: Sequence[str],
    content: FileData,
    source: InputFile | None,
    *,
    keeps_rights: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[str, ...]:
    """Give a file new content under some of its names, which become hard links of one new file. Returns warnings.

    `targets` are absolute resolved paths, `source` is the file as it was opened. The new one has its mode, extended
    attributes, times, and as far as permitted its owner; with another owner, it has no set-ID bits and no extended
    attributes. What cannot be kept is named in a warning, or with `keeps_rights` an error. `check` is called with the
    new file's bytes before it is renamed, and may raise.

    Raises `OSError`, `EmbedError` for rights, and `ChangedError` when the file or a name has been changed.
    """
    with _new_file(targets, content, source, check) as (new, _, replaced):
        if replaced is None:
            raise ChangedError(_CHANGED)
        warnings = _copy_rights(new, replaced, replaces=True, keeps_rights=keeps_rights)
        os.utime(new, ns=(replaced.status.st_atime_ns, replaced.status.st_mtime_ns))
        return warnings


def foresee_rewrite(targets: Sequence[str], source: InputFile | None, *, keeps_rights: bool = False) -> tuple[str, ...]:
    """Return the warnings that `rewrite_file` would return, or raise its error, and leave everything as it is.

    Not foreseen is what depends on the content, as the room that it needs.
    """
    with ExitStack() as stack:
        entries = entries_of(targets, stack)
        if source is None or not source.is_at(entries):
            raise ChangedError(_CHANGED)
        made = entries[0]._replace(name=temporary_name())
        stack.callback(_take_back, [made])
        check_replaceable(entries)
        with open(_create(made, targets[0])[0], "wb") as file:
            return _copy_rights(file.fileno(), source, replaces=True, keeps_rights=keeps_rights)


def _write_copy(
    target: str, content: FileData, source: InputFile, check: Callable[[FileData], None] | None, *, keeps_rights: bool
) -> tuple[str, ...]:
    """Write new content of a source, with its rights as in `rewrite_file`, at another place or its own.

    At another place, the umask applies to a mode without access list.
    """
    with _new_file([target], content, source, check) as (new, _, replaced):
        return _copy_rights(new, source, replaces=replaced is not None, keeps_rights=keeps_rights)


def _write_new(
    target: str, content: FileData, source: InputFile | None, check: Callable[[FileData], None] | None
) -> None:
    """Write a file, with the mode of the file that it replaces, or the one that the umask leaves."""
    with _new_file([target], content, source, check) as (new, place, _):
        os.chmod(new, _mode_instead(place))


@contextmanager
def _new_file(
    targets: Sequence[str],
    content: FileData,
    source: InputFile | None,
    check: Callable[[FileData], None] | None,
) -> Iterator[tuple[int, DirectoryEntry, InputFile | None]]:
    """Write and check a new file in the targets' directories, then, after a block, rename it to each of them.

    The block gets its descriptor, the first target, and the source if all targets are names of that. Raises
    `ChangedError` when the source or such a name has been changed.
    """
    with ExitStack() as stack:
        entries = entries_of(targets, stack)
        replaced = source if source is not None and source.is_at(entries) else None
        # Names are noted before they exist, so that an interrupt finds them.
        made = [entry._replace(name=temporary_name()) for entry in entries]
        stack.callback(_take_back, made)
        if replaced:
            # Where no name may be removed, one that is made would stay.
            check_replaceable(entries)
        descriptor, is_named = _create(made[0], targets[0])
        with open(descriptor, "wb") as file:
            _fill(file, content)
            if check is not None:
                check(read_open(descriptor))
            yield descriptor, entries[0], replaced
            os.fsync(descriptor)
            new = InputFile(descriptor, os.fstat(descriptor))
            with _signals_held():
                give_names(descriptor, made, is_named=is_named)
                if source is not None:
                    source.check()
                if not new.is_at(made) or (replaced and not replaced.is_at(entries)):
                    raise ChangedError(_CHANGED)
                for old, entry in zip(made, entries, strict=True):
                    os.replace(old.name, entry.name, src_dir_fd=old.directory, dst_dir_fd=entry.directory)
                made.clear()


def _create(made: DirectoryEntry, target: str) -> tuple[int, bool]:
    """Create a file as `create` does; an error names the directory."""
    try:
        return create(made)
    except PermissionError as error:
        error.strerror = f"cannot create a file in {os.path.dirname(target)}: {error.strerror}"
        raise


def _take_back(made: Sequence[DirectoryEntry]) -> None:
    """Remove temporary names that are left; a failure to do so must not hide the first error."""
    with _signals_held():
        for entry in made:
            with suppress(OSError):
                os.unlink(entry.name, dir_fd=entry.directory)


@contextmanager
def _signals_held() -> Iterator[None]:
    """Block the signals that would end the process or the job (`cfi2sframe.process.guard`), for a few system calls."""
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPROF))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)


def _fill(file: BinaryIO, content: FileData) -> None:
    """Write the content to a new file. Blocks of zeros become holes, as those of a sparse file were."""
    size = len(content)
    for start in range(0, size, _BLOCK_SIZE):
        block = bytes(content[start : start + _BLOCK_SIZE])
        if block != bytes(len(block)):
            file.seek(start)
            file.write(block)
    file.truncate(size)


def _copy_rights(new: int, source: InputFile, *, replaces: bool, keeps_rights: bool) -> tuple[str, ...]:
    """Give a copy the rights of its source; return a warning that names those that it cannot have."""
    status, mode = source.status, stat.S_IMODE(source.status.st_mode)
    attributes = _attributes(source.descriptor)
    # Permissions are granted to the bytes that were read, not to what somebody has written since.
    source.check()
    if replaces:
        with suppress(PermissionError):
            os.chown(new, status.st_uid, status.st_gid)
    now = os.fstat(new)
    lost = [] if now.st_uid == status.st_uid else ["owner"]
    lost += [] if now.st_gid == status.st_gid else ["group"]
    is_own = not lost
    if not is_own:
        # A set-user-ID bit must not come to mean another user, nor a list another owner.
        lost += [_SET_ID] if mode & (stat.S_ISUID | stat.S_ISGID) else []
        mode &= ~(stat.S_ISUID | stat.S_ISGID)
    for name, value in attributes.items():
        try:
            if not is_own or value is None:
                raise PermissionError
            os.setxattr(new, name, value)
        except OSError:
            lost.append(name)
    if _ACCESS_LIST in lost or _ACCESS_LIST not in attributes:
        mode &= ~(0 if replaces else _umask())
        try:
            # The directory's default list grants what the source does not.
            os.removexattr(new, _ACCESS_LIST)
        except OSError as error:
            lost += [] if error.errno in _ABSENT else [_ACCESS_LIST]
    if _ACCESS_LIST in lost:
        # The group's bits were the access list's mask: without the list they would be the group's own rights.
        mode &= ~stat.S_IRWXG
    # After chown, which clears the set-ID bits.
    os.chmod(new, mode)
    named = ", ".join(name for name in dict.fromkeys(lost) if replaces or name in _RIGHTS)
    if named and keeps_rights:
        raise EmbedError(f"--keep-rights: cannot keep {named}")
    stale = [f"{name} no longer matches the contents; sign the file again" for name in _SEALS if name in attributes]
    return (*([f"not kept: {named}"] if named else []), *stale)


def _attributes(descriptor: int) -> dict[str, bytes | None]:
    """Return the extended attributes by name; None for one that cannot be read.

    Where they cannot be listed, for example because there are too many, those that grant rights are asked for by name.
    """
    attributes: dict[str, bytes | None] = {}
    try:
        names = os.listxattr(descriptor)
    except OSError as error:
        if error.errno in _ABSENT:
            return {}
        attributes[_UNKNOWN] = None
        names = [_CAPABILITY, _ACCESS_LIST]
    for name in names:
        try:
            attributes[name] = os.getxattr(descriptor, name)
        except OSError as error:
            if error.errno not in _ABSENT:
                attributes[name] = None
    return attributes


def _mode_instead(entry: DirectoryEntry) -> int:
    """Return the mode of the file that is replaced, or what the umask leaves for a new one."""
    mode = 0
    with suppress(FileNotFoundError):
        mode = os.stat(entry.name, dir_fd=entry.directory, follow_symlinks=False).st_mode
    # Set-ID bits were granted to the old bytes.
    return mode & 0o777 if stat.S_ISREG(mode) else 0o666 & ~_umask()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@named_if_need_be
def write_output(
    path: str,
    content: FileData,
    *,
    source: InputFile | None = None,
    is_copy: bool = False,
    keeps_rights: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[str, ...]:
    """Write to a path, through symbolic links: a file, a device, `-` for stdout. Returns warnings.

    A file is new, or a copy of `source` (`is_copy`) with its rights (see `rewrite_file`), and complete before it has
    the name. Anything else, or what is open already (`/dev/stdout`), is written to directly, after all of the content
    has been read and checked in memory.

    Raises `OutputError` when it cannot be written, `EmbedError` for rights, `BrokenPipeError` when the reader of a pipe
    has closed it, `ChangedError` when `source` has been changed, and what `check` raises.
    """
    try:
        with _stream_at(path) as stream:
            if stream is None:
                target = os.path.realpath(path)
                if is_copy and source is not None:
                    return _write_copy(target, content, source, check, keeps_rights=keeps_rights)
                _write_new(target, content, source, check)
                return ()
            data = bytes(content)
            if check is not None:
                check(data)
            if source is not None:
                source.check()
            sys.stdout.flush()
            stream.write(data)
            stream.flush()
            return ()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(reason_of(error), "<stdout>" if path == "-" else path) from None


def _stream_at(path: str) -> AbstractContextManager[BinaryIO | None]:
    """Open what a path names, unless it is a file to replace. Raises `OSError` also where no file can be made."""
    if path == "-":
        return nullcontext(sys.stdout.buffer)
    descriptor = _open_descriptor(path)
    if descriptor is not None:
        # Opened again, a log would be written to from its start, which the shell may have opened to append.
        return open(os.dup(descriptor), "wb")
    try:
        if stat.S_ISREG(os.stat(path).st_mode):
            return nullcontext()
    except FileNotFoundError:
        if not path:
            raise
        if path.endswith(os.sep):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
        return nullcontext()
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ChangedError("a device or a pipe was replaced by a file")
    return open(descriptor, "wb")


def _open_descriptor(path: str) -> int | None:
    """Return the descriptor of this process that a path leads to, as `/dev/stderr` does: 2."""
    for _ in range(_MAX_LINKS):
        directory, name = os.path.realpath(os.path.dirname(path)), os.path.basename(path)
        if name.isdigit() and directory.startswith(f"/proc/{os.getpid()}/") and directory.endswith("/fd"):
            return int(name)
        try:
            path = os.path.join(directory, os.readlink(os.path.join(directory, name)))
        except OSError:
            break
    return None
