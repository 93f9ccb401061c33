# SPDX-License-Identifier: Apache-2.0
"""Run a job: load the file, and convert it unless its stamp says that it is up to date.

Removing a section is the same flow with other bytes to write.
"""

import gc
import os
from contextlib import nullcontext
from functools import partial
from typing import Final

from cfi2sframe.constants.elf import PT_LOAD
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import ErrorKind, RequestError, checked_path, kind_of, with_file_name
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.files.write import InputFile, open_input
from cfi2sframe.jobs.output import check_writable, copy_input, failed_outcome, write_elf
from cfi2sframe.jobs.records import Job, Outcome, SkipKind
from cfi2sframe.jobs.stamps import up_to_date
from cfi2sframe.process.guard import limited

#: How often to try a file that others change in the meantime.
_ATTEMPT_COUNT: Final = 3
#: Sections that only a kernel module has.
_MODULE_SECTIONS: Final = frozenset({".modinfo", ".gnu.linkonce.this_module"})
#: From here on, addresses are the kernel's on all machines that SFrame is defined for.
_KERNEL_VADDR: Final = 1 << 63


def run_job(job: Job) -> Outcome:
    """Convert one file, or take its section out.

    A failure is an outcome, and is raised only if the job asks for that. Interrupts are raised, and `BrokenPipeError`
    when the reader of the output has closed it.
    """
    if job.source.fault:
        return job.outcome("failed", job.source.fault, ErrorKind.SYSTEM)
    attempts_left = _ATTEMPT_COUNT if job.output is None else 1
    while True:
        attempts_left -= 1
        try:
            return _run(job)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever was raised, it concerns this file only
            # Another run may be converting the same file.
            if not attempts_left or kind_of(error) is not ErrorKind.CHANGED:
                # Free the memory for the next file.
                gc.collect()
                return failed_outcome(job, error, job.outcome("failed"))


def _run(job: Job) -> Outcome:
    _check_output(job)
    # Signals and limits of the process belong to the caller of the library.
    limits = nullcontext if job.raises else limited
    path = job.source.targets[0] if job.output is None else job.source.path
    with open_input(path, in_place=job.output is None) as (data, file), limits(stored_size(data)):
        image = ElfImage(data, job.source.name)
        try:
            skip = skip_of(image, takes_objects=job.takes_objects) if job.source.is_found else None
            if skip is not None:
                return job.outcome("skipped", skip[1], skip_kind=skip[0])
            if job.removes:
                return _remove(job, image, file)
            if job.debug_file is None:
                return _convert(job, image, file)
            from cfi2sframe.elf.debug_file import with_debug_file

            with with_debug_file(image, job.debug_file) as both:
                return _convert(job, both, file)
        finally:
            image.close()


def _check_output(job: Job) -> None:
    """Raise `RequestError` where the output is a file that the job reads, also through symbolic links.

    A hard link is another file.
    """
    # "-" is standard output.
    if job.output in (None, "-") or not os.path.isfile(job.output):
        return
    output = os.path.realpath(job.output)
    if output in job.source.targets:
        raise RequestError("the output is the input file; --in-place (in_place=True) rewrites that")
    if job.debug_file is not None and output == os.path.realpath(job.debug_file):
        raise RequestError("the output is the debug file")


def skip_of(image: ElfImage, *, takes_objects: bool) -> tuple[SkipKind, str] | None:
    """Return why a file of a directory is left alone: linkers or kernels read it, or its code is in another file.

    `takes_objects`: relocatable objects and kernel modules are not left alone. Linkers read the sections of objects,
    and those before binutils 2.46 fail on version 3.
    """
    if image.is_relocatable:
        is_module = any(section.name in _MODULE_SECTIONS for section in image.sections)
        kind = SkipKind.MODULE if is_module else SkipKind.OBJECT
        what = f"a {kind.value}; --for ld or kernel-arm64 takes those in directories, too"
        return None if takes_objects else (kind, what)
    if image.is_debug_file:
        return SkipKind.DEBUG_FILE, "a separate debug file: its code is in another file"
    if any(segment.type == PT_LOAD and segment.vaddr >= _KERNEL_VADDR for segment in image.segments):
        return SkipKind.KERNEL, "a kernel image"
    return None


def _remove(job: Job, image: ElfImage, file: InputFile | None) -> Outcome:
    """Write the file without its section, or as it is if it has none."""
    from cfi2sframe import emit
    from cfi2sframe.existing import Presence, existing_section

    if not image.has_sframe:
        warnings = copy_input(job, image, file)
        return job.outcome("unchanged", Presence.ABSENT.value)._replace(warnings=warnings)
    section, segment = image.sframe_section, image.sframe_segment
    size = section.size if section is not None else segment.file_size if segment is not None else 0
    removal = emit.remove(image)
    bare = ElfImage(removal.content, job.source.name)
    lost = (removal.lost,) if removal.lost else ()
    if existing_section(bare).presence not in (Presence.ABSENT, Presence.EMPTY):
        lost = (*lost, "the .sframe section that the conversion had replaced is restored")
    known = job.outcome("would remove")
    known = known._replace(section_size=size, placement=f".sframe of {size:,} bytes", warnings=lost)
    if job.only_checks:
        # Refuse now what the check of the written file would refuse.
        emit.check_removal(image, bare)
        check_writable(job)
        return known
    warnings = write_elf(job, removal.content, file, partial(emit.check_removal, image))
    return known._replace(status="removed", warnings=(*lost, *warnings))


def _convert(job: Job, image: ElfImage, file: InputFile | None) -> Outcome:
    """Write the file with its section, unless it has that already."""
    unchanged = up_to_date(job, image)
    if unchanged is not None:
        return unchanged._replace(warnings=(*unchanged.warnings, *copy_input(job, image, file)))
    from cfi2sframe.jobs.conversion import convert_job

    return convert_job(job, image, file)


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
    `output` and `in_place` is given, and when the output is the file itself. Nothing is written then.
    """
    name = _named(path)
    options = Options(version, errata, source, level=level)
    check_options(options)
    if in_place == (output is not None):
        raise RequestError("convert_file takes either an output or in_place=True")
    job = Job(
        options,
        source=named_source(name),
        output=None if output is None else _named(output),
        debug_file=None if debug_file is None else checked_path(debug_file),
        replaces=replace,
        raises=True,
    )
    with with_file_name(name):
        return run_job(job)


def _named(path: str | os.PathLike[str]) -> str:
    """Return a path as jobs have it, where `-` is no file."""
    text = checked_path(path)
    return os.path.join(os.curdir, text) if text == STANDARD_INPUT else text
