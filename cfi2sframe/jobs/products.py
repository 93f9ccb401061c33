# SPDX-License-Identifier: Apache-2.0
"""The two jobs, to convert a file and to remove its section, and the product of each.

This module loads no stage of a conversion: most files of a run have none, and a second run finds all up to date.
"""

import os
from contextlib import nullcontext
from functools import partial

from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import RequestError, checked_path, with_file_name
from cfi2sframe.files.source import STANDARD_INPUT, Source, named_source
from cfi2sframe.jobs.job import Job, run_attempts
from cfi2sframe.jobs.records import Note, Outcome, Product, Request
from cfi2sframe.jobs.stamps import up_to_date
from cfi2sframe.verification import READERS


def conversion_job(request: Request) -> Job:
    """Return the job that converts, still without a file."""
    takes_objects = request.reader is not None and READERS[request.reader].reads_objects
    return Job(partial(_converted, request), debug_file=request.debug_file, takes_objects=takes_objects)


def removal_job(*, verifies: bool = True, only_checks: bool = False) -> Job:
    """Return the job that removes the section, still without a file; `verifies` and `only_checks` as in `Request`."""
    return Job(partial(_removed, verifies=verifies, only_checks=only_checks), takes_objects=True)


def _converted(request: Request, image: ElfImage, source: Source, note: Note) -> Product:
    """Return the file with a section made from its CFI, or as it is if a stamp shows that it has this one."""
    unchanged = up_to_date(request, image, source)
    if unchanged is not None:
        return Product(unchanged)
    from cfi2sframe.jobs.conversion import convert_anew

    return convert_anew(request, image, source, note)


def _removed(image: ElfImage, _source: Source, _note: Note, *, verifies: bool, only_checks: bool) -> Product:
    """Return the file without its section, or as it is if it has none."""
    from cfi2sframe import emit
    from cfi2sframe.existing import Presence, existing_section

    if not image.has_sframe:
        return Product(Outcome(status="unchanged", reason=Presence.ABSENT.value))
    section, segment = image.sframe_section, image.sframe_segment
    size = section.size if section is not None else segment.file_size if segment is not None else 0
    removal = emit.remove(image)
    bare = ElfImage(removal.content, image.name)
    lost = (removal.lost,) if removal.lost else ()
    if existing_section(bare).presence not in (Presence.ABSENT, Presence.EMPTY):
        lost = (*lost, "the .sframe section that the conversion had replaced is restored")
    outcome = Outcome(status="removed", section_size=size, placement=f".sframe of {size:,} bytes", warnings=lost)
    if only_checks:
        # Refuse now what the check of the written file would refuse.
        emit.check_removal(image, bare)
        return Product(outcome._replace(status="would remove"))
    return Product(outcome, removal.content, partial(emit.check_removal, image) if verifies else None)


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
    `output` and `in_place` is given, and when the output is the file itself. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    if in_place == (output is not None):
        raise RequestError("convert_file takes either an output or in_place=True")
    debug_path = None if debug_file is None else checked_path(debug_file)
    job = conversion_job(Request(options, debug_file=debug_path, replaces=replace))
    job = job._replace(source=named_source(name), output=None if output is None else _named(output))
    with with_file_name(name):
        # Limits belong to the caller.
        return run_attempts(job, lambda _: None, nullcontext)


def _named(path: str | os.PathLike[str]) -> str:
    """Return a path as jobs take it, for which `-` is a standard stream."""
    text = checked_path(path)
    return os.path.join(os.curdir, text) if text == STANDARD_INPUT else text
