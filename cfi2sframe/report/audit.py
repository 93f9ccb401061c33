# SPDX-License-Identifier: Apache-2.0
"""The report of `audit`: as text, lines in the form of a compiler's messages; in other formats, a table of them."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

from cfi2sframe.audit.compare import Audit
from cfi2sframe.audit.findings import Finding
from cfi2sframe.report.tables import Column, Report, Table, cells_of
from cfi2sframe.text import counted

#: The most places of a finding that a line names.
_MAX_PLACES: Final = 4
#: The most functions that were not compared and are named.
_MAX_FUNCTIONS: Final = 20
#: Columns, and the field of a finding that each shows.
_COLUMNS: Final = {
    Column("place"): "place",
    Column("function"): "function",
    Column("rule"): "subject",
    Column("CFI"): "cfi_rule",
    Column("instructions say"): "code_rule",
    Column("directive"): "directive",
    Column("instructions", ","): "instruction_count",
}


def audit_report(audits: Sequence[Audit], *, with_undecided: bool) -> Report:
    """Return the report of some files; as text, with the functions that were not compared if that is wanted."""
    tables = [_files_table(audits)] if len(audits) > 1 else []
    tables += [_places_table(audits)] if any(audit.findings for audit in audits) else []
    data = {"files": [_data(audit) for audit in audits]}
    return Report(_headline(audits), tables, [], data, _lines(audits, with_undecided=with_undecided))


def _files_table(audits: Sequence[Audit]) -> Table:
    """Return how much of each file was compared."""
    numbers = [Column("instructions", ","), Column("compared", ".1f", " %")]
    numbers += [Column("not compared", ","), Column("contradict", ",")]
    rows = [[a.instruction_count, _percent(a), sum(a.undecided.values()), a.contradicted_count, a.name] for a in audits]
    return Table("Files", [*numbers, Column("file")], rows)


def _places_table(audits: Sequence[Audit]) -> Table:
    """Return all findings; in pages, each opens the instructions around it."""
    findings = [(finding, audit.name) for audit in audits for finding in audit.findings]
    rows = [[*cells_of(finding, _COLUMNS), name] for finding, name in findings]

    def around(row: int) -> Sequence[Table]:
        lines = [[">" if line.is_first else "", line.place, line.text] for line in findings[row][0].instructions]
        return [Table("Instructions", [Column(""), Column("place"), Column("text")], lines)] if lines else []

    return Table("Places", [*_COLUMNS, Column("file")], rows, detail=around)


def _percent(*audits: Audit) -> float | None:
    """Return the share of the instructions that was compared; None without instructions."""
    total = sum(audit.instruction_count for audit in audits)
    return 100 * sum(audit.decided_count for audit in audits) / total if total else None


def _headline(audits: Sequence[Audit]) -> str:
    if len(audits) == 1:
        return f"{audits[0].name}: {_sum_of(audits[0])}"
    silent_count = sum(not audit.decided_count for audit in audits)
    clean_count = sum(not audit.findings for audit in audits) - silent_count
    text = f"{counted(len(audits), 'file')}: {clean_count:,} without a contradiction"
    if silent_count:
        text += f", {silent_count:,} of which nothing was compared"
    places = counted(sum(len(audit.findings) for audit in audits), "place")
    return f"{text}, {places} in the others; {_compared(*audits)}"


def _compared(*audits: Audit) -> str:
    percent = _percent(*audits)
    total = counted(sum(audit.instruction_count for audit in audits), "instruction")
    return f"{total}, none compared" if percent is None else f"{total}, {percent:.1f} % compared"


def _sum_of(audit: Audit) -> str:
    if not audit.decided_count:
        return _compared(audit)
    if not audit.findings:
        return f"{_compared(audit)}, none contradicts the CFI"
    places = counted(len(audit.findings), "place")
    return f"{_compared(audit)}, {audit.contradicted_count:,} contradict the CFI, in {places}"


def _data(audit: Audit) -> dict[str, Any]:
    answers = ("silent", "agreed", "undecided", "contradicted")
    return {
        "file": audit.name,
        "function_count": audit.function_count,
        "code_size": audit.code_size,
        "instruction_count": audit.instruction_count,
        "agreed_count": audit.agreed_count,
        "contradicted_count": audit.contradicted_count,
        "undecided": audit.undecided,
        "rules": {subject: dict(zip(answers, tally, strict=True)) for subject, tally in audit.tallies.items()},
        "findings": [
            {
                "place": finding.place,
                "function": finding.function,
                "rule": finding.subject,
                "cfi": finding.cfi_rule,
                "instructions": finding.code_rule,
                "directive": finding.directive,
                "instruction_count": finding.instruction_count,
                "also_at": list(finding.also_places),
                "context": [line._asdict() for line in finding.instructions],
            }
            for finding in audit.findings
        ],
        "undecided_functions": [function._asdict() for function in audit.not_compared[:_MAX_FUNCTIONS]],
    }


def _lines(audits: Sequence[Audit], *, with_undecided: bool) -> Iterator[str]:
    """Yield the lines about some files, and their sum, which counts those that were compared and have no findings."""
    for audit in audits:
        for finding in audit.findings:
            yield f"{audit.name}: {_sentence(finding)}"
            width = max((len(line.place) for line in finding.instructions), default=0)
            for line in finding.instructions:
                yield f"  {'>' if line.is_first else ' '} {line.place:>{width}}  {line.text}"
        for place, function, reason, count in audit.not_compared[:_MAX_FUNCTIONS] if with_undecided else ():
            what = f"{function}: not compared" if function else "not compared"
            yield f"{audit.name}: {place}: {what}: {reason} ({counted(count, 'instruction')})"
        if len(audits) > 1 and (audit.findings or with_undecided or not audit.decided_count):
            yield _headline([audit])
    yield _headline(audits)


def _sentence(finding: Finding) -> str:
    function = f"{finding.function}: " if finding.function else ""
    ours = f"the instructions say {finding.code_rule}" if finding.code_rule else "the instructions say otherwise"
    text = f"{finding.place}: {function}{finding.subject} is {finding.cfi_rule} by the CFI; {ours}"
    if finding.directive:
        text += f": {finding.directive}"
    text += f" ({counted(finding.instruction_count, 'instruction')}"
    if finding.also_places:
        text += f"; also at {', '.join(finding.also_places[:_MAX_PLACES])}"
        more = len(finding.also_places) - _MAX_PLACES
        text += f" and {more:,} more" if more > 0 else ""
    return f"{text})"
