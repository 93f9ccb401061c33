# SPDX-License-Identifier: Apache-2.0
"""From what a user names to one job per file: folders are walked, and a file with several names is one job."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.files.source import Place, open_folder
from cfi2sframe.jobs.records import FileState, Job, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_ELF_MAGIC: Final = b"\x7fELF"


def work_list(paths: Iterable[str], settings: Settings = Settings(), *, recurse: bool = False) -> list[Job]:
    """Return a job per file, in the order of the paths.

    A symbolic link that is named stands for its target; hard links and repetitions are names of one job. With
    `recurse` a folder stands for the ELF files in it, recursively and sorted; symbolic links in there are passed over
    (what they lead to is converted where it is, or is none of the folder's), and so is what has nothing to convert.
    What cannot be looked at is a job too, and fails when it is run. Raises nothing.
    """
    found = _Found()
    for path in paths:
        target = os.path.abspath(path)
        try:
            # The links that the user names are followed here, once; from now on there are none in any target.
            target = os.path.realpath(path)
            status = os.stat(path)
        except OSError:
            found.add(path, target, None, settings)
            continue
        if recurse and stat.S_ISDIR(status.st_mode):
            inside = settings._replace(skips_unfit=True)
            for name, state in _elf_files(target):
                # What cannot be read may be the folder itself.
                inner = (os.path.join(path, name), os.path.join(target, name)) if name else (path, target)
                found.add(*inner, state, inside)
        else:
            found.add(path, target, FileState.of(status), settings)
    return found.jobs()


class _Found:
    """Names by the file that they are names of."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int] | str, list[tuple[str, str]]] = {}
        self._first: dict[tuple[int, int] | str, tuple[FileState | None, Settings]] = {}

    def add(self, name: str, target: str, state: FileState | None, settings: Settings) -> None:
        key = target if state is None else (state.device, state.inode)
        # What is named must be fit, also if it was found in a folder before.
        known, strictest = self._first.get(key, (state, settings))
        self._first[key] = (known, settings if strictest.skips_unfit else strictest)
        self._names.setdefault(key, []).append((name, target))

    def jobs(self) -> list[Job]:
        jobs = []
        for key, names in self._names.items():
            state, settings = self._first[key]
            targets = tuple(dict.fromkeys(target for _, target in names))
            name = names[0][0]
            others = tuple(dict.fromkeys(other for other, _ in names[1:] if other != name))
            jobs.append(Job(name, targets, others, state, settings))
        return jobs


def _elf_files(root: str) -> Iterator[tuple[str, FileState | None]]:
    """Yield the ELF files under a folder, and what cannot be read, by their paths in it.

    Each folder is looked up anew, name by name: what was a folder a moment ago may be a link that leads elsewhere.
    """
    unreadable: list[str] = []
    folders = [""]
    while folders:
        path = folders.pop()
        try:
            descriptor = _open_to_list(os.path.join(root, path))
        except OSError:
            unreadable.append(path)
            continue
        try:
            inner, names = _listed(descriptor)
            for name in names:
                try:
                    state = _elf_state(Place(descriptor, name))
                except OSError:
                    yield os.path.join(path, name), None
                    continue
                if state is not None:
                    yield os.path.join(path, name), state
        except OSError:
            unreadable.append(path)
            continue
        finally:
            os.close(descriptor)
        folders += [os.path.join(path, name) for name in reversed(inner)]
    for path in unreadable:
        yield path, None


def _open_to_list(path: str) -> int:
    folder = open_folder(path)
    try:
        return open_unfollowed(".", folder)
    finally:
        os.close(folder)


def _listed(folder: int) -> tuple[list[str], list[str]]:
    """Return the sorted names of the folders in a folder, and of what else is in there."""
    folders: list[str] = []
    others: list[str] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            (folders if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
    return sorted(folders), sorted(others)


def _elf_state(place: Place) -> FileState | None:
    """Return the state of what has a name, if it is an ELF file. Raises `OSError`."""
    # Opening a device may be an act.
    if not stat.S_ISREG(place.status().st_mode):
        return None
    descriptor = open_unfollowed(place.name, place.folder)
    try:
        status = os.fstat(descriptor)
        is_elf = stat.S_ISREG(status.st_mode) and os.read(descriptor, len(_ELF_MAGIC)) == _ELF_MAGIC
        return FileState.of(status) if is_elf else None
    finally:
        os.close(descriptor)
