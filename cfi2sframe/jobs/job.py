# SPDX-License-Identifier: Apache-2.0
"""An input becomes an output, or a reason: the one flow of a single file and of each of many.

A file is loaded, converted, compared with the section that it holds, and written unless it already is what would be
written. In place that means the file is left alone; an output is then a copy of it. Taking the section out is the same
flow, with `removal` in place of the conversion.
"""

from __future__ import annotations

import gc
from functools import partial
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.load import image_of, stored_size
from cfi2sframe.errors import (
    Cfi2SFrameError,
    ChangedError,
    EmbedError,
    ErrorKind,
    ForeignError,
    InputError,
    OutputError,
    ReaderError,
    kind_of,
    reason_of,
)
from cfi2sframe.files.write import open_input, write_output
from cfi2sframe.guard import limited, unlimited
from cfi2sframe.jobs.policy import account_if_needed, refusal_of, warnings_of
from cfi2sframe.jobs.records import Outcome
from cfi2sframe.jobs.writing import Written, is_same, leave, write_elf

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.kinds import LeftAlone
    from cfi2sframe.files.write import InputFile
    from cfi2sframe.jobs.records import Job, Output
    from cfi2sframe.report.coverage import Coverage

#: How often a file in place is converted in all, if others change it in the meantime.
_ATTEMPT_COUNT: Final = 3
_UNFIT: Final = (ErrorKind.UNFIT, ErrorKind.NOT_ELF)


def run_job(job: Job, kept: list[object] | None = None) -> Outcome:
    """Convert one file, or take its section out, unless it already is what would be written.

    Raises nothing but interrupts, and `BrokenPipeError` when the reader of a job's output has closed it, unless the job
    has failures raised. `kept`: the conversion is appended there, so that a process that is about to end need not free
    it first.
    """
    kept = [] if kept is None else kept
    attempts_left = 1 if job.output else _ATTEMPT_COUNT
    while True:
        attempts_left -= 1
        try:
            return _run(job, kept)
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
            # Another run on the same file at the same time must not make this one fail.
            if not attempts_left or kind_of(error) is not ErrorKind.CHANGED:
                return _failed(job, error)


def _failed(job: Job, error: Exception) -> Outcome:
    if job.raises:
        raise error
    kind = kind_of(error)
    skip = _skip_by(job, error)
    if skip is not None:
        return _skipped(job, skip)
    # Whatever failed may have used up the memory that the next file needs.
    gc.collect()
    if isinstance(error, OutputError):
        return Outcome(error.where, (), "failed", kind, error.reason)
    return Outcome(job.name, job.other_names, "failed", kind, reason_of(error))


def _skip_by(job: Job, error: Exception) -> LeftAlone | None:
    """Return why a file is skipped instead of failing, None if it is not."""
    settings = job.settings
    kind = kind_of(error)
    if kind not in _UNFIT or not settings.skips_unfit:
        return None
    from cfi2sframe.files.kinds import LeftAlone, SkipKind

    if kind is ErrorKind.NOT_ELF:
        return LeftAlone(SkipKind.NOT_ELF, reason_of(error))
    if isinstance(error, ReaderError):
        return LeftAlone(SkipKind.READER, reason_of(error))
    return LeftAlone(SkipKind.FOREIGN if isinstance(error, ForeignError) else SkipKind.NO_CFI, reason_of(error))


def _skipped(job: Job, skip: LeftAlone) -> Outcome:
    return Outcome(job.name, job.other_names, "skipped", reason=skip.reason, skip_kind=skip.kind)


def _run(job: Job, kept: list[object]) -> Outcome:
    opened = open_input(job.targets[0], in_place=not job.output)
    limits = unlimited if job.raises else limited
    with opened as (data, file), limits(stored_size(data)):
        image = image_of(data, job.name)
        try:
            return _work_on(job, image, file, kept)
        finally:
            # `kept` may keep the image to the end of the process, but the file need not stay open.
            image.close()


def _work_on(job: Job, image: ElfImage, file: InputFile | None, kept: list[object]) -> Outcome:
    settings = job.settings
    if settings.is_in_tree:
        from cfi2sframe.files.kinds import skip_of

        skip = skip_of(image, takes_objects=settings.takes_objects)
        if skip is not None:
            return _skipped(job, skip)
    if not settings.removes:
        return _convert(job, image, file, kept)
    from cfi2sframe.jobs.removal import remove

    kept.append(image)
    return Outcome(job.name, job.other_names, **remove(job, image, file)._asdict())


