# SPDX-License-Identifier: Apache-2.0
"""Files converted in place: one list, one pool, messages in the order of the list, failures last."""

from __future__ import annotations

import os
import sys
import time
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli import EXIT_SUCCESS, KEPT
from cfi2sframe.cli.batch_report import check_line, exit_status, json_line, summary_line, tally, worse
from cfi2sframe.cli.common import (
    conversion_options,
    ended_by_signals,
    fail,
    fail_early,
    process_count,
    say,
    section_type_of,
)
from cfi2sframe.errors import InputError, RequestError
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.listing import work_list
from cfi2sframe.jobs.records import Outcome, Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from cfi2sframe.jobs.records import Job
    from cfi2sframe.jobs.stamp import Stamp

#: Less input than this is done before processes would pay.
_POOL_SIZE: Final = 1 << 20


def convert_in_place(arguments: argparse.Namespace) -> int:
    """Convert what the arguments name; return the worst file's exit status."""
    started = time.monotonic()
    read = arguments.files_from
    try:
        names = [*arguments.inputs, *_listed(read)]
        is_single = len(names) == 1 and not arguments.recursive
        settings = _settings(arguments, is_single=is_single)
        read = arguments.stamp
        stamp = _stamp_of(read, settings)
        for read in (arguments.stamp, arguments.report):
            _check_folder(read)
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except (InputError, OSError) as error:
        return fail(error, read)
    jobs = work_list(names, settings, recurse=arguments.recursive)
    try:
        _check_apart(arguments, jobs)
    except RequestError as error:
        return fail(error, "")
    known = [stamp is not None and stamp.knows(job) for job in jobs]
    runs_here = is_single and not known[0] and not arguments.executor
    try:
        with ended_by_signals():
            outcomes = _single(jobs[0]) if runs_here else _several(arguments, jobs, known)
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    for outcome in outcomes:
        if outcome.status == "failed" and not arguments.check:
            say("error", _reason(outcome, arguments), outcome.name)
    if arguments.verbose and is_single and not known[0]:
        _say_single(outcomes[0])
    elif arguments.verbose:
        say("info", summary_line(tally(outcomes), sum(known), time.monotonic() - started))
    status = EXIT_SUCCESS
    for outcome in outcomes:
        status = worse(status, exit_status(outcome))
    return worse(status, _write_files(arguments, outcomes, stamp))


def _settings(arguments: argparse.Namespace, *, is_single: bool) -> Settings:
    return Settings(
        options=conversion_options(arguments),
        section_type=section_type_of(arguments),
        may_move_table=arguments.header_table == "end",
        replaces=arguments.replace,
        verifies=not arguments.no_verify,
        is_strict=arguments.strict,
        min_coverage=arguments.min_coverage,
        skips_unfit=arguments.skip_non_elf,
        only_checks=arguments.check,
        wants_account=bool(arguments.report or (arguments.verbose and is_single)),
    )


def _check_folder(path: str | None) -> None:
    """Raise `OSError` when what is to be written after a long run has no folder to be written to."""
    if path is not None and path != "-":
        os.stat(os.path.dirname(os.path.realpath(path)))


