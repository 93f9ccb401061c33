# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe IN -o OUT` and `cfi2sframe --in-place FILE` for programs: a failure is raised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.convert import Options, check_options
from cfi2sframe.errors import RequestError, checked_path, naming
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.listing import work_list
from cfi2sframe.jobs.records import Job, Settings

if TYPE_CHECKING:
    from cfi2sframe.conversion.convert import Level
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.jobs.records import Outcome


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
    debug_file: str | None = None,
) -> Outcome:
    """Write a copy of a file with a section made from its CFI or, with `in_place`, rewrite the file itself.

    The new file is written beside its destination, read back, verified and renamed. A file that already has this
    section does not change (status "unchanged"); one with rows that the new one lacks is replaced only with `replace`.
    `debug_file` is where to look for the separate debug file (see `elf.debug_file.find_debug_file`). The other
    parameters are those of `convert`. Arguments and outcome can be pickled, for an executor that converts many files.

    Raises what `load` and `convert` raise; `EmbedError` when the file cannot be rewritten without risk;
    `VerificationError` when the result is wrong; `OutputError` when it cannot be written; `RequestError` unless one of
    `output` and `in_place` is given. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    settings = Settings(options, replaces=replace, debug_file=debug_file)
    if in_place == (output is not None):
        raise RequestError("convert_file wants an output or in_place=True, one of the two")
    if output is None:
        (job,) = work_list([name], settings)
    else:
        job = Job(name, (name,), settings, output=_named(output))
    with naming(name):
        return run_job(job._replace(raises=True))


def _named(path: str | os.PathLike[str]) -> str:
    """Return a path as jobs have it, where `-` is no file."""
    text = checked_path(path)
    return os.path.join(os.curdir, text) if text == "-" else text