def _convert(job: Job, image: ElfImage, file: InputFile | None, kept: list[object]) -> Outcome:
    settings = job.settings
    options = settings.options
    if image.has_sframe and not settings.replaces:
        from cfi2sframe.emit import options_for

        options = options_for(image, options)
    if settings.reader is None:
        from cfi2sframe.conversion import convert_image

        conversion = convert_image(image, options)
    else:
        from cfi2sframe.api import convert_for

        conversion = convert_for(image, options, settings.reader)
    kept.append(conversion)
    coverage = account_if_needed(conversion, is_wanted=settings.wants_account or settings.fail_under is not None)
    refusal = refusal_of(conversion, coverage, is_strict=settings.is_strict, fail_under=settings.fail_under)
    if refusal is not None:
        outcome = Outcome(job.name, job.other_names, "failed", refusal.kind, refusal.reason)
    else:
        try:
            written = _write(job, conversion, file)
        except (ChangedError, BrokenPipeError):
            raise
        except (Cfi2SFrameError, OSError) as error:
            outcome = _failed(job, error)
            if outcome.status == "skipped":
                return outcome
        else:
            outcome = Outcome(job.name, job.other_names, **written._asdict())
    return _with_account(outcome, conversion, coverage, wants_account=settings.wants_account)


def _write(job: Job, conversion: Conversion, file: InputFile | None) -> Written:
    """Write what the job asks for, if that makes a difference."""
    if job.output and job.output.is_raw:
        return _write_raw(job.output, conversion, file)
    from cfi2sframe import emit

    if not conversion.data:
        warning = f"{_none_described(conversion)}; the file gets no .sframe section"
        return leave(job, conversion.image, file)._replace(warnings=(warning,))
    image, settings = conversion.image, job.settings
    exists = image.has_sframe
    emitted = emit.emit(conversion, replace=exists, section_type=settings.section_type)
    if exists and is_same(image, emitted):
        return leave(job, image, file)
    where = "" if emitted.plan is None else f" at 0x{emitted.plan.section_vaddr:x}"
    placement, notes = f".sframe{where}: {emitted.placement}", emitted.warnings
    if exists and not settings.replaces:
        verdict = emit.compare_existing(conversion)
        if not verdict.is_replaced and not (verdict.is_kept and settings.is_in_tree):
            raise EmbedError(verdict.reason)
        if not verdict.is_replaced:
            return Written("skipped", reason=verdict.reason)
        placement += f"; {verdict.reason}"
        # A tree would have thousands of these; reports have all.
        notes = notes if settings.is_in_tree else (*notes, f".sframe {verdict.reason}")
    if settings.only_checks:
        return Written("would convert", placement, notes)
    warnings = write_elf(job, emitted.chunks, file, partial(emit.check, emitted))
    return Written("converted", placement, (*notes, *warnings))


def _none_described(conversion: Conversion) -> str:
    return f"SFrame version {conversion.target.version} can describe none of the functions"


def _write_raw(output: Output, conversion: Conversion, file: InputFile | None) -> Written:
    if not conversion.data:
        raise InputError(f"{_none_described(conversion)}; there is no section")
    from cfi2sframe.emit import reader_warnings

    warnings = (*reader_warnings(conversion), *write_output(output.path, conversion.data, source=file))
    is_linked = not conversion.image.is_relocatable
    placement = f"offsets assume .sframe is loaded at 0x{conversion.section_vaddr:x}" if is_linked else ""
    return Written("converted", placement, warnings)


def _with_account(
    outcome: Outcome, conversion: Conversion, coverage: Coverage | None, *, wants_account: bool
) -> Outcome:
    summary = account = ""
    if coverage is not None and wants_account:
        import json

        from cfi2sframe.report.coverage import coverage_data
        from cfi2sframe.report.records import SCHEMA_VERSION
        from cfi2sframe.report.sentences import summary as sentence

        summary, account = sentence(coverage), json.dumps({"schema": SCHEMA_VERSION, **coverage_data(coverage)})
    return outcome._replace(
        warnings=(*warnings_of(coverage), *outcome.warnings),
        section_size=len(conversion.data),
        function_count=conversion.described_count,
        left_out_count=0 if conversion.is_whole else len(conversion.skips) + len(conversion.cfi.damaged),
        in_parts_count=0 if conversion.is_whole else len(conversion.in_parts),
        summary=summary,
        account=account,
    )
