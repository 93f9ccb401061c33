# SPDX-License-Identifier: Apache-2.0
"""The ELF files in a folder, by the first bytes of each: what is walked into, and what is left alone.

Symbolic links are skipped: their targets are found where they are, or are not part of the folder.
"""

from __future__ import annotations

import os
import stat
from contextlib import ExitStack
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.files.records import ELF_MAGIC
from cfi2sframe.files.write import Entry, open_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class TreeFile(NamedTuple):
    """An ELF file under a folder, or what cannot be read there: then `state` is None, and `reason` tells why.

    `path` is relative to the folder, and empty for the folder itself.
    """

    path: str
    state: os.stat_result | None
    reason: str = ""

    def under(self, folder: str) -> str:
        """Return the path of the file under a name of the folder."""
        return os.path.join(folder, self.path) if self.path else folder


def elf_files_under(root: str, excluded: Iterable[str] = (), name: str = "") -> Iterator[TreeFile]:
    """Yield the ELF files under a folder (an absolute resolved path), recursively and sorted; unreadable folders last.

    `excluded` are shell patterns of what is left out, and `name` is an absolute path that a user calls the folder by,
    for these patterns. Each folder is looked up again, name by name: what was a folder a moment ago may now be a link
    that leads elsewhere. Its names are those of the folder that was opened.
    """
    patterns = [pattern.rstrip(os.sep).removeprefix("./") for pattern in excluded]
    roots = (root, name or root)
    unreadable: list[TreeFile] = []
    folders = [""]
    while folders:
        path = folders.pop()
        try:
            with ExitStack() as stack:
                descriptor = open_unfollowed(".", open_folder(os.path.join(root, path), stack))
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        try:
            inner, names = _listed(descriptor)
            for file_name in names:
                file_path = os.path.join(path, file_name)
                if not _is_excluded(file_path, patterns, roots):
                    yield from _elf_file(Entry(descriptor, file_name), file_path)
        except OSError as error:
            unreadable.append(_unreadable(path, error))
            continue
        finally:
            os.close(descriptor)
        paths = [os.path.join(path, folder) for folder in reversed(inner)]
        folders += [inner_path for inner_path in paths if not _is_excluded(inner_path, patterns, roots)]
    yield from unreadable


def _is_excluded(path: str, patterns: Sequence[str], roots: Sequence[str]) -> bool:
    """Whether a path below a folder is left out; the folders on the way have been asked about before.

    A pattern without a slash is matched against the name, one with a slash against the path, one that begins with a
    slash against the path below each of `roots`, absolute names of the folder. `*` matches slashes, too.
    """
    for pattern in patterns:
        if pattern.startswith(os.sep):
            texts = [os.path.join(root, path) for root in roots]
        else:
            texts = [path if os.sep in pattern else os.path.basename(path)]
        if any(fnmatchcase(text, pattern) for text in texts):
            return True
    return False


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


def _elf_file(entry: Entry, path: str) -> Iterator[TreeFile]:
    """Yield an ELF file, or why it cannot be read; nothing for anything else."""
    try:
        # Opening a device may have an effect.
        if not stat.S_ISREG(os.stat(entry.name, dir_fd=entry.folder, follow_symlinks=False).st_mode):
            return
        descriptor = open_unfollowed(entry.name, entry.folder)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or os.read(descriptor, len(ELF_MAGIC)) != ELF_MAGIC:
                return
        finally:
            os.close(descriptor)
    except OSError as error:
        yield _unreadable(path, error)
        return
    yield TreeFile(path, status)
