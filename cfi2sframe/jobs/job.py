# SPDX-License-Identifier: Apache-2.0
"""All that is done to one file: loaded, converted, compared with what it holds, and rewritten where it differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.load import image_of, load_open
from cfi2sframe.errors import ChangedError, EmbedError, RequestError, UnfitError, reason_of
from cfi2sframe.files.source import open_resolved
from cfi2sframe.files.write import write_file
from cfi2sframe.jobs.existing import is_same
from cfi2sframe.jobs.policy import account_if_needed, refusal_of, warnings_of
from cfi2sframe.jobs.records import Outcome, Problem

#: How often a file is converted again that somebody else has changed in the meantime.
_ATTEMPT_COUNT: Final = 3

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.emit import Emitted
    from cfi2sframe.files.source import Source
    from cfi2sframe.jobs.records import FileState, Job, Status
    from cfi2sframe.report.coverage import Coverage


def run_job(job: Job, kept: list[object] | None = None) -> Outcome:
    """Convert one file in place, unless it already is what would be written. Raises nothing but interrupts.

    `kept`: what was made is added there, so that a process that is about to end need not take it down first.
    """
    problem: Problem
    try:
        return _run_repeatedly(job, [] if kept is None else kept)
    except UnfitError as error:
        if job.settings.skips_unfit:
            return Outcome(job.name, job.other_names, "skipped", reason=str(error), state=job.state)
        problem, reason = "unusable", str(error)
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        problem, reason = "request" if isinstance(error, RequestError) else "unusable", reason_of(error)
    return _failed(job, problem, reason)


def _failed(job: Job, problem: Problem, reason: str) -> Outcome:
    return Outcome(job.name, job.other_names, "failed", problem, reason)


def _run_repeatedly(job: Job, kept: list[object]) -> Outcome:
    """Start over when the file has been changed under way: two runs at once then both succeed."""
    for _ in range(1, _ATTEMPT_COUNT):
        try:
            return _run(job, kept)
        except ChangedError:
            continue
    return _run(job, kept)


def _run(job: Job, kept: list[object]) -> Outcome:
    with open_resolved(job.targets[0]) as source:
        image = load_open(source.descriptor, job.name)
        try:
            return _convert(job, image, source, kept)
        finally:
            # What was made may be kept to the end of the run.
            image.close()


def _convert(job: Job, image: ElfImage, source: Source, kept: list[object]) -> Outcome:
    from cfi2sframe.conversion import convert_image

    settings = job.settings
    conversion = convert_image(image, settings.options)
    kept.append(conversion)
    needs_account = settings.wants_account or settings.min_coverage is not None
    coverage = account_if_needed(conversion, is_wanted=needs_account)
    refusal = refusal_of(conversion, coverage, is_strict=settings.is_strict, min_coverage=settings.min_coverage)
    if refusal is not None:
        outcome = _failed(job, refusal.problem, refusal.reason)
    elif not conversion.data:
        outcome = Outcome(job.name, job.other_names, "unchanged", state=job.state)
        outcome = outcome._replace(warnings=("nothing can be said: the file stays as it is, without a section",))
    else:
        outcome = _emit(job, image, conversion, source)
    return _with_account(outcome, conversion, coverage, wants_account=settings.wants_account)


def _emit(job: Job, image: ElfImage, conversion: Conversion, source: Source) -> Outcome:
    """Rewrite the file, if that makes a difference and is asked for."""
    from cfi2sframe import emit

    settings = job.settings
    exists = image.has_sframe
    emitted = emit.emit(
        conversion, replace=exists, section_type=settings.section_type, may_move_table=settings.may_move_table
    )
    status: Status = "converted"
    warnings = emitted.warnings
    state = job.state
    if exists and is_same(image, emitted):
        status, warnings = "unchanged", ()
    elif exists and not settings.replaces:
        raise EmbedError("a different .sframe section is there already; replacing it has to be asked for")
    elif settings.only_checks:
        status = "would convert"
    else:
        state, more_warnings = _write(job, emitted, source)
        warnings += more_warnings
    where = "" if emitted.plan is None else f" at 0x{emitted.plan.section_vaddr:x}"
    placement = "" if status == "unchanged" else f".sframe{where}: {emitted.placement}"
    return Outcome(job.name, job.other_names, status, warnings=warnings, placement=placement, state=state)


def _write(job: Job, emitted: Emitted, source: Source) -> tuple[FileState, tuple[str, ...]]:
    """Exchange the file under all of its given names; return how it is now, and what has to be said."""
    from cfi2sframe import emit

    def check(content: FileData) -> None:
        emit.check(emitted, image_of(content, job.name))

    state, warnings = write_file(
        job.targets,
        emitted.chunks,
        source=source,
        in_place=True,
        check=check if job.settings.verifies else None,
    )
    return state, (*warnings, *_hard_links_left(source.status.st_nlink - len(job.targets)))


def _hard_links_left(count: int) -> tuple[str, ...]:
    if count <= 0:
        return ()
    if count == 1:
        return ("1 hard link to it that was not named keeps the old file",)
    return (f"{count} hard links to it that were not named keep the old file",)


def _with_account(
    outcome: Outcome, conversion: Conversion, coverage: Coverage | None, *, wants_account: bool
) -> Outcome:
    summary = account = ""
    if coverage is not None and wants_account:
        import json

        from cfi2sframe.render.text import summary as sentence
        from cfi2sframe.report.coverage import coverage_data

        summary, account = sentence(coverage), json.dumps(coverage_data(coverage))
    return outcome._replace(
        warnings=(*warnings_of(coverage), *outcome.warnings),
        section_size=len(conversion.data),
        function_count=len(conversion.section.starts),
        left_out_count=0 if conversion.is_whole else len(conversion.left_out) + len(conversion.cfi.failures),
        summary=summary,
        account=account,
    )
