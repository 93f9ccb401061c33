# SPDX-License-Identifier: Apache-2.0
"""From what a user names to one job per file: folders are walked, and a file with several names is one job."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.files.descriptors import FileState
from cfi2sframe.files.walk import Walk, elf_files_under
from cfi2sframe.jobs.records import Job, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable


class WorkList(NamedTuple):
    """The jobs, in the order of what was named, and the mount points in folders that were not walked into."""

    jobs: list[Job]
    mount_points: tuple[str, ...]


def work_list(
    paths: Iterable[str], settings: Settings = Settings(), *, recurse: bool = False, walk: Walk = Walk()
) -> list[Job]:
    """Return a job per file, in the order of the paths. Raises nothing.

    A symbolic link that is named stands for its target; hard links and repetitions are names of one job. With
    `recurse` a folder stands for the ELF files in it, except what `walk` leaves out (`elf_files_under`); those that are
    not for this program are skipped when they are run, relocatable objects too unless the settings take them. A file
    that cannot be read is a job that fails when it is run.
    """
    return list_work(paths, settings, recurse=recurse, walk=walk).jobs


def list_work(paths: Iterable[str], settings: Settings, *, recurse: bool, walk: Walk) -> WorkList:
    """Return the jobs as `work_list` does, and what was not walked into."""
    found = _Found()
    mount_points: list[str] = []
    for path in paths:
        target = os.path.abspath(path)
        try:
            # Links that the user names are followed here, once; the targets have none.
            target = os.path.realpath(path)
            status = os.stat(path)
        except OSError:
            found.add(_Name(path, target), None, settings)
            continue
        if recurse and stat.S_ISDIR(status.st_mode):
            inside = settings._replace(skips_unfit=True, is_in_tree=True)
            within = target if walk.one_file_system else ""
            for file in elf_files_under(target, walk, os.path.abspath(path)):
                if file.is_mount_point:
                    mount_points.append(file.under(path))
                else:
                    found.add(_Name(file.under(path), file.under(target), within), file.state, inside)
        else:
            found.add(_Name(path, target), FileState.of(status), settings)
    return WorkList(found.jobs(), tuple(mount_points))


class _Name(NamedTuple):
    """A name as it was given or found, the resolved one, and the folder whose mount it is on, if that matters."""

    name: str
    target: str
    within: str = ""


class _Found:
    """The names of each file."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int] | str, list[_Name]] = {}
        self._first: dict[tuple[int, int] | str, tuple[FileState | None, Settings]] = {}

    def add(self, name: _Name, state: FileState | None, settings: Settings) -> None:
        key = name.target if state is None else (state.device, state.inode)
        # A file that is named must be fit, even if it was found in a folder before.
        known, strictest = self._first.get(key, (state, settings))
        self._first[key] = (known, settings if strictest.is_in_tree else strictest)
        self._names.setdefault(key, []).append(name)

    def jobs(self) -> list[Job]:
        jobs = []
        for key, names in self._names.items():
            state, settings = self._first[key]
            first = names[0]
            targets = tuple(dict.fromkeys(name.target for name in names))
            others = tuple(dict.fromkeys(other.name for other in names[1:] if other.name != first.name))
            jobs.append(Job(first.name, targets, others, state, settings, within=first.within))
        return jobs
