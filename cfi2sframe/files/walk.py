# SPDX-License-Identifier: Apache-2.0
"""The ELF files in a folder, by the first bytes of each: what is walked into, and what is left alone.

Symbolic links are skipped: their targets are found where they are, or are not part of the folder.
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.files.descriptors import FileState, FolderEntry, open_folder
from cfi2sframe.files.mounts import Boundary, Mount
from cfi2sframe.files.records import ELF_MAGIC

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Why a mount point has no files here, in reports.
MOUNT_POINT: Final = "a mount point"


class Walk(NamedTuple):
    """What of a folder is left out: what these shell patterns name (`Exclusions`), and other file systems.

    Without `one_file_system`, file systems that are mounted in the folder are walked into, except those of the kernel
    (/proc, /sys, /dev ...).
    """

    excluded: tuple[str, ...] = ()
    one_file_system: bool = True


class TreeFile(NamedTuple):
    """An ELF file under a folder, or what is not read there: then `state` is None, and `reason` tells why.

    `path` is relative to the folder, and empty for the folder itself. `is_mount_point`: it could be read, but is part
    of another file system.
    """

    path: str
    state: FileState | None
    reason: str = ""
    is_mount_point: bool = False

    def under(self, folder: str) -> str:
        """Return the path of the file under a name of the folder."""
        return os.path.join(folder, self.path) if self.path else folder


def elf_files_under(root: str, walk: Walk = Walk(), name: str = "") -> Iterator[TreeFile]:
    """Yield the ELF files under a folder (an absolute resolved path), recursively and sorted; unreadable folders last.

    `name` is an absolute path that a user calls the folder by, for the patterns of the walk. Each folder is looked up
    again, name by name: what was a folder a moment ago may now be a link that leads elsewhere. Its mount is asked of
    the folder that was opened, and its names are those of that folder.
    """
    is_excluded = _excluder(walk, root, name)
    boundary: Boundary | None = None
    unreadable: list[TreeFile] = []
    folders = [""]
    while folders:
        path = folders.pop()
        try:
            place = open_folder(os.path.join(root, path))
            try:
                if boundary is None:
                    boundary = Boundary(Mount.of(place), one_file_system=walk.one_file_system)
                elif boundary.leaves_out(place):
                    yield TreeFile(path, None, MOUNT_POINT, is_mount_point=True)
                    continue
                descriptor = open_unfollowed(".", place)
            finally:
                os.close(place)
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        try:
            inner, names = _listed(descriptor)
            for file_name in names:
                file_path = os.path.join(path, file_name)
                if not is_excluded(file_path):
                    yield from _elf_file(FolderEntry(descriptor, file_name), file_path, boundary)
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        finally:
            os.close(descriptor)
        paths = [os.path.join(path, folder) for folder in reversed(inner)]
        folders += [inner_path for inner_path in paths if not is_excluded(inner_path)]
    yield from unreadable


def _excluder(walk: Walk, root: str, name: str) -> Callable[[str], bool]:
    if not walk.excluded:
        return lambda _path: False
    from cfi2sframe.files.exclusions import Exclusions

    return Exclusions(walk.excluded, tuple(dict.fromkeys((root, name or root)))).match


def _unreadable(path: str, error: OSError) -> TreeFile:
    return TreeFile(path, None, error.strerror or str(error))


def _listed(folder: int) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders in a folder, and of everything else in it."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return sorted(folders), sorted(others)


def _elf_file(entry: FolderEntry, path: str, boundary: Boundary) -> Iterator[TreeFile]:
    """Yield an ELF file, or why it cannot be read; nothing for anything else."""
    try:
        # Opening a device may have an effect.
        if not stat.S_ISREG(entry.status().st_mode):
            return
        descriptor = open_unfollowed(entry.name, entry.folder)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or os.read(descriptor, len(ELF_MAGIC)) != ELF_MAGIC:
                return
            is_left_out = boundary.leaves_out_file(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        yield _unreadable(path, error)
        return
    yield (
        TreeFile(path, None, MOUNT_POINT, is_mount_point=True) if is_left_out else TreeFile(path, FileState.of(status))
    )
