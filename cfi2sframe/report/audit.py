# SPDX-License-Identifier: Apache-2.0
"""The report of `audit`: as text, lines in the form of a compiler's messages; in other formats, a table of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.printable import counted
from cfi2sframe.report.tables import SCHEMA_VERSION, Column, Report, Table

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.instructions.audit_account import Account, ShownContradiction
    from cfi2sframe.instructions.audit_records import Audit

#: Places of a finding that a line names.
_MAX_PLACES: Final = 4


def audit_report(accounts: Sequence[Account]) -> Report:
    """Return the report of some files."""
    columns = [Column(name) for name in ("place", "function", "rule", "CFI", "instructions say", "directive")]
    rows = [
        [
            *(found.place, found.function, found.finding.subject.value, found.finding.cfi_rule),
            *(found.finding.code_rule, found.finding.directive, found.finding.instruction_count, account.audit.name),
        ]
        for account in accounts
        for found in account.findings
    ]
    table = Table("", [*columns, Column("instructions", ","), Column("file")], rows)
    data = {"schema": SCHEMA_VERSION, "files": [audit_data(account) for account in accounts]}
    return Report(headline(accounts), [table] if rows else [], [], data)


def headline(accounts: Sequence[Account]) -> str:
    """Return the sum of one file, or of several."""
    if len(accounts) == 1:
        return f"{accounts[0].audit.name}: {sum_of(accounts[0].audit)}"
    clean_count = sum(not account.findings for account in accounts)
    places = counted(sum(len(account.findings) for account in accounts), "place")
    return f"{counted(len(accounts), 'file')}: {clean_count:,} without a contradiction, {places} in the others"


def audit_data(account: Account) -> dict[str, Any]:
    """Return the data of a file."""
    result = account.audit
    return {
        "file": result.name,
        "functions": result.function_count,
        "code_bytes": result.code_size,
        "instructions": result.decided_count + result.undecided_count,
        "agreed": result.agreed_count,
        "contradicted": result.contradicted_count,
        "undecided": {reason.value: count for reason, count in result.undecided.items()},
        "rules": {subject.value: tally._asdict() for subject, tally in result.tallies.items()},
        "findings": [_finding(found) for found in account.findings],
        "undecided_functions": [each._asdict() for each in account.undecided],
    }


def _finding(found: ShownContradiction) -> dict[str, Any]:
    finding = found.finding
    return {
        "place": found.place,
        "function": found.function,
        "rule": finding.subject.value,
        "cfi": finding.cfi_rule,
        "instructions": finding.code_rule,
        "directive": finding.directive,
        "instruction_count": finding.instruction_count,
        "also_at": list(found.also_at),
        "context": [each._asdict() for each in found.instructions],
    }


def audit_lines(accounts: Sequence[Account], *, with_undecided: bool) -> Iterator[str]:
    """Yield the lines about some files, and then their sum; of several files, those without findings are only in it.

    `with_undecided`: also the functions that were not compared, and the sum of each file.
    """
    for account in accounts:
        for found in account.findings:
            yield f"{account.audit.name}: {_sentence(found)}"
            yield from _instructions(found)
        if with_undecided:
            for each in account.undecided:
                function = f"{each.function}: " if each.function else ""
                count = counted(each.instruction_count, "instruction")
                yield f"{account.audit.name}: {each.place}: {function}not compared: {each.reason} ({count})"
        if len(accounts) > 1 and (account.findings or with_undecided):
            yield headline([account])
    yield headline(accounts)


def sum_of(result: Audit) -> str:
    """Return the sum of an audit as a sentence."""
    total = result.decided_count + result.undecided_count
    share = f"{100 * result.decided_count / total:.1f} % compared" if total else "none compared"
    if not result.findings:
        return f"{counted(total, 'instruction')}, {share}, none contradicts the CFI"
    places = counted(len(result.findings), "place")
    return f"{counted(total, 'instruction')}, {share}, {result.contradicted_count:,} contradict the CFI, in {places}"


def _sentence(found: ShownContradiction) -> str:
    finding = found.finding
    function = f"{found.function}: " if found.function else ""
    ours = f"the instructions say {finding.code_rule}" if finding.code_rule else "the instructions say otherwise"
    text = f"{found.place}: {function}{finding.subject.value} is {finding.cfi_rule} by the CFI; {ours}"
    if finding.directive:
        text += f": {finding.directive}"
    text += f" ({counted(finding.instruction_count, 'instruction')}"
    if found.also_at:
        text += f"; also at {', '.join(found.also_at[:_MAX_PLACES])}"
        more = len(found.also_at) - _MAX_PLACES
        text += f" and {more:,} more" if more > 0 else ""
    return f"{text})"


def _instructions(found: ShownContradiction) -> Iterator[str]:
    width = max((len(each.place) for each in found.instructions), default=0)
    for each in found.instructions:
        yield f"  {'>' if each.is_first else ' '} {each.place:>{width}}  {each.text}"
