# SPDX-License-Identifier: Apache-2.0
"""From what a user names to one job per file: folders are walked, and a file with several names is one job."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.files.find import elf_files_under
from cfi2sframe.jobs.records import Job, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


def work_list(
    paths: Iterable[str],
    settings: Settings = Settings(),
    *,
    recurse: bool = False,
    excluded: Sequence[str] = (),
    listed: Iterable[str] = (),
) -> list[Job]:
    """Return a job per file, in the order of the paths. Raises nothing.

    A symbolic link that is named stands for its target; hard links and repetitions are names of one job. With
    `recurse` a folder stands for the ELF files in it, except what the shell patterns `excluded` name; those that are
    not for this program are skipped when they are run, relocatable objects too unless the settings take them. Of
    `listed` paths, those are skipped that have nothing to convert. A file that cannot be read is a job that fails when
    it is run.
    """
    found = _Found()
    lenient = settings._replace(skips_unfit=True)
    for path, own in (*((path, settings) for path in paths), *((path, lenient) for path in listed)):
        target = os.path.abspath(path)
        try:
            # Links that the user names are followed here, once; the targets have none.
            target = os.path.realpath(path)
            status = os.stat(path)
        except OSError:
            found.add(_Name(path, target), None, own)
            continue
        if recurse and stat.S_ISDIR(status.st_mode):
            inside = lenient._replace(is_in_tree=True)
            for file in elf_files_under(path, excluded):
                found.add(_Name(file.under(path), file.under(target)), file.status, inside)
        else:
            found.add(_Name(path, target), status, own)
    return found.jobs()


class _Name(NamedTuple):
    """A name as it was given or found, and the resolved one."""

    name: str
    target: str


class _Found:
    """The names of each file."""

    def __init__(self) -> None:
        self._names: dict[tuple[int, int] | str, list[_Name]] = {}
        self._first: dict[tuple[int, int] | str, tuple[os.stat_result | None, Settings]] = {}

    def add(self, name: _Name, state: os.stat_result | None, settings: Settings) -> None:
        key = name.target if state is None else (state.st_dev, state.st_ino)
        # A file that is named must be fit, even if it was found in a folder before.
        known, strictest = self._first.get(key, (state, settings))
        self._first[key] = (known, settings if strictest.skips_unfit else strictest)
        self._names.setdefault(key, []).append(name)

    def jobs(self) -> list[Job]:
        jobs = []
        for key, names in self._names.items():
            state, settings = self._first[key]
            first = names[0]
            targets = tuple(dict.fromkeys(name.target for name in names))
            others = tuple(dict.fromkeys(other.name for other in names[1:] if other.name != first.name))
            jobs.append(Job(first.name, targets, others, state, settings))
        return jobs
