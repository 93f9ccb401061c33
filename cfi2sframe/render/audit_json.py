# SPDX-License-Identifier: Apache-2.0
"""The account of an audit as data for JSON (`schemas/audit.schema.json`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cfi2sframe.audit.account import Account, ShownContradiction

#: Incremented when a field changes its meaning or is removed.
SCHEMA_VERSION: Final = 1


def audit_data(account: Account) -> dict[str, Any]:
    """Return the object for a file."""
    result = account.audit
    return {
        "schema": SCHEMA_VERSION,
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
        "context": [each._asdict() for each in found.instructions],
    }
