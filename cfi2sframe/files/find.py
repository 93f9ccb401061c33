# SPDX-License-Identifier: Apache-2.0
"""List what there is to open, and read no more of it than its first bytes."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.files.records import AR_MAGIC, ELF_MAGIC, RPM_MAGIC, THIN_MAGIC, Source, Unusable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.files.records import SourceKind


def find_sources(paths: Iterable[str]) -> Iterator[Source | Unusable]:
    """Yield what to open under the paths, in their order; folders give their ELF files, sorted by name.

    In folders, symbolic links and further names of a file seen already are passed over.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if not os.path.isdir(path):
            yield _named(path, path)
            continue
        for file in _files_under(path):
            found = _in_folder(file, file, seen)
            if found is not None:
                yield found


def find_relative(root: str) -> Iterator[Source | Unusable]:
    """Yield what `find_sources` does for one path, named relative to it; a file is named by its last part."""
    if not os.path.isdir(root):
        yield _named(root, os.path.basename(root))
        return
    seen: set[tuple[int, int]] = set()
    for file in _files_under(root):
        found = _in_folder(file, os.path.relpath(file, root), seen)
        if found is not None:
            yield found


def _files_under(root: str) -> Iterator[str]:
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (os.path.join(folder, name) for name in sorted(names))


def _in_folder(path: str, name: str, seen: set[tuple[int, int]]) -> Source | Unusable | None:
    try:
        status = os.lstat(path)
        identity = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode) or identity in seen:
            return None
        seen.add(identity)
        with open(open_unfollowed(path), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode) or file.read(len(ELF_MAGIC)) != ELF_MAGIC:
                return None
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    return Source(path, name, "elf", status.st_size, is_in_folder=True)


def _named(path: str, name: str) -> Source | Unusable:
    """Say what a file is that the user named."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            # The bytes of a pipe can be read once; a FIFO that is opened once more waits for another writer.
            return Source(path, name, "elf", 0)
        with open(path, "rb") as file:
            start = file.read(len(AR_MAGIC) + 16)
    except OSError as error:
        return Unusable(name, error.strerror or str(error))
    kind: SourceKind = "elf"
    if start.startswith(THIN_MAGIC):
        return Unusable(name, "a thin archive holds no members; name the objects themselves")
    if start.startswith(AR_MAGIC):
        kind = "deb" if start[len(AR_MAGIC) :].startswith(b"debian-binary") else "archive"
    elif start.startswith(RPM_MAGIC):
        kind = "rpm"
    return Source(path, name, kind, status.st_size)
