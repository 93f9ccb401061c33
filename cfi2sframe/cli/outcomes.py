# SPDX-License-Identifier: Apache-2.0
"""Print the outcomes of convert and remove, for people and for programs.

For one file: warnings, the failure and, with -v, what was done. For several: the same with -v, otherwise a few lines
about problems; then a line of sums.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, get_args

from cfi2sframe.cli.messages import EXIT_DIFFERENCE, EXIT_SUCCESS, exit_status_of, say
from cfi2sframe.jobs.records import Outcome, SkipKind, Status
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.text import counted, printable

#: The most lines of warnings, and of errors.
_MAX_LINES: Final = 8


def exit_status(outcome: Outcome) -> int:
    """Return the exit status for a single file."""
    if outcome.kind is not None:
        return exit_status_of(outcome.kind)
    return EXIT_DIFFERENCE if outcome.status in ("would convert", "would remove") else EXIT_SUCCESS


def say_outcome(outcome: Outcome, *, is_single: bool, is_verbose: bool, only_checks: bool) -> None:
    """Print the outcome of a file: all warnings of a single one with -v, otherwise the first."""
    brief = [_brief(outcome, "-v" if is_single else "--report")] if outcome.warnings else []
    for warning in outcome.warnings if is_single and is_verbose else brief:
        say("warning", warning, outcome.name)
    if outcome.status == "failed":
        say("error", outcome.reason, outcome.name)
    elif only_checks:
        say_verdict(outcome)
    if is_verbose and outcome.status != "failed":
        if is_single and outcome.summary:
            say("info", outcome.summary, outcome.name)
        if not only_checks:
            words = (outcome.status, outcome.reason or outcome.placement)
            say("info", ": ".join(filter(None, words)), outcome.name)


def say_verdict(outcome: Outcome) -> None:
    """Print the verdict of `--check` on standard output."""
    verdict = {"unchanged": "up to date", "skipped": "skip"}.get(outcome.status, outcome.status)
    if outcome.status == "unchanged" and not outcome.section_size and outcome.warnings:
        verdict = "nothing to write"
    detail = outcome.reason or outcome.placement
    sys.stdout.write(f"{printable(outcome.name)}: {verdict}{f': {printable(detail)}' if detail else ''}\n")


def _brief(outcome: Outcome, option: str) -> str:
    """Return the first warning of a file, how many more there are, and the option that has them."""
    more = max(len(outcome.warnings), outcome.left_out_count + outcome.in_part_count) - 1
    return f"{outcome.warnings[0]} ({more:,} more; {option} has them)" if more else outcome.warnings[0]


# Several files


def say_in_few_lines(outcomes: Sequence[Outcome]) -> None:
    """Print the problems of files: a line for each file or, if there are many, for each kind of problem."""
    failed = [outcome for outcome in outcomes if outcome.status == "failed"]
    warned = [(outcome.name, _brief(outcome, "-v"), outcome.warnings) for outcome in outcomes if outcome.warnings]
    failures = [(outcome.name, outcome.reason, (outcome.reason,)) for outcome in failed]
    for kind, problems in (("warning", warned), ("error", failures)):
        for name, text in few_lines(problems):
            say(kind, text, name)


def few_lines(problems: Sequence[tuple[str, str, Sequence[str]]]) -> Iterator[tuple[str, str]]:
    """Yield at most eight lines about files, each with the name of the file that it is about.

    `problems` has for each file its name, a short sentence, and all sentences. A few files get their short sentence. Of
    more, sentences that differ only in names and numbers are one line, with an example.
    """
    if len(problems) <= _MAX_LINES:
        yield from ((name, text) for name, text, _ in problems)
        return
    groups: dict[str, dict[str, str]] = {}
    for name, _, texts in problems:
        for text in texts:
            # Sentences of one kind differ in numbers and quoted names.
            plain = re.sub(r"'[^']*'|0x[0-9a-f]+|\d[\d,.]*", "#", text)
            groups.setdefault(re.sub(r"# (\w+?)s\b", r"# \1", plain), {}).setdefault(name, text)
    ranked = sorted(groups.values(), key=len, reverse=True)
    shown = ranked if len(ranked) <= _MAX_LINES else ranked[: _MAX_LINES - 1]
    for group in shown:
        name, text = next(iter(group.items()))
        yield (name, text) if len(group) == 1 else ("", f"{len(group):,} files, such as {name}: {text}")
    if len(shown) < len(ranked):
        names = {name for group in ranked[len(shown) :] for name in group}
        yield "", f"{len(ranked) - len(shown):,} more kinds of these, in {counted(len(names), 'file')} (-v has them)"


def sums(outcomes: Sequence[Outcome], *, removes: bool, seconds: float) -> str:
    """Return a sentence about a run: how many files have each status, and why some were skipped."""
    if not outcomes:
        return "no ELF files found"
    statuses = Counter(outcome.status for outcome in outcomes)
    kinds = Counter(outcome.skip_kind for outcome in outcomes)
    skipped = ", ".join(f"{kind.value}: {kinds[kind]:,}" for kind in SkipKind if kinds[kind])
    parts = [f"{statuses[status]:,} {status}" for status in get_args(Status) if statuses[status]]
    parts = [f"{part} ({skipped})" if part.endswith("skipped") and skipped else part for part in parts]
    good = [outcome for outcome in outcomes if outcome.status != "failed"]
    line = f"{counted(len(outcomes), 'file')}: {', '.join(parts)}; "
    if not removes:
        in_part = sum(outcome.in_part_count for outcome in good)
        line += f"{counted(sum(outcome.described_count for outcome in good), 'function')} described, "
        line += f"{sum(outcome.left_out_count for outcome in good):,} left out"
        line += f", {in_part:,} in part, " if in_part else ", "
    return f"{line}{counted(sum(outcome.section_size for outcome in good), 'byte')} of .sframe; {seconds:.1f} s"


# For programs


def json_line(outcome: Outcome) -> str:
    """Return the object that a report has for a file, without a line end."""
    import json

    kind = outcome.kind.name.lower() if outcome.kind else outcome.skip_kind.value if outcome.skip_kind else ""
    data = {
        "schema": SCHEMA_VERSION,
        "file": outcome.name,
        "other_names": list(outcome.other_names),
        "status": outcome.status,
        "exit_status": exit_status(outcome),
        "kind": kind,
        "reason": outcome.reason,
        "warnings": list(outcome.warnings),
        "section_size": outcome.section_size,
        "described_count": outcome.described_count,
        "left_out_count": outcome.left_out_count,
        "in_part_count": outcome.in_part_count,
        "placement": outcome.placement,
    }
    # The account is JSON already.
    return f'{json.dumps(data)[:-1]}, "account": {outcome.account or "null"}}}'
