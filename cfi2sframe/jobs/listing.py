# SPDX-License-Identifier: Apache-2.0
"""From what a caller names to jobs: a job for each file of many, or one whose failure is raised."""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence

from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.errors import RequestError, checked_path, with_file_name
from cfi2sframe.files.find import elf_files_under
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job, Outcome, Settings


def work_list(
    paths: Iterable[str],
    settings: Settings = Settings(),
    *,
    recurse: bool = False,
    excluded: Sequence[str] = (),
    listed: Iterable[str] = (),
) -> list[Job]:
    """Return a job for each file, in the order of the paths. Raises nothing: a file that cannot be read fails as a job.

    A symbolic link stands for its target; hard links and repetitions are names of one job. With `recurse`, a directory
    stands for the ELF files in it, except those that the shell patterns `excluded` match. Files found in directories
    are skipped if they are not for this program, `listed` ones if they have nothing to convert.
    """
    lenient = settings._replace(skips_unfit=True)
    found: dict[tuple[int, int] | str, tuple[Job, dict[str, None], dict[str, None]]] = {}
    for path, own in (*((path, settings) for path in paths), *((path, lenient) for path in listed)):
        for name, target, state, strictness in _files_at(path, own, recurse=recurse, excluded=excluded):
            key = target if state is None else (state.st_dev, state.st_ino)
            job, targets, names = found.setdefault(key, (Job(name, (), strictness, state=state), {}, {}))
            targets[target] = names[name] = None
            # A file that is named has to be fit, even if a directory had it first.
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
        # Links are resolved once, here.
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


# One file, for the library


def convert_file(
    path: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    version: int = SFRAME_VERSION_3,
    *,
    errata: int | None = None,
    source: CfiKind | None = None,
    level: Level | None = None,
    in_place: bool = False,
    replace: bool = False,
    debug_file: str | os.PathLike[str] | None = None,
) -> Outcome:
    """Write a copy of a file with a section made from its CFI or, with `in_place`, rewrite the file itself.

    The new file is written beside its destination, read back, verified and renamed. A file that already has this
    section does not change (status "unchanged"); one with rows that the new one lacks is replaced only with `replace`.
    `debug_file` is where to look for the separate debug file (see `find_debug_file`). The other parameters are those of
    `convert`. Arguments and outcome can be pickled, for an executor that converts many files.

    Raises what `load` and `convert` raise; `EmbedError` when the file cannot be rewritten without risk;
    `VerificationError` when the result is wrong; `OutputError` when it cannot be written; `RequestError` unless one of
    `output` and `in_place` is given. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    settings = Settings(options, replaces=replace, debug_file=None if debug_file is None else checked_path(debug_file))
    if in_place == (output is not None):
        raise RequestError("convert_file takes either an output or in_place=True")
    if output is None:
        (job,) = work_list([name], settings)
    else:
        job = Job(name, (name,), settings, output=_named(output))
    with with_file_name(name):
        return run_job(job._replace(raises=True))


def _named(path: str | os.PathLike[str]) -> str:
    """Return a path as jobs have it, where `-` is no file."""
    text = checked_path(path)
    return os.path.join(os.curdir, text) if text == "-" else text
