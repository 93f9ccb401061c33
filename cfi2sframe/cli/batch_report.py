# SPDX-License-Identifier: Apache-2.0
"""The report of files rewritten in place: lines of JSON for programs, sentences for people."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.files.kinds import SkipKind
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cfi2sframe.jobs.records import Outcome, Status

#: Incremented when a field of the report changes its meaning or is removed.
SCHEMA_VERSION: Final = 1
_STATUS_ORDER: Final[tuple[Status, ...]] = (
    "converted",
    "would convert",
    "removed",
    "would remove",
    "unchanged",
    "skipped",
    "failed",
)
#: How the sum tells of the kinds: of one file, and of several.
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
    verdict = {"unchanged": "already right", "skipped": "skip", "failed": "refuse"}.get(outcome.status, outcome.status)
    if outcome.status == "unchanged" and not outcome.section_size and outcome.warnings:
        verdict = "nothing to write"
    detail = outcome.reason or outcome.placement
    return f"{printable(outcome.name)}: {verdict}{f': {printable(detail)}' if detail else ''}"


class BatchTally(NamedTuple):
    """The sums of a run; `kinds` counts what the skipped files are."""

    counts: Mapping[Status, int]
    kinds: Mapping[SkipKind, int]
    function_count: int
    left_out_count: int
    in_parts_count: int
    section_size: int


def tally(outcomes: Sequence[Outcome]) -> BatchTally:
    """Add up outcomes."""
    counts: dict[Status, int] = dict.fromkeys(_STATUS_ORDER, 0)
    for outcome in outcomes:
        counts[outcome.status] += 1
    good = [outcome for outcome in outcomes if outcome.status != "failed"]
    return BatchTally(
        counts,
        Counter(outcome.skip_kind for outcome in outcomes if outcome.skip_kind is not None),
        sum(outcome.function_count for outcome in good),
        sum(outcome.left_out_count for outcome in good),
        sum(outcome.in_parts_count for outcome in good),
        sum(outcome.section_size for outcome in good),
    )


def summary_line(total: BatchTally, seconds: float) -> str:
    """Return the one sentence about a run that converts."""
    parts = [_with_kinds(f"{number:,} {status}", status, total) for status, number in total.counts.items() if number]
    in_part = f", {total.in_parts_count:,} in part" if total.in_parts_count else ""
    return (
        f"{_files(total)}: {', '.join(parts) or 'none'}; "
        f"{total.function_count:,} functions described, {total.left_out_count:,} left out{in_part}, "
        f"{total.section_size:,} bytes of .sframe; {seconds:.1f} s"
    )


#: What becomes of the files of a run that takes sections out.
_REMOVAL_TEXTS: Final[dict[Status, str]] = {
    "removed": "section removed from {:,}",
    "would remove": "section would be removed from {:,}",
    "unchanged": "{:,} without one",
    "skipped": "{:,} skipped",
    "failed": "{:,} failed",
}


def removal_line(total: BatchTally, seconds: float) -> str:
    """Return the one sentence about a run that takes sections out."""
    parts = [
        _with_kinds(_REMOVAL_TEXTS[status].format(number), status, total)
        for status, number in total.counts.items()
        if number
    ]
    return f"{_files(total)}: {', '.join(parts) or 'none'}; {total.section_size:,} bytes of .sframe; {seconds:.1f} s"


def _files(total: BatchTally) -> str:
    count = sum(total.counts.values())
    return f"{count:,} file{'' if count == 1 else 's'}"


def _with_kinds(text: str, status: Status, total: BatchTally) -> str:
    """Add to the number of skipped files what they are."""
    if status != "skipped" or not total.kinds:
        return text
    kinds = [
        one if total.kinds[kind] == 1 else several.format(total.kinds[kind])
        for kind, (one, several) in _KIND_TEXTS.items()
        if kind in total.kinds
    ]
    return f"{text} ({', '.join(kinds)})"
