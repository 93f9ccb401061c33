# SPDX-License-Identifier: Apache-2.0
"""The report of files converted in place: lines of JSON for programs, sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.jobs.records import Outcome, Status

#: Incremented when a field of the report changes its meaning or is removed.
SCHEMA_VERSION: Final = 1
_STATUS_ORDER: Final[tuple[Status, ...]] = ("converted", "would convert", "unchanged", "skipped", "failed")


def json_line(outcome: Outcome, exit_status: int) -> str:
    """Return the object that a report has for a file, without a line end."""
    import json

    data = {
        "schema": SCHEMA_VERSION,
        "file": outcome.name,
        "other_names": list(outcome.other_names),
        "status": outcome.status,
        "exit_status": exit_status,
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
    verdict = {"unchanged": "already right", "skipped": "skip", "failed": "refuse"}.get(outcome.status, outcome.status)
    if outcome.status == "unchanged" and not outcome.section_size and outcome.warnings:
        verdict = "nothing to write"
    detail = outcome.reason or outcome.placement
    return f"{printable(outcome.name)}: {verdict}{f': {printable(detail)}' if detail else ''}"


class Tally(NamedTuple):
    """The sums of a run."""

    counts: dict[Status, int]
    function_count: int
    left_out_count: int
    in_parts_count: int
    section_size: int


def tally(outcomes: Sequence[Outcome]) -> Tally:
    """Add up outcomes."""
    counts: dict[Status, int] = dict.fromkeys(_STATUS_ORDER, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    good = [outcome for outcome in outcomes if outcome.status != "failed"]
    return Tally(
        counts,
        sum(outcome.function_count for outcome in good),
        sum(outcome.left_out_count for outcome in good),
        sum(outcome.in_parts_count for outcome in good),
        sum(outcome.section_size for outcome in good),
    )


def summary_line(total: Tally, known_count: int, seconds: float) -> str:
    """Return the one sentence about a run; `known_count` files were not looked into."""
    count = sum(total.counts.values())
    parts = [f"{number:,} {status}" for status, number in total.counts.items() if number]
    if known_count:
        parts = [f"{part} ({known_count:,} by the stamp)" if "unchanged" in part else part for part in parts]
    in_part = f", {total.in_parts_count:,} in part" if total.in_parts_count else ""
    return (
        f"{count:,} file{'' if count == 1 else 's'}: {', '.join(parts) or 'none'}; "
        f"{total.function_count:,} functions described, {total.left_out_count:,} left out{in_part}, "
        f"{total.section_size:,} bytes of .sframe; {seconds:.1f} s"
    )
