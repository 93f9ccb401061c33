# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names, reading no more than the first bytes of each file.

In a folder, symbolic links are skipped: their targets are found where they are, or are not part of the folder.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.files.descriptors import FileState, FolderEntry, open_folder
from cfi2sframe.files.records import AR_MAGIC, ELF_MAGIC, RPM_MAGIC, THIN_MAGIC, Source, Unusable

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.files.records import SourceKind


class TreeFile(NamedTuple):
    """An ELF file under a folder, or what cannot be read there: then `state` is None, and `reason` tells why.

    `path` is relative to the folder, and empty for the folder itself.
    """

    path: str
    state: FileState | None
    reason: str = ""

    def under(self, folder: str) -> str:
        """Return the path of the file under a name of the folder."""
        return os.path.join(folder, self.path) if self.path else folder


def elf_files_under(root: str) -> Iterator[TreeFile]:
    """Yield the ELF files under a folder (an absolute resolved path), recursively and sorted; unreadable folders last.

    Each folder is looked up again, name by name: what was a folder a moment ago may now be a link that leads elsewhere.
    """
    unreadable: list[TreeFile] = []
    folders = [""]
    while folders:
        path = folders.pop()
        try:
            descriptor = _open_to_list(os.path.join(root, path))
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        try:
            inner, names = _listed(descriptor)
            for name in names:
                file_path = os.path.join(path, name)
                try:
                    state = _elf_state(FolderEntry(descriptor, name))
                except OSError as error:
                    yield _unreadable(file_path, error)
                    continue
                if state is not None:
                    yield TreeFile(file_path, state)
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        finally:
            os.close(descriptor)
        folders += [os.path.join(path, name) for name in reversed(inner)]
    yield from unreadable


def _unreadable(path: str, error: OSError) -> TreeFile:
    return TreeFile(path, None, error.strerror or str(error))


def _open_to_list(path: str) -> int:
    folder = open_folder(path)
    try:
        return open_unfollowed(".", folder)
    finally:
        os.close(folder)


def _listed(folder: int) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders in a folder, and of everything else in it."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return sorted(folders), sorted(others)


def _elf_state(entry: FolderEntry) -> FileState | None:
    """Return the state of an ELF file, None for anything else. Raises `OSError`."""
    # Opening a device may have an effect.
    if not stat.S_ISREG(entry.status().st_mode):
        return None
    descriptor = open_unfollowed(entry.name, entry.folder)
    try:
        status = os.fstat(descriptor)
        is_elf = stat.S_ISREG(status.st_mode) and os.read(descriptor, len(ELF_MAGIC)) == ELF_MAGIC
        return FileState.of(status) if is_elf else None
    finally:
        os.close(descriptor)


def find_sources(paths: Iterable[str]) -> Iterator[Source | Unusable]:
    """Yield what to open under the paths, in their order: ELF files, archives, packages; a folder's ELF files, sorted.

    `-` is standard input.
    In folders, further names of a file found before are skipped.
    """
    seen: set[tuple[int, int]] = set()
    for path in paths:
        if path == "-":
            yield Source(path, "<stdin>", "elf", 0)
        elif os.path.isdir(path):
            yield from _sources_under(path, path, seen)
        else:
            yield _named(path, path)


def find_relative(root: str) -> Iterator[Source | Unusable]:
    """Yield what `find_sources` does for one path, named relative to it; a file is named by its last part."""
    if os.path.isdir(root):
        yield from _sources_under(root, "", set())
    else:
        yield _named(root, os.path.basename(root))


def _sources_under(root: str, shown_root: str, seen: set[tuple[int, int]]) -> Iterator[Source | Unusable]:
    for found in elf_files_under(os.path.realpath(root)):
        name = found.under(shown_root) or root
        if found.state is None:
            yield Unusable(name, found.reason)
        elif (identity := (found.state.device, found.state.inode)) not in seen:
            seen.add(identity)
            yield Source(found.under(root), name, "elf", found.state.size, is_in_folder=True)


def _named(path: str, name: str) -> Source | Unusable:
    """Return what kind of file the user has named, by its first bytes."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            # The bytes of a pipe can be read only once, so its kind stays unknown until then.
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
