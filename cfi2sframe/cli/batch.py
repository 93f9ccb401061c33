# SPDX-License-Identifier: Apache-2.0
"""Files rewritten in place, or looked at as if: how convert and remove run, and what they print.

Of several files: with -v a line for each, else a few lines about what went wrong and one with the sums.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.common import exit_status_of, fail, say, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, KEPT
from cfi2sframe.cli.options import check_apart, write_text
from cfi2sframe.cli.progress import Files, at
from cfi2sframe.errors import ErrorKind, OutputError
from cfi2sframe.files.kinds import SkipKind
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job
from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.cli.convert import WriteRequest
    from cfi2sframe.jobs.records import Outcome, Status

#: Smaller inputs (bytes, in all) are done before processes would pay off.
POOL_SIZE: Final = 1 << 20
#: Incremented when a field of the report changes its meaning or is removed.
SCHEMA_VERSION: Final = 1
#: The most lines of warnings, and of errors.
_MAX_LINES: Final = 8
#: How the sum tells of each status: of a run that converts, and of one that takes sections out.
_STATUS_TEXTS: Final[dict[Status, tuple[str, str]]] = {
    "converted": ("{:,} converted", ""),
    "would convert": ("{:,} would convert", ""),
    "removed": ("", "section removed from {:,}"),
    "would remove": ("", "section would be removed from {:,}"),
    "unchanged": ("{:,} unchanged", "{:,} without one"),
    "skipped": ("{:,} skipped", "{:,} skipped"),
    "failed": ("{:,} failed", "{:,} failed"),
}
#: How the sum tells of the kinds of skipped files: of one, and of several.
_KIND_TEXTS: Final = {
    SkipKind.OBJECT: ("1 relocatable object", "{:,} relocatable objects"),
    SkipKind.MODULE: ("1 kernel module", "{:,} kernel modules"),
    SkipKind.NO_CFI: ("1 without CFI", "{:,} without CFI"),
    SkipKind.READER: ("1 not for the reader", "{:,} not for the reader"),
    SkipKind.FOREIGN: ("1 of another machine", "{:,} of other machines"),
    SkipKind.DEBUG_FILE: ("1 separate debug file", "{:,} separate debug files"),
    SkipKind.KERNEL: ("1 kernel image", "{:,} kernel images"),
    SkipKind.NOT_ELF: ("1 no ELF file", "{:,} no ELF files"),
}


def run(request: WriteRequest) -> int:
    """Do to each file what the request says; return the worst file's exit status."""
    jobs = _jobs_of(request)
    outputs = [] if request.output is None else [request.output]
    check_apart("report", request.report, [*(target for job in jobs for target in job.targets), *outputs])
    if request.is_single:
        at(jobs[0].name)
        outcomes = [run_job(jobs[0], KEPT)]
        _say_single(request, outcomes[0])
    else:
        outcomes = _run_several(request, jobs)
    return worst((*map(exit_status, outcomes), write_report(request, outcomes)))


# Before the run


def _jobs_of(request: WriteRequest) -> list[Job]:
    settings, output = request.settings, request.output
    if output is not None:
        source = request.named[0]
        return [Job("<stdin>" if source == "-" else source, (source,), settings, output=output)]
    from cfi2sframe.jobs.listing import work_list

    return work_list(
        request.named, settings, recurse=request.is_recursive, excluded=request.excluded, listed=request.listed
    )


# Several files


