# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files that a user names, reading only the first bytes of those in directories; and open them."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from itertools import chain
from typing import Final

from cfi2sframe.constants.elf import ELF_MAGIC
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.load import open_unfollowed, read_file, read_open, read_stream
from cfi2sframe.errors import ChangedError, RequestError, reason_of
from cfi2sframe.files.new_file import TEMPORARY_PREFIX, remove_leftover
from cfi2sframe.files.source import STANDARD_INPUT, Source, named_source

#: Bytes that tell an archive from a package.
_START_SIZE: Final = len(b"!<arch>\ndebian-binary")
#: The largest list (bytes): more than any real one, because some devices never end.
_MAX_LIST_SIZE: Final = 1 << 28
_BLOCK_SIZE: Final = 1 << 20
#: How static archives begin; thin ones name files beside them.
ARCHIVE_MAGIC: Final = b"!<arch>\n"
THIN_MAGIC: Final = b"!<thin>\n"

#: Equal for two names of one file: device and inode or, if stat fails, the resolved path.
_Identity = tuple[int, int] | str


def find_sources(
    named: Iterable[str],
    excluded: Sequence[str] = (),
    listed: Iterable[str] = (),
    *,
    with_archives: bool = False,
    is_relative: bool = False,
    cleans: bool = False,
) -> list[Source]:
    """Return the files that names stand for, each once, in the order of the names; for a directory, its ELF files.

    These are sorted; links, and what the shell patterns `excluded` match, are left out (see `_filter_of`).
    `with_archives`: static archives are files, too. `is_relative`: a file in a directory is called by its path below
    that, any other by its last part. `cleans`: files that a killed run has left in a directory are removed. A file that
    cannot be read raises nothing: it has a `fault`.
    """
    files: dict[_Identity, tuple[Source, dict[str, None], dict[str, None]]] = {}
    for path, is_listed in chain(((path, False) for path in named), ((path, True) for path in listed)):
        shown_root = "" if is_relative else path
        for identity, file in _files_at(path, shown_root, excluded, with_archives=with_archives, cleans=cleans):
            source, targets, names = files.setdefault(identity, (file._replace(is_listed=is_listed), {}, {}))
            targets |= dict.fromkeys(file.targets)
            names[file.name] = None
            # A file that is named has to be fit, even if a directory had it first.
            if source.may_be_unfit:
                files[identity] = source._replace(is_found=file.is_found, is_listed=is_listed), targets, names
    return [
        source._replace(targets=tuple(targets), other_names=tuple(names)[1:])
        for source, targets, names in files.values()
    ]


def _files_at(
    path: str, shown_root: str, excluded: Sequence[str], *, with_archives: bool, cleans: bool
) -> Iterator[tuple[_Identity, Source]]:
    """Yield the file that has a name, or the files of a directory, which are called by their paths below a root."""
    source = named_source(path)
    if path == STANDARD_INPUT:
        yield path, source
    elif os.path.isdir(path):
        magics = (ELF_MAGIC, ARCHIVE_MAGIC) if with_archives else (ELF_MAGIC,)
        yield from _files_under((path, shown_root, source.targets[0]), excluded, magics, cleans=cleans)
    else:
        identity: _Identity = source.targets[0]
        try:
            status = os.stat(path)
            identity = (status.st_dev, status.st_ino)
            # A pipe can be read only once.
            source = source._replace(size=status.st_size, is_stream=not stat.S_ISREG(status.st_mode))
            is_archive = with_archives and not source.is_stream and _is_archive(_start_of(path))
            source = source._replace(is_archive=is_archive)
        except OSError as error:
            source = source._replace(fault=reason_of(error))
        yield identity, source._replace(name=shown_root or os.path.basename(path))


def _files_under(
    roots: tuple[str, str, str], excluded: Sequence[str], magics: tuple[bytes, ...], *, cleans: bool
) -> Iterator[tuple[_Identity, Source]]:
    """Yield the files under a directory that begin with one of `magics`, sorted; unreadable directories last.

    `roots`: the directory as it is opened, as it is shown, and resolved.
    """
    root = roots[0]

    def source_at(below: str) -> Source:
        path, name, target = (os.path.join(top, below) if below else top for top in roots)
        return Source(path, name or root, targets=(target,), is_found=True)

    is_taken = _filter_of(root, excluded)
    unreadable: list[Source] = []
    # `os.walk` calls itself for each level before Python 3.12.
    directories = [""]
    while directories:
        directory = directories.pop()
        try:
            with os.scandir(os.path.join(root, directory)) as entries:
                is_directory = {os.path.join(directory, e.name): e.is_dir(follow_symlinks=False) for e in entries}
        except OSError as error:
            unreadable.append(source_at(directory)._replace(fault=reason_of(error)))
            continue
        for path in is_directory if cleans else ():
            remove_leftover(os.path.join(roots[2], path))
        taken = sorted(filter(is_taken, is_directory))
        for path in taken:
            if not is_directory[path]:
                yield from _if_wanted(source_at(path), magics)
        directories += [path for path in reversed(taken) if is_directory[path]]
    yield from ((source.targets[0], source) for source in unreadable)


