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
from cfi2sframe.errors import ErrorKind, OutputError, RequestError
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.cli.convert import WriteRequest
    from cfi2sframe.jobs.records import Outcome

#: Smaller inputs (bytes, in all) are done before processes would pay off.
POOL_SIZE: Final = 1 << 20


def run_request(request: WriteRequest) -> int:
    """Do to each file what the request says; return the worst file's exit status."""
    started = time.monotonic()
    settings, output = request.settings, request.output
    if output is not None:
        source = request.named[0]
        jobs = [Job("<stdin>" if source == "-" else source, (source,), (), None, settings, output)]
    else:
        from cfi2sframe.jobs.listing import work_list

        jobs = work_list(
            request.named,
            settings,
            recurse=request.is_recursive,
            excluded=request.excluded,
            listed=request.listed,
        )
    check_apart(request, jobs)
    if request.is_single:
        outcomes = [run_here(jobs[0])]
        say_end(request, outcomes[0])
    else:
        outcomes = _several(request, jobs)
        _say_failures(request, outcomes)
        if request.is_verbose:
            from cfi2sframe.cli.batch_report import removal_line, summary_line, tally

            seconds = time.monotonic() - started
            total = tally(outcomes)
            say("info", removal_line(total, seconds) if settings.removes else summary_line(total, seconds))
    return worst((*map(exit_status, outcomes), write_report(request, outcomes)))


# Before the run


def check_apart(request: WriteRequest, jobs: Sequence[Job]) -> None:
    """Raise `RequestError` when the report would replace an input or the output."""
    used = {target for job in jobs for target in job.targets}
    if request.output is not None:
        used = {os.path.realpath(path) for path in (*used, request.output.path) if not _is_special(path)}
    path = request.report
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


def _several(request: WriteRequest, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs; report each, in their order."""
    from cfi2sframe.cli.progress import ProgressLine
    from cfi2sframe.jobs.runner import running, size_of

    size = sum(map(size_of, jobs))
    count = 1 if size < POOL_SIZE else request.process_count
    outcomes: list[Outcome] = []
    with (
        ProgressLine(len(jobs), size) as line,
        running(jobs, count=count, on_done=lambda job, _: line.add(size_of(job))) as done,
    ):
        for outcome in done:
            if outcome.warnings or request.settings.only_checks:
                line.clear()
            _say_outcome(outcome, only_checks=request.settings.only_checks)
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


def _say_failures(request: WriteRequest, outcomes: Sequence[Outcome]) -> None:
    for outcome in outcomes:
        if outcome.status == "failed" and not request.settings.only_checks:
            say("error", f"{outcome.reason}{_hint(request, outcome)}", outcome.name)


def _hint(request: WriteRequest, outcome: Outcome) -> str:
    """Return what to do with something that is no ELF file, as the end of a message."""
    if (
        outcome.kind is ErrorKind.UNUSABLE
        and request.output is None
        and not request.is_recursive
        and os.path.isdir(outcome.name)
    ):
        return " (use -r to process the ELF files in it)"
    if outcome.kind is not ErrorKind.NOT_ELF:
        return ""
    from cfi2sframe.files.find import kind_of_container

    container = kind_of_container(outcome.name)
    if container == "archive":
        return (
            " but a static archive; convert the program linked with it, which is smaller and has the PLT stubs, or "
            "extract the objects (ar x), convert them and archive them again (ar qcsD)"
        )
    return " but a package; convert its files before they are packed" if container == "package" else ""


def say_end(request: WriteRequest, outcome: Outcome) -> None:
    """Report the failure of the only file, or with `-v` what became of it."""
    _say_failures(request, [outcome])
    if not request.is_verbose or outcome.status == "failed":
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


def write_report(request: WriteRequest, outcomes: Sequence[Outcome]) -> int:
    """Write the report, if there is to be one; return an exit status."""
    if request.report is None:
        return EXIT_SUCCESS
    if request.output is not None:
        import json

        (account,) = [outcome.account for outcome in outcomes]
        if not account:
            return EXIT_SUCCESS
        text = f"{json.dumps(json.loads(account), indent=2)}\n"
    else:
        from cfi2sframe.cli.batch_report import json_line

        text = "".join(f"{json_line(outcome, exit_status(outcome))}\n" for outcome in outcomes)
    from cfi2sframe.files.write import write_output

    try:
        write_output(request.report, text.encode())
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS
