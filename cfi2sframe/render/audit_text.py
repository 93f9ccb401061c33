# SPDX-License-Identifier: Apache-2.0
"""The account of an audit as text: a line for each contradiction, with the instructions around it, and the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.printable import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.audit.account import Account, ShownContradiction
    from cfi2sframe.audit.records import Audit


def audit_lines(account: Account, *, with_undecided: bool) -> Iterator[str]:
    """Yield the lines about a file, the sum last; `with_undecided`: also the functions that were not compared."""
    for found in account.findings:
        yield f"{account.audit.name}: {_sentence(found)}"
        yield from _instructions(found)
    if with_undecided:
        for each in account.undecided:
            function = f"{each.function}: " if each.function else ""
            count = counted(each.instruction_count, "instruction")
            yield f"{account.audit.name}: {each.place}: {function}not compared: {each.reason} ({count})"
    yield f"{account.audit.name}: {sum_of(account.audit)}"


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
    return f"{text} ({counted(finding.instruction_count, 'instruction')})"


def _instructions(found: ShownContradiction) -> Iterator[str]:
    width = max((len(each.place) for each in found.instructions), default=0)
    for each in found.instructions:
        yield f"  {'>' if each.is_first else ' '} {each.place:>{width}}  {each.text}"
