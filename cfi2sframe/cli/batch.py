# SPDX-License-Identifier: Apache-2.0
"""Files rewritten in place, or looked at as if: what convert and remove share once they know the settings.

Messages come in the order of the files, failures last.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.common import exit_status_of, fail, say, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, KEPT
from cfi2sframe.cli.options import process_count
from cfi2sframe.errors import ErrorKind, OutputError, RequestError
from cfi2sframe.jobs.job import run_job

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cfi2sframe.jobs.records import Job, Outcome, Settings

#: Smaller inputs (bytes, in all) are done before processes would pay off.
POOL_SIZE: Final = 1 << 20


def is_single(arguments: argparse.Namespace, names: Sequence[str]) -> bool:
    """Whether the names are one file, of which `-v` tells more than of many."""
    return len(names) == 1 and not arguments.recursive


def run_batch(arguments: argparse.Namespace, names: Sequence[str], settings: Settings) -> int:
    """Do to each file what the settings say; return the worst file's exit status."""
    from cfi2sframe.jobs.listing import work_list

    started = time.monotonic()
    jobs = work_list(names, settings, recurse=arguments.recursive, excluded=arguments.exclude)
    try:
        check_apart(arguments, jobs)
    except RequestError as error:
        return fail(error, "")
    is_alone = is_single(arguments, names)
    outcomes = [run_here(jobs[0])] if is_alone else _several(arguments, jobs)
    if is_alone:
        say_end(arguments, outcomes[0])
    else:
        _say_failures(arguments, outcomes)
        if arguments.verbose:
            from cfi2sframe.cli.batch_report import removal_line, summary_line, tally

            seconds = time.monotonic() - started
            total = tally(outcomes)
            say("info", removal_line(total, seconds) if settings.removes else summary_line(total, seconds))
    statuses = list(map(exit_status, outcomes))
    report = None
    if arguments.report:
        from cfi2sframe.cli.batch_report import json_line

        report = "".join(f"{json_line(outcome, exit_status(outcome))}\n" for outcome in outcomes)
    return worst((*statuses, write_report(arguments, report)))


# Before the run


def check_target(arguments: argparse.Namespace, batch_options: Sequence[str]) -> None:
    """Raise `RequestError` unless the options name files to rewrite, or one input and its output.

    `batch_options` are those without a meaning for a single output, by their names in the namespace.
    """
    if not arguments.inputs and not arguments.files_from:
        raise RequestError("no input: name a file")
    if not (arguments.in_place or arguments.check):
        if len(arguments.inputs) > 1:
            raise RequestError("several inputs: --in-place rewrites each of them, -o OUT takes one")
        for name in batch_options:
            if getattr(arguments, name):
                raise RequestError(f"--{name.replace('_', '-')} belongs to --in-place or --check")
        if arguments.output is None:
            raise RequestError("no output: -o OUT or --in-place is needed")
    elif arguments.output is not None:
        raise RequestError(f"-o and --{'in-place' if arguments.in_place else 'check'} exclude one another")
    elif "-" in arguments.inputs:
        raise RequestError("standard input cannot be rewritten in place")


def check_folder(path: str | None) -> None:
    """Raise `OSError` when a file to be written after a long run has no folder."""
    if path is not None and path != "-":
        os.stat(os.path.dirname(os.path.realpath(path)))


def check_apart(arguments: argparse.Namespace, jobs: Sequence[Job]) -> None:
    """Raise `RequestError` when the report would replace an input or the output."""
    used = {target for job in jobs for target in job.targets}
    if arguments.output is not None:
        used = {os.path.realpath(path) for path in (*used, arguments.output) if not _is_special(path)}
    path = arguments.report
    if path is not None and path != "-" and os.path.realpath(path) in used:
        raise RequestError(f"--report {path} would overwrite an input or the output")


def _is_special(path: str) -> bool:
    return path == "-" or (os.path.exists(path) and not os.path.isfile(path))


# The run


def run_here(job: Job) -> Outcome:
    """Run one job in this process, and keep what it made to the end of the process."""
    outcome = run_job(job, KEPT)
    _say_outcome(outcome, only_checks=job.settings.only_checks)
    return outcome


def _several(arguments: argparse.Namespace, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs; report each, in their order."""
    from cfi2sframe.cli.progress import ProgressLine
    from cfi2sframe.jobs.runner import running, size_of

    size = sum(map(size_of, jobs))
    count = 1 if size < POOL_SIZE else process_count(arguments)
    outcomes: list[Outcome] = []
    with (
        ProgressLine(len(jobs), size) as line,
        running(jobs, count=count, on_done=lambda job, _: line.add(size_of(job))) as done,
    ):
        for outcome in done:
            if outcome.warnings or arguments.check:
                line.clear()
            _say_outcome(outcome, only_checks=arguments.check)
            outcomes.append(outcome)
    return outcomes


# After the run


def exit_status(outcome: Outcome) -> int:
    """Return the exit status for a file alone."""
    if outcome.kind is not None:
        return exit_status_of(outcome.kind)
    return EXIT_DIFFERENCE if outcome.status in ("would convert", "would remove") else EXIT_SUCCESS


def _say_outcome(outcome: Outcome, *, only_checks: bool) -> None:
    for warning in outcome.warnings:
        say("warning", warning, outcome.name)
    if only_checks:
        from cfi2sframe.cli.batch_report import check_line

        sys.stdout.write(f"{check_line(outcome)}\n")


def _say_failures(arguments: argparse.Namespace, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.status == "failed" and not arguments.check:
            say("error", f"{outcome.reason}{_hint(arguments, outcome)}", outcome.name)


def _hint(arguments: argparse.Namespace, outcome: Outcome) -> str:
    """Return what to do with something that is no ELF file, as the end of a message."""
    if outcome.kind is ErrorKind.UNUSABLE and not arguments.recursive and os.path.isdir(outcome.name):
        return "; -r takes the ELF files in it" if arguments.in_place else "; --in-place -r takes the ELF files in it"
    if outcome.kind is not ErrorKind.NOT_ELF:
        return ""
    from cfi2sframe.files import kind_of_container

    container = kind_of_container(outcome.name)
    if container == "archive":
        return " but a static archive; convert the objects before ar puts them in"
    return " but a package; convert its files before they are packed" if container == "package" else ""


def say_end(arguments: argparse.Namespace, outcome: Outcome) -> None:
    """Report the failure of the only file, or with `-v` what became of it."""
    _say_failures(arguments, [outcome])
    if not arguments.verbose or outcome.status == "failed":
        return
    if outcome.summary:
        say("info", outcome.summary, outcome.name)
    if outcome.status == "removed":
        say("info", f".sframe of {outcome.section_size:,} bytes removed", outcome.name)
    elif outcome.placement:
        say("info", outcome.placement, outcome.name)
    elif outcome.status == "skipped":
        say("info", f"skipped: {outcome.reason}", outcome.name)
    elif outcome.status == "unchanged" and outcome.section_size:
        say("info", "unchanged: the section is there already", outcome.name)


def write_report(arguments: argparse.Namespace, text: str | None) -> int:
    """Write the report, if there is one; return an exit status."""
    if text is None:
        return EXIT_SUCCESS
    from cfi2sframe.files.write import write_output

    try:
        write_output(arguments.report, text.encode())
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS
