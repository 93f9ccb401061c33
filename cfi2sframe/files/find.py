# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names, reading no more than the first bytes of each file."""

from __future__ import annotations

import os
import stat
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.elf.constants import ELF_MAGIC
from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.errors import ErrorKind
from cfi2sframe.files.write import TEMPORARY_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

AR_MAGIC: Final = b"!<arch>\n"
_THIN_MAGIC: Final = b"!<thin>\n"
#: What Debian and RPM packages begin with. They are not read.
_PACKAGE_MAGICS: Final = (AR_MAGIC + b"debian-binary", b"\xed\xab\xee\xdb")
_START_SIZE: Final = len(_PACKAGE_MAGICS[0])
#: The path that stands for standard input; a file of this name is `./-`.
STANDARD_INPUT: Final = "-"


class Source(NamedTuple):
    """A file to open. `name` is what reports call it, `size` its bytes, holes included.

    `is_in_folder`: it was found in a folder, not named; then it must still be a regular file when it is opened.
    """

    path: str
    name: str
    kind: Literal["elf", "archive"]
    size: int
    is_in_folder: bool = False


class Unusable(NamedTuple):
    """What cannot be opened, or read to the end: why, for people and for programs."""

    name: str
    reason: str
    kind: ErrorKind = ErrorKind.UNUSABLE


class TreeFile(NamedTuple):
    """An ELF file under a folder, or what cannot be read there: then `status` is None, and `reason` tells why.

    `path` is relative to the folder, and empty for the folder itself.
    """

    path: str
    status: os.stat_result | None
    reason: str = ""

    def under(self, folder: str) -> str:
        """Return the path of the file under a name of the folder."""
        return os.path.join(folder, self.path) if self.path else folder


def find_sources(
    paths: Iterable[str], excluded: Sequence[str] = (), *, is_relative: bool = False
) -> Iterator[Source | Unusable]:
    """Yield what to open under the paths, in their order: ELF files, archives; a folder's ELF files, sorted.

    In folders, further names of a file found before are skipped, and so is what the shell patterns `excluded` name.
    `is_relative`: a file in a folder is named relative to that, any other by its last part.
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
    for found in elf_files_under(root, excluded):
        name = found.under(shown_root) or root
        if found.status is None:
            yield Unusable(name, found.reason)
        elif (identity := (found.status.st_dev, found.status.st_ino)) not in seen:
            seen.add(identity)
            yield Source(found.under(root), name, "elf", found.status.st_size, is_in_folder=True)


def elf_files_under(root: str, excluded: Iterable[str] = ()) -> Iterator[TreeFile]:
    """Yield the ELF files under a folder, recursively and sorted, without links; unreadable folders last.

    `excluded` are shell patterns of what is left out. One without a slash is matched against the name, one with a slash
    against the path below the folder, one that begins with a slash against the absolute path, by the given name of the
    folder or the one that it leads to. `*` matches slashes, too.
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
    folders = [""]
    while folders:
        folder = folders.pop()
        try:
            with os.scandir(start + folder) as entries:
                is_folder = {os.path.join(folder, e.name): e.is_dir(follow_symlinks=False) for e in entries}
        except OSError as error:
            unreadable.append(TreeFile(folder, None, error.strerror or str(error)))
            continue
        taken = sorted(filter(is_taken, is_folder))
        for path in taken:
            if not is_folder[path]:
                yield from _elf_file(start, path)
        folders += [path for path in reversed(taken) if is_folder[path]]
    yield from unreadable


def _elf_file(start: str, path: str) -> Iterator[TreeFile]:
    """Yield an ELF file, or why it cannot be read; nothing for anything else."""
    try:
        # Opening a device may have an effect.
        if not stat.S_ISREG(os.lstat(start + path).st_mode):
            return
        descriptor = open_unfollowed(start + path)
        try:
            status = os.fstat(descriptor)
            is_elf = stat.S_ISREG(status.st_mode) and os.read(descriptor, len(ELF_MAGIC)) == ELF_MAGIC
        finally:
            os.close(descriptor)
    except OSError as error:
        yield TreeFile(path, None, error.strerror or str(error))
        return
    if is_elf:
        yield TreeFile(path, status)


def _named(path: str, name: str) -> Source | Unusable:
    """Return what kind of file the user has named, by its first bytes; `-` is standard input."""
    if path == STANDARD_INPUT:
        return Source(path, "<stdin>", "elf", 0)
    try:
        status, start = _start_of(path)
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    if start.startswith(_THIN_MAGIC):
        return Unusable(name, "a thin archive holds no members; name the objects themselves")
    container = _container_by(start)
    if container == "package":
        return Unusable(name, "a package; unpack it first (dpkg-deb -x, rpm2cpio)")
    return Source(path, name, container or "elf", status.st_size)


def kind_of_container(path: str) -> Literal["archive", "package"] | None:
    """Return whether a regular file is a static archive or a package; None for anything else."""
    try:
        return _container_by(_start_of(path)[1])
    except OSError:
        return None


def _start_of(path: str) -> tuple[os.stat_result, bytes]:
    """Return the status of a file and its first bytes: of a pipe none, because they can be read only once."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        return status, b""
    with open(path, "rb") as file:
        return status, file.read(_START_SIZE)


def _container_by(start: bytes) -> Literal["archive", "package"] | None:
    if start.startswith(_PACKAGE_MAGICS):
        return "package"
    return "archive" if start.startswith((AR_MAGIC, _THIN_MAGIC)) else None
