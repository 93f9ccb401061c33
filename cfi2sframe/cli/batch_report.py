# SPDX-License-Identifier: Apache-2.0
"""What is told of files rewritten in place: lines of JSON for programs, sentences for people."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.files.kinds import SkipKind
from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.jobs.records import Outcome, Status

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
