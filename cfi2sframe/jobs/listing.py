# SPDX-License-Identifier: Apache-2.0
"""Many files: from what a user names to one job per file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from cfi2sframe.files.find import elf_files_under
from cfi2sframe.jobs.records import Job, Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


def work_list(
    paths: Iterable[str],
    settings: Settings = Settings(),
    *,
    recurse: bool = False,
    excluded: Sequence[str] = (),
    listed: Iterable[str] = (),
) -> list[Job]:
    """Return a job for each file, in the order of the paths. Raises nothing: a file that cannot be read fails as a job.

    A symbolic link stands for its target; hard links and repetitions are names of one job. With `recurse`, a folder
    stands for the ELF files in it, except what the shell patterns `excluded` match. Files found in folders are skipped
    if they are not for this program, `listed` ones if they have nothing to convert.
    """
    lenient = settings._replace(skips_unfit=True)
    found: dict[tuple[int, int] | str, tuple[Job, dict[str, None], dict[str, None]]] = {}
    for path, own in (*((path, settings) for path in paths), *((path, lenient) for path in listed)):
        for name, target, state, strictness in _files_at(path, own, recurse=recurse, excluded=excluded):
            key = target if state is None else (state.st_dev, state.st_ino)
            job, targets, names = found.setdefault(key, (Job(name, (), strictness, state=state), {}, {}))
            targets[target] = names[name] = None
            # A file that is named has to be fit, even if a folder had it first.
            if job.settings.skips_unfit:
                found[key] = job._replace(settings=strictness), targets, names
    return [
        job._replace(targets=tuple(targets), other_names=tuple(names)[1:]) for job, targets, names in found.values()
    ]


def _files_at(
    path: str, settings: Settings, *, recurse: bool, excluded: Sequence[str]
) -> Iterator[tuple[str, str, os.stat_result | None, Settings]]:
    """Yield the files that a path stands for: name as given or found, resolved path, state, settings."""
    target = os.path.abspath(path)
    try:
        # From here on, no path has links.
        target = os.path.realpath(path)
        state = os.stat(path)
    except OSError:
        yield path, target, None, settings
        return
    if not recurse or not stat.S_ISDIR(state.st_mode):
        yield path, target, state, settings
        return
    inside = settings._replace(skips_unfit=True, is_in_tree=True)
    for file in elf_files_under(path, excluded):
        yield file.under(path), file.under(target), file.status, inside
