# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names, reading only the first bytes of those in directories; and open them."""

import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from fnmatch import fnmatchcase
from typing import Final, NamedTuple

from cfi2sframe.constants.elf import ELF_MAGIC
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.load import open_unfollowed, read_file, read_open, read_stream
from cfi2sframe.errors import ChangedError, ErrorKind, RequestError
from cfi2sframe.files.write import TEMPORARY_PREFIX

#: What is often taken for an ELF file: how it begins, and what to do instead.
_CONTAINERS: Final = (
    (b"!<arch>\ndebian-binary", "a package: unpack it first (dpkg-deb -x)"),
    (b"\xed\xab\xee\xdb", "a package: unpack it first (rpm2cpio)"),
    (b"BC\xc0\xde", "LLVM bitcode: use the linked file"),
    (b"!<arch>\n", "a static archive: use the program linked with it, or extract the objects first (ar x)"),
    (b"!<thin>\n", "a thin archive: use the program linked with it, or the objects that it names"),
)
#: The largest list (bytes): more than any real one, because some devices never end.
_MAX_LIST_SIZE: Final = 1 << 28
_BLOCK_SIZE: Final = 1 << 20
#: The path that stands for standard input; a file of this name is `./-`.
STANDARD_INPUT: Final = "-"


#: How static archives begin; thin ones name files beside them.
ARCHIVE_MAGIC: Final = b"!<arch>\n"
THIN_MAGIC: Final = b"!<thin>\n"


class Source(NamedTuple):
    """A file to open. `name` is what reports call it, `size` its bytes, holes included.

    `is_found`: it was found in a directory or an archive, not named; then it must be a regular file when it is opened.
    `is_listed`: a list of files names it. `is_archive`: what is asked of it is asked of the ELF files in it.
    """

    path: str
    name: str
    size: int
    is_found: bool = False
    is_listed: bool = False
    is_archive: bool = False


class Unusable(NamedTuple):
    """A file that is not read, or `file_count` of them: `reason` says why, `kind` says so to programs."""

    name: str
    reason: str
    kind: ErrorKind = ErrorKind.SYSTEM
    file_count: int = 1


class TreeFile(NamedTuple):
    """An ELF file under a directory, or what cannot be read there: then `status` is None, and `reason` tells why.

    `path` is relative to the directory, and empty for the directory itself.
    """

    path: str
    status: os.stat_result | None
    reason: str = ""

    def under(self, directory: str) -> str:
        """Return the path of the file under a name of the directory."""
        return os.path.join(directory, self.path) if self.path else directory


