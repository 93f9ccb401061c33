# SPDX-License-Identifier: Apache-2.0
"""From what a user names to one job per file: folders are walked, and a file with several names is one job."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from cfi2sframe.batch.records import FileState, Job, Settings

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
        try:
            status = os.stat(path)
        except OSError:
            found.add(path, os.path.abspath(path), None, settings)
            continue
        if recurse and stat.S_ISDIR(status.st_mode):
            inside = settings._replace(skips_unfit=True)
            # Nothing below is a symbolic link, so this is the only one that has to be resolved.
            real_root = os.path.realpath(path)
            for file, state in _elf_files(path):
                found.add(file, os.path.join(real_root, file[len(path) :].lstrip(os.sep)), state, inside)
        else:
            found.add(path, os.path.realpath(path), FileState.of(status), settings)
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
    """Yield the ELF files under a folder, and what cannot be read."""
    unreadable: list[str] = []

    def note(error: OSError) -> None:
        if isinstance(error.filename, str):
            unreadable.append(error.filename)

    for folder, folders, names in os.walk(root, onerror=note):
        folders.sort()
        for name in sorted(names):
            path = os.path.join(folder, name)
            try:
                status = os.lstat(path)
                if not stat.S_ISREG(status.st_mode) or not _is_elf(path):
                    continue
            except OSError:
                yield path, None
                continue
            yield path, FileState.of(status)
    for path in unreadable:
        yield path, None


def _is_elf(path: str) -> bool:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, len(_ELF_MAGIC)) == _ELF_MAGIC
    finally:
        os.close(descriptor)