def _run_several(request: WriteRequest, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs, and print what became of them; return the outcomes, in their order."""
    from cfi2sframe.jobs.listing import run_jobs

    started = time.monotonic()
    count = 1 if sum(job.size for job in jobs) < POOL_SIZE else request.process_count
    # Processes begin with the largest files.
    order = jobs if count == 1 else sorted(jobs, key=lambda job: job.size, reverse=True)
    outcomes: list[Outcome] = []
    done: list[Outcome] = []

    def note(job: Job, outcome: Outcome) -> None:
        done.append(outcome)
        files.add(job.name)

    try:
        with (
            Files({job.name: job.size for job in order}) as files,
            closing(run_jobs(jobs, count=count, on_done=note)) as results,
        ):
            for outcome in results:
                outcomes.append(outcome)
                if request.is_verbose:
                    files.clear()
                    _say_line(request, outcome)
    except (SystemExit, KeyboardInterrupt):
        if not request.is_verbose:
            _say_in_few_lines(request, done)
        text = sums(done, removes=request.settings.removes, seconds=time.monotonic() - started)
        say("error", f"interrupted; {len(jobs) - len(done):,} of {len(jobs):,} files are not done; {text}")
        write_report(request, done)
        raise
    if not request.is_verbose:
        _say_in_few_lines(request, outcomes)
    say("info", sums(outcomes, removes=request.settings.removes, seconds=time.monotonic() - started))
    return outcomes


def _say_line(request: WriteRequest, outcome: Outcome) -> None:
    """Print the line that a file has with -v; that of --check is output."""
    if request.settings.only_checks:
        sys.stdout.write(f"{check_line(outcome)}\n")
    elif outcome.status == "failed":
        say("error", f"{outcome.reason}{_hint(request, outcome)}", outcome.name)
        return
    warning = brief(outcome)
    if not request.settings.only_checks:
        words = (outcome.status, outcome.reason or outcome.placement, warning)
        say("warning" if warning else "info", ": ".join(filter(None, words)), outcome.name)
    elif warning:
        say("warning", warning, outcome.name)


def _say_in_few_lines(request: WriteRequest, outcomes: Sequence[Outcome]) -> None:
    """Print what is wrong with files: a line for each file, or if they are many, one for each kind of trouble."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    warned = [(outcome.name, brief(outcome), outcome.warnings) for outcome in outcomes if outcome.warnings]
    failures = [(each.name, text := f"{each.reason}{_hint(request, each)}", (text,)) for each in failed]
    for kind, found in (("warning", warned), ("error", failures)):
        for name, text in few_lines(found):
            say(kind, text, name)


# One file


def _say_single(request: WriteRequest, outcome: Outcome) -> None:
    """Print what became of the only file: one warning, or with -v all that is known."""
    warnings = outcome.warnings if request.is_verbose else (brief(outcome),) if outcome.warnings else ()
    for warning in warnings:
        say("warning", warning, outcome.name)
    if request.settings.only_checks:
        sys.stdout.write(f"{check_line(outcome)}\n")
    elif outcome.status == "failed":
        say("error", f"{outcome.reason}{_hint(request, outcome)}", outcome.name)
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
        say("info", "up to date", outcome.name)


def _hint(request: WriteRequest, outcome: Outcome) -> str:
    """Return what to do with something that is no ELF file, as the end of a message."""
    is_folder = outcome.kind is ErrorKind.UNUSABLE and os.path.isdir(outcome.name)
    if is_folder and request.output is None and not request.is_recursive:
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


# After the run


def exit_status(outcome: Outcome) -> int:
    """Return the exit status for a file alone."""
    if outcome.kind is not None:
        return exit_status_of(outcome.kind)
    return EXIT_DIFFERENCE if outcome.status in ("would convert", "would remove") else EXIT_SUCCESS


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
        text = "".join(f"{json_line(outcome, exit_status(outcome))}\n" for outcome in outcomes)
    try:
        write_text(request.report, text)
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS


# What is told


def json_line(outcome: Outcome, exit_status: int) -> str:
    """Return the object that a report has for a file, without a line end."""
    import json

    data = {
        "schema": SCHEMA_VERSION,
        "file": outcome.name,
        "other_names": list(outcome.other_names),
        "status": outcome.status,
        "exit_status": exit_status,
        "kind": "" if outcome.skip_kind is None else outcome.skip_kind.value,
        "reason": outcome.reason,
        "warnings": list(outcome.warnings),
        "section_size": outcome.section_size,
        "functions": outcome.function_count,
        "left_out": outcome.left_out_count,
        "in_parts": outcome.in_parts_count,
        "placement": outcome.placement,
    }
    # The account is JSON already; it was made where the file was converted.
    return f'{json.dumps(data)[:-1]}, "account": {outcome.account or "null"}}}'


def check_line(outcome: Outcome) -> str:
    """Return the line that `--check` prints for a file."""
    verdict = {"unchanged": "up to date", "skipped": "skip", "failed": "refuse"}.get(outcome.status, outcome.status)
    if outcome.status == "unchanged" and not outcome.section_size and outcome.warnings:
        verdict = "nothing to write"
    detail = outcome.reason or outcome.placement
    return f"{printable(outcome.name)}: {verdict}{f': {printable(detail)}' if detail else ''}"


def brief(outcome: Outcome) -> str:
    """Return the warnings of a file in one sentence: the first one, and how many more there are."""
    if not outcome.warnings:
        return ""
    more = max(len(outcome.warnings), outcome.left_out_count + outcome.in_parts_count) - 1
    return f"{outcome.warnings[0]} ({more:,} more; -v has them)" if more else outcome.warnings[0]


def few_lines(found: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """Yield what to print of files in at most eight lines, each with the file that it is about.

    `found` has for each file its name, a sentence, and all that there is to say. The sentences are printed if they are
    few. If not, what is said of several files is said once, with an example, whatever the names and numbers in it.
    """
    if len(found) <= _MAX_LINES:
        yield from ((name, text) for name, text, _ in found)
        return
    groups: dict[str, dict[str, str]] = {}
    for name, _, texts in found:
        for text in texts:
            groups.setdefault(_without_details(text), {}).setdefault(name, text)
    ranked = sorted(groups.values(), key=len, reverse=True)
    shown = ranked if len(ranked) <= _MAX_LINES else ranked[: _MAX_LINES - 1]
    for group in shown:
        name, text = next(iter(group.items()))
        yield (name, text) if len(group) == 1 else ("", f"{len(group):,} files, such as {name}: {text}")
    if len(shown) < len(ranked):
        names = {name for group in ranked[len(shown) :] for name in group}
        yield "", f"{len(ranked) - len(shown):,} more kinds of these, in {counted(len(names), 'file')} (-v has them)"


def _without_details(text: str) -> str:
    """Return a sentence without the numbers and the quoted names in it, in which those of one kind differ."""
    text = re.sub(r"'[^']*'|0x[0-9a-f]+|\d[\d,.]*", "#", text)
    return re.sub(r"# (\w+?)s\b", r"# \1", text)


def sums(outcomes: Sequence[Outcome], *, removes: bool, seconds: float) -> str:
    """Return the one sentence about a run."""
    counts = Counter(outcome.status for outcome in outcomes)
    parts = []
    for status, texts in _STATUS_TEXTS.items():
        if counts[status]:
            text = texts[removes].format(counts[status])
            parts.append(f"{text}{_kinds(outcomes)}" if status == "skipped" else text)
    good = [outcome for outcome in outcomes if outcome.status != "failed"]
    line = f"{counted(len(outcomes), 'file')}: {', '.join(parts) or 'none'}; "
    if not removes:
        in_part = sum(outcome.in_parts_count for outcome in good)
        line += f"{sum(outcome.function_count for outcome in good):,} functions described, "
        line += f"{sum(outcome.left_out_count for outcome in good):,} left out"
        line += f", {in_part:,} in part, " if in_part else ", "
    return f"{line}{sum(outcome.section_size for outcome in good):,} bytes of .sframe; {seconds:.1f} s"


def _kinds(outcomes: Sequence[Outcome]) -> str:
    """Return what the skipped files are."""
    found = Counter(outcome.skip_kind for outcome in outcomes)
    texts = [
        one if found[kind] == 1 else several.format(found[kind])
        for kind, (one, several) in _KIND_TEXTS.items()
        if found[kind]
    ]
    return f" ({', '.join(texts)})" if texts else ""
