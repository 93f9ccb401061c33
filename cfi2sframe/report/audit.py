# SPDX-License-Identifier: Apache-2.0
"""The report of `audit`: as text, lines in the form of a compiler's messages; in other formats, a table of them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cfi2sframe.audit.compare import Audit
from cfi2sframe.audit.findings import Finding
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.report.tables import Cell, Column, Report, Table
from cfi2sframe.text import counted

#: Places of a finding that a line names.
_MAX_PLACES: Final = 4
#: Functions that were not compared, and are named.
_MAX_FUNCTIONS: Final = 20


def audit_report(audits: Sequence[Audit], *, with_undecided: bool) -> Report:
    """Return the report of some files; as text, with the functions that were not compared if that is wanted."""
    tables = [_files_table(audits)] if len(audits) > 1 else []
    tables += [_places_table(audits)] if any(result.findings for result in audits) else []
    data = {"schema": SCHEMA_VERSION, "files": [_data(result) for result in audits]}
    lines = _lines(audits, with_undecided=with_undecided)
    return Report(_headline(audits), tables, [], data, lines)


def _files_table(audits: Sequence[Audit]) -> Table:
    """Return how much of each file was compared."""
    numbers = [Column("instructions", ","), Column("compared", ".1f", " %")]
    numbers += [Column("not compared", ","), Column("contradict", ",")]
    rows: list[list[Cell]] = []
    for each in audits:
        counts = each.instruction_count, _percent(each), sum(each.undecided.values()), each.contradicted_count
        rows.append([*counts, each.name])
    return Table("Files", [*numbers, Column("file")], rows)


def _places_table(audits: Sequence[Audit]) -> Table:
    """Return all findings; in pages, each opens the instructions around it."""
    names = ("place", "function", "rule", "CFI", "instructions say", "directive")
    findings = [(finding, result.name) for result in audits for finding in result.findings]
    rows: list[list[Cell]] = [
        [
            *(finding.place, finding.function, finding.subject, finding.cfi_rule),
            *(finding.code_rule, finding.directive, finding.instruction_count, name),
        ]
        for finding, name in findings
    ]

    def around(row: int) -> Sequence[Table]:
        shown = [[">" if each.is_first else "", each.place, each.text] for each in findings[row][0].instructions]
        return [Table("Instructions", [Column(""), Column("place"), Column("text")], shown)] if shown else []

    columns = [*map(Column, names), Column("instructions", ","), Column("file")]
    return Table("Places", columns, rows, detail=around)


def _percent(*audits: Audit) -> float | None:
    """Return the share of the instructions that was compared; None without instructions."""
    total = sum(each.instruction_count for each in audits)
    return 100 * sum(each.decided_count for each in audits) / total if total else None


def _headline(audits: Sequence[Audit]) -> str:
    if len(audits) == 1:
        return f"{audits[0].name}: {_sum_of(audits[0])}"
    silent_count = sum(not result.decided_count for result in audits)
    clean_count = sum(not result.findings for result in audits) - silent_count
    text = f"{counted(len(audits), 'file')}: {clean_count:,} without a contradiction"
    if silent_count:
        text += f", {silent_count:,} of which nothing was compared"
    places = counted(sum(len(result.findings) for result in audits), "place")
    return f"{text}, {places} in the others; {_compared(*audits)}"


def _compared(*audits: Audit) -> str:
    percent = _percent(*audits)
    total = counted(sum(each.instruction_count for each in audits), "instruction")
    return f"{total}, none compared" if percent is None else f"{total}, {percent:.1f} % compared"


def _sum_of(result: Audit) -> str:
    if not result.decided_count:
        return _compared(result)
    if not result.findings:
        return f"{_compared(result)}, none contradicts the CFI"
    places = counted(len(result.findings), "place")
    return f"{_compared(result)}, {result.contradicted_count:,} contradict the CFI, in {places}"


def _data(result: Audit) -> dict[str, Any]:
    answers = ("silent", "agreed", "undecided", "contradicted")
    return {
        "file": result.name,
        "function_count": result.function_count,
        "code_size": result.code_size,
        "instruction_count": result.instruction_count,
        "agreed_count": result.agreed_count,
        "contradicted_count": result.contradicted_count,
        "undecided": result.undecided,
        "rules": {subject: dict(zip(answers, tally, strict=True)) for subject, tally in result.tallies.items()},
        "findings": [
            {
                "place": found.place,
                "function": found.function,
                "rule": found.subject,
                "cfi": found.cfi_rule,
                "instructions": found.code_rule,
                "directive": found.directive,
                "instruction_count": found.instruction_count,
                "also_at": list(found.also_places),
                "context": [each._asdict() for each in found.instructions],
            }
            for found in result.findings
        ],
        "undecided_functions": [each._asdict() for each in result.not_compared[:_MAX_FUNCTIONS]],
    }


def _lines(audits: Sequence[Audit], *, with_undecided: bool) -> Iterator[str]:
    """Yield the lines about some files, and their sum, where those are that were compared and have no findings."""
    for result in audits:
        for found in result.findings:
            yield f"{result.name}: {_sentence(found)}"
            width = max((len(each.place) for each in found.instructions), default=0)
            for each in found.instructions:
                yield f"  {'>' if each.is_first else ' '} {each.place:>{width}}  {each.text}"
        for place, function, reason, count in result.not_compared[:_MAX_FUNCTIONS] if with_undecided else ():
            what = f"{function}: not compared" if function else "not compared"
            yield f"{result.name}: {place}: {what}: {reason} ({counted(count, 'instruction')})"
        if len(audits) > 1 and (result.findings or with_undecided or not result.decided_count):
            yield _headline([result])
    yield _headline(audits)


def _sentence(found: Finding) -> str:
    function = f"{found.function}: " if found.function else ""
    ours = f"the instructions say {found.code_rule}" if found.code_rule else "the instructions say otherwise"
    text = f"{found.place}: {function}{found.subject} is {found.cfi_rule} by the CFI; {ours}"
    if found.directive:
        text += f": {found.directive}"
    text += f" ({counted(found.instruction_count, 'instruction')}"
    if found.also_places:
        text += f"; also at {', '.join(found.also_places[:_MAX_PLACES])}"
        more = len(found.also_places) - _MAX_PLACES
        text += f" and {more:,} more" if more > 0 else ""
    return f"{text})"
