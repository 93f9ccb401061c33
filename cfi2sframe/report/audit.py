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
    columns = [Column(name) for name in ("place", "function", "rule", "CFI", "instructions say", "directive")]
    rows: list[list[Cell]] = [
        [
            *(found.place, found.function, found.subject, found.cfi_rule),
            *(found.code_rule, found.directive, found.instruction_count, result.name),
        ]
        for result in audits
        for found in result.findings
    ]
    table = Table("", [*columns, Column("instructions", ","), Column("file")], rows)
    data = {"schema": SCHEMA_VERSION, "files": [_data(result) for result in audits]}
    lines = _lines(audits, with_undecided=with_undecided)
    return Report(_headline(audits), [table] if rows else [], [], data, lines)


def _headline(audits: Sequence[Audit]) -> str:
    if len(audits) == 1:
        return f"{audits[0].name}: {_sum_of(audits[0])}"
    clean_count = sum(not result.findings for result in audits)
    places = counted(sum(len(result.findings) for result in audits), "place")
    return f"{counted(len(audits), 'file')}: {clean_count:,} without a contradiction, {places} in the others"


def _sum_of(result: Audit) -> str:
    total = result.instruction_count
    share = f"{100 * result.decided_count / total:.1f} % compared" if total else "none compared"
    if not result.findings:
        return f"{counted(total, 'instruction')}, {share}, none contradicts the CFI"
    places = counted(len(result.findings), "place")
    return f"{counted(total, 'instruction')}, {share}, {result.contradicted_count:,} contradict the CFI, in {places}"


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
    """Yield the lines about some files, and then their sum; of several files, those without findings are only in it."""
    for result in audits:
        for found in result.findings:
            yield f"{result.name}: {_sentence(found)}"
            width = max((len(each.place) for each in found.instructions), default=0)
            for each in found.instructions:
                yield f"  {'>' if each.is_first else ' '} {each.place:>{width}}  {each.text}"
        for place, function, reason, count in result.not_compared[:_MAX_FUNCTIONS] if with_undecided else ():
            what = f"{function}: not compared" if function else "not compared"
            yield f"{result.name}: {place}: {what}: {reason} ({counted(count, 'instruction')})"
        if len(audits) > 1 and (result.findings or with_undecided):
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