def _check_apart(arguments: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Raise `RequestError` when the report or the stamp would replace a file that is to be converted."""
    targets = {target for job in jobs for target in job.targets}
    for option in ("report", "stamp"):
        path = getattr(arguments, option)
        if path is not None and path != "-" and os.path.realpath(path) in targets:
            raise RequestError(f"--{option} {path} would overwrite a file that is to be converted")


def _listed(path: str | None) -> list[str]:
    if path is None:
        return []
    from cfi2sframe.files.words import names_from

    return names_from(path)


def _stamp_of(path: str | None, settings: Settings) -> Stamp | None:
    if path is None:
        return None
    from cfi2sframe.jobs.stamp import Stamp

    return Stamp(path, settings)


# Running


def _single(job: Job) -> list[Outcome]:
    """Run one job here, and leave what it made to the end of the process."""
    outcome = run_job(job, KEPT)
    _say_outcome(outcome, only_checks=job.settings.only_checks)
    return [outcome]


def _several(arguments: argparse.Namespace, jobs: Sequence[Job], known: Sequence[bool]) -> list[Outcome]:
    """Run the jobs that are not known to be done; say what is to be said of each, in their order."""
    from cfi2sframe.cli.progress import ProgressLine
    from cfi2sframe.jobs.runner import size_of

    to_do = [job for job, is_known in zip(jobs, known, strict=True) if not is_known]
    outcomes: list[Outcome] = []
    with (
        ProgressLine(len(to_do), sum(map(size_of, to_do))) as line,
        _running(arguments, to_do, lambda job, _: line.add(size_of(job))) as done,
    ):
        for job, is_known in zip(jobs, known, strict=True):
            outcome = Outcome(job.name, job.other_names, "unchanged", state=job.state) if is_known else next(done)
            if outcome.warnings or arguments.check:
                line.clear()
            _say_outcome(outcome, only_checks=arguments.check)
            outcomes.append(outcome)
    return outcomes


def _running(
    arguments: argparse.Namespace, jobs: Sequence[Job], on_done: Callable[[Job, Outcome], None]
) -> AbstractContextManager[Iterator[Outcome]]:
    """Return what runs the jobs: an executor that is named, processes, or this process where those would not pay."""
    from cfi2sframe.jobs.runner import run, size_of

    count = process_count(arguments)
    if arguments.executor:
        return _named_executor(arguments.executor, count, jobs, on_done)
    if count == 1 or len(jobs) <= 1 or sum(map(size_of, jobs)) < _POOL_SIZE:
        return nullcontext(run(jobs, on_done=on_done))
    from cfi2sframe.jobs.pool import run_in_processes

    return run_in_processes(jobs, count, on_done)


@contextmanager
def _named_executor(
    text: str, count: int, jobs: Sequence[Job], on_done: Callable[[Job, Outcome], None]
) -> Iterator[Iterator[Outcome]]:
    from cfi2sframe.jobs.pool import named_executor
    from cfi2sframe.jobs.runner import run

    with named_executor(text, count) as executor:
        yield run(jobs, executor, on_done=on_done)


# Saying


def _say_outcome(outcome: Outcome, *, only_checks: bool) -> None:
    for warning in outcome.warnings:
        say("warning", warning, outcome.name)
    if only_checks:
        sys.stdout.write(f"{check_line(outcome)}\n")


def _reason(outcome: Outcome, arguments: argparse.Namespace) -> str:
    if not arguments.recursive and os.path.isdir(outcome.name):
        return f"{outcome.reason}; -r converts the ELF files in it"
    return outcome.reason


def _say_single(outcome: Outcome) -> None:
    if outcome.status == "failed":
        return
    if outcome.summary:
        say("info", outcome.summary, outcome.name)
    if outcome.placement:
        say("info", outcome.placement, outcome.name)
    elif outcome.status == "skipped":
        say("info", f"skipped: {outcome.reason}", outcome.name)
    elif outcome.section_size:
        say("info", "unchanged: the section is there already", outcome.name)


def _write_files(arguments: argparse.Namespace, outcomes: Sequence[Outcome], stamp: Stamp | None) -> int:
    """Write the report and the stamp."""
    written = arguments.report
    try:
        if arguments.report:
            from cfi2sframe.cli.output import write_output

            lines = "".join(f"{json_line(outcome)}\n" for outcome in outcomes)
            write_output(arguments.report, lines.encode())
        written = arguments.stamp
        if stamp is not None and not arguments.check:
            with ended_by_signals():
                stamp.write(outcomes)
    except OSError as error:
        if written == "-":
            raise
        return fail(error, written)
    return EXIT_SUCCESS