def find_sources(
    paths: Iterable[str], excluded: Sequence[str] = (), *, is_relative: bool = False
) -> Iterator[Source | Unusable]:
    """Yield the files that are named by the paths, in their order; of a directory its ELF files, sorted.

    In directories, further names of a file found before are skipped, and so is what the shell patterns `excluded` name.
    `is_relative`: a file in a directory is named relative to that, any other by its last part.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if os.path.isdir(path):
            yield from _sources_under(path, "" if is_relative else path, excluded, seen)
        else:
            yield _named(path, os.path.basename(path) if is_relative else path)


def _sources_under(
    root: str, shown_root: str, excluded: Sequence[str], seen: set[tuple[int, int]]
) -> Iterator[Source | Unusable]:
    # What a thin archive names is found by itself, or is elsewhere.
    for found in elf_files_under(root, excluded, (ELF_MAGIC, ARCHIVE_MAGIC)):
        name = found.under(shown_root) or root
        if found.status is None:
            yield Unusable(name, found.reason)
        elif (identity := (found.status.st_dev, found.status.st_ino)) not in seen:
            seen.add(identity)
            yield _source_at(found.under(root), name, found.status, is_found=True)


def elf_files_under(
    root: str, excluded: Iterable[str] = (), magics: Sequence[bytes] = (ELF_MAGIC,)
) -> Iterator[TreeFile]:
    """Yield the ELF files under a directory, recursively and sorted, without links; unreadable directories last.

    `magics`: yield files that begin with one of these. `excluded` are shell patterns of what is skipped. One without a
    slash is matched against the name, one with a slash against the path below the directory, one that begins with a
    slash against the absolute path, by the given name of the directory or its resolved one. `*` matches slashes, too.
    """
    patterns = [pattern.rstrip(os.sep).removeprefix("./") for pattern in excluded]
    start, roots = os.path.join(root, ""), {os.path.abspath(root), os.path.realpath(root)}

    def is_taken(path: str) -> bool:
        name = os.path.basename(path)
        absolute = [os.path.join(root, path) for root in roots]
        return not name.startswith(TEMPORARY_PREFIX) and not any(
            fnmatchcase(text, pattern)
            for pattern in patterns
            for text in (absolute if pattern.startswith(os.sep) else [path if os.sep in pattern else name])
        )

    unreadable: list[TreeFile] = []
    # `os.walk` calls itself for each level before Python 3.12.
    directories = [""]
    while directories:
        directory = directories.pop()
        try:
            with os.scandir(start + directory) as entries:
                is_directory = {os.path.join(directory, e.name): e.is_dir(follow_symlinks=False) for e in entries}
        except OSError as error:
            unreadable.append(TreeFile(directory, None, error.strerror or str(error)))
            continue
        taken = sorted(filter(is_taken, is_directory))
        for path in taken:
            if not is_directory[path]:
                yield from _file_with(magics, start, path)
        directories += [path for path in reversed(taken) if is_directory[path]]
    yield from unreadable


def _file_with(magics: Sequence[bytes], start: str, path: str) -> Iterator[TreeFile]:
    """Yield a file that begins with one of `magics`, or why it cannot be read; nothing for anything else."""
    try:
        # Opening a device may have an effect.
        if not stat.S_ISREG(os.lstat(start + path).st_mode):
            return
        descriptor = open_unfollowed(start + path)
        try:
            status = os.fstat(descriptor)
            begin = os.read(descriptor, max(map(len, magics))) if stat.S_ISREG(status.st_mode) else b""
        finally:
            os.close(descriptor)
    except OSError as error:
        yield TreeFile(path, None, error.strerror or str(error))
        return
    if begin.startswith(tuple(magics)):
        yield TreeFile(path, status)


def _named(path: str, name: str) -> Source | Unusable:
    """Return a file that the user has named; `-` is standard input."""
    if path == STANDARD_INPUT:
        return Source(path, "<stdin>", 0)
    try:
        status = os.stat(path)
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    return _source_at(path, name, status)


def _source_at(path: str, name: str, status: os.stat_result, *, is_found: bool = False) -> Source | Unusable:
    source = Source(path, name, status.st_size, is_found)
    # A pipe can be read only once.
    if not stat.S_ISREG(status.st_mode):
        return source
    try:
        # A name in a directory may be another file's by now.
        with open(open_unfollowed(path) if is_found else path, "rb") as file:
            start = file.read(len(_CONTAINERS[0][0]))
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    return source._replace(is_archive=start.startswith((ARCHIVE_MAGIC, THIN_MAGIC)) and b"debian" not in start)


def read_named(path: str) -> FileData:
    """Return the bytes of a file that a user has named; `-` is standard input. Raises `OSError` with the path."""
    return read_stream(sys.stdin.buffer) if path == STANDARD_INPUT else read_file(path)


@contextmanager
def closed_after(data: FileData) -> Iterator[FileData]:
    """Give bytes that are closed at the end of a block: the file of those that are read on demand."""
    try:
        yield data
    finally:
        if not isinstance(data, Buffer):
            data.close()


def open_source(source: Source) -> AbstractContextManager[FileData]:
    """Give the bytes of a file; leaving the context closes it. Raises `InputError`, `OSError`."""
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


def hint_about(path: str) -> str:
    """Return what a file is that is no ELF file, and what to do with it, if it is an archive or a package."""
    try:
        # A pipe can be read only once.
        if not stat.S_ISREG(os.stat(path).st_mode):
            return ""
        with open(path, "rb") as file:
            start = file.read(len(_CONTAINERS[0][0]))
    except OSError:
        return ""
    return next((f", but {hint}" for magic, hint in _CONTAINERS if start.startswith(magic)), "")


def names_from(path: str) -> list[str]:
    """Return the names of files in a list, also of missing ones; `-` is standard input.

    What else `find` lists is left out, as in directories: these, links that lead nowhere, FIFOs, devices. Raises
    `OSError` when it cannot be read, `RequestError` when its names are lines, or when it is no list: an ELF file that
    is taken for one has strings that name files of the system.
    """
    with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        # In blocks: Python allocates all that a call of `read` may return.
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
