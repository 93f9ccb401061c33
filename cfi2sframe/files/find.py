# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names, reading no more than the first bytes of each file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, Literal

from cfi2sframe.files.records import AR_MAGIC, PACKAGE_MAGICS, STANDARD_INPUT, THIN_MAGIC, Source, Unusable
from cfi2sframe.files.walk import elf_files_under

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

#: Enough of a file (bytes) to tell archives and packages apart.
_START_SIZE: Final = len(AR_MAGIC) + 16


def find_sources(paths: Iterable[str], excluded: Sequence[str] = ()) -> Iterator[Source | Unusable]:
    """Yield what to open under the paths, in their order: ELF files, archives; a folder's ELF files, sorted.

    In folders, further names of a file found before are skipped, and so is what the shell patterns `excluded` name.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if os.path.isdir(path):
            yield from _sources_under(path, path, excluded, seen)
        else:
            yield _named(path, path)


def find_relative(root: str, excluded: Sequence[str] = ()) -> Iterator[Source | Unusable]:
    """Yield what `find_sources` does for one path, named relative to it; a file is named by its last part."""
    if os.path.isdir(root):
        yield from _sources_under(root, "", excluded, set())
    else:
        yield _named(root, os.path.basename(root))


def _sources_under(
    root: str, shown_root: str, excluded: Sequence[str], seen: set[tuple[int, int]]
) -> Iterator[Source | Unusable]:
    for found in elf_files_under(os.path.realpath(root), excluded, os.path.abspath(root)):
        name = found.under(shown_root) or root
        if found.state is None:
            yield Unusable(name, found.reason)
        elif (identity := (found.state.st_dev, found.state.st_ino)) not in seen:
            seen.add(identity)
            yield Source(found.under(root), name, "elf", found.state.st_size, is_in_folder=True)


def _named(path: str, name: str) -> Source | Unusable:
    """Return what kind of file the user has named, by its first bytes; `-` is standard input."""
    if path == STANDARD_INPUT:
        return Source(path, "<stdin>", "elf", 0)
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            # The bytes of a pipe can be read only once, so its kind stays unknown until then.
            return Source(path, name, "elf", 0)
        with open(path, "rb") as file:
            start = file.read(_START_SIZE)
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    if start.startswith(THIN_MAGIC):
        return Unusable(name, "a thin archive holds no members; name the objects themselves")
    container = _container_by(start)
    if container == "package":
        return Unusable(name, "a package; unpack it first (dpkg-deb -x, rpm2cpio)")
    return Source(path, name, container or "elf", status.st_size)


def kind_of_container(path: str) -> Literal["archive", "package"] | None:
    """Return whether a regular file is a static archive or a package; None for anything else."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            return _container_by(file.read(_START_SIZE))
    except OSError:
        return None


def _container_by(start: bytes) -> Literal["archive", "package"] | None:
    if start.startswith(PACKAGE_MAGICS):
        return "package"
    return "archive" if start.startswith((AR_MAGIC, THIN_MAGIC)) else None
