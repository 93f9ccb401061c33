# SPDX-License-Identifier: Apache-2.0
"""The library's `cfi2sframe IN -o OUT` and `cfi2sframe --in-place FILE`: one file, whose failure is raised."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cfi2sframe.conversion import Options, check_options
from cfi2sframe.errors import RequestError, naming
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.listing import work_list
from cfi2sframe.jobs.records import Job, Settings
from cfi2sframe.sframe.constants import SFRAME_VERSION_3

if TYPE_CHECKING:
    from cfi2sframe.conversion import Level
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
) -> Outcome:
    """Write a copy of a file with a section made from its CFI; or put it into the file itself, with `in_place`.

    The new file is written beside the old one, read back and verified, and renamed over it. A file that has this very
    section already stays as it is (status "unchanged", and an output is a copy of it); a different one is replaced only
    with `replace`. What the file suffers is in `Outcome.warnings`. The other parameters are those of `convert`.
    Arguments and outcome can be pickled, so any executor can call this for many files.

    Raises what `load` and `convert` raise; `EmbedError` when the file cannot be rewritten without risk;
    `VerificationError` when the result is wrong; `OutputError` when it cannot be written; `RequestError` unless one of
    `output` and `in_place` is given. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    settings = Settings(options, replaces=replace)
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
    text = os.fspath(path)
    return os.path.join(os.curdir, text) if text == "-" else text