def _filter_of(root: str, excluded: Iterable[str]) -> Callable[[str], bool]:
    """Return a predicate for paths below a directory: no shell pattern excludes them, and they are not our own.

    A pattern without a slash is matched against the name, one with a slash against the path below the directory, one
    that begins with a slash against the absolute path, by the given name of the directory or its resolved one. `*`
    matches slashes, too.
    """
    patterns = [pattern.rstrip(os.sep).removeprefix("./") for pattern in excluded]
    roots = {os.path.abspath(root), os.path.realpath(root)}

    def is_taken(path: str) -> bool:
        name = os.path.basename(path)
        absolute = [os.path.join(root, path) for root in roots]
        return not name.startswith(TEMPORARY_PREFIX) and not any(
            fnmatchcase(text, pattern)
            for pattern in patterns
            for text in (absolute if pattern.startswith(os.sep) else [path if os.sep in pattern else name])
        )

    return is_taken


def _if_wanted(source: Source, magics: tuple[bytes, ...]) -> Iterator[tuple[_Identity, Source]]:
    """Yield a file that begins with one of `magics`, or that cannot be read; for any other, yield nothing."""
    try:
        # Opening a device may have an effect.
        status = os.lstat(source.path)
        # Files of /proc have no size, and reading them may have an effect, too.
        if not stat.S_ISREG(status.st_mode) or not status.st_size:
            return
        descriptor = open_unfollowed(source.path)
        try:
            status = os.fstat(descriptor)
            start = os.read(descriptor, _START_SIZE) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        yield source.targets[0], source._replace(fault=reason_of(error))
        return
    if start.startswith(magics):
        yield (status.st_dev, status.st_ino), source._replace(size=status.st_size, is_archive=_is_archive(start))


def _is_archive(start: bytes) -> bool:
    return start.startswith((ARCHIVE_MAGIC, THIN_MAGIC)) and b"debian" not in start


def _start_of(path: str) -> bytes:
    """Return the first bytes of a file, which tell its kind. Raises `OSError`."""
    with open(path, "rb") as file:
        return file.read(_START_SIZE)


def read_named(path: str) -> FileData:
    """Return the bytes of a file that a user has named; `-` is standard input. Raises `OSError` with the path."""
    return read_stream(sys.stdin.buffer) if path == STANDARD_INPUT else read_file(path)


@contextmanager
def closed_after(data: FileData) -> Iterator[FileData]:
    """Give bytes and, at the end of the block, close the file of those that are read on demand."""
    try:
        yield data
    finally:
        if not isinstance(data, Buffer):
            data.close()


def open_source(source: Source) -> AbstractContextManager[FileData]:
    """Give the bytes of a file; leaving the context closes it. Raises `InputError`, `OSError`."""
    source.raise_fault()
    return closed_after(_read_unfollowed(source) if source.is_found else read_named(source.path))


def _read_unfollowed(source: Source) -> FileData:
    """Return the bytes of a file that was found. Raises `ChangedError` when something else has its name now."""
    descriptor = open_unfollowed(source.path)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ChangedError("no longer a regular file")
        return read_open(descriptor)
    finally:
        os.close(descriptor)


def names_from(path: str) -> list[str]:
    """Return the names of files in a list, also of missing ones; `-` is standard input.

    Names of anything else that `find` lists are left out, as in directories: directories, dangling links, FIFOs,
    devices. Raises `OSError` when the list cannot be read, `RequestError` when its names are lines, or when it is no
    list: an ELF file that is taken for one has strings that name files of the system.
    """
    with nullcontext(sys.stdin.buffer) if path == STANDARD_INPUT else open(path, "rb") as file:
        # In blocks, because Python allocates all that a call of `read` may return.
        data = bytearray()
        while block := file.read(_BLOCK_SIZE):
            data += block
            if len(data) > _MAX_LIST_SIZE:
                raise RequestError(f"--files-from {path}: a list of more than {_MAX_LIST_SIZE >> 20:,} MiB")
    if b"\0" not in data and b"\n" in data:
        raise RequestError(f"--files-from {path}: expected NUL-separated names (find -print0)")
    if b"\0\0" in data:
        raise RequestError(f"--files-from {path}: not a list of names, because it has an empty one")
    names = [os.fsdecode(bytes(name)) for name in data.split(b"\0") if name]
    return [name for name in names if os.path.isfile(name) or not os.path.lexists(name)]
