# SPDX-License-Identifier: Apache-2.0
"""The package's rows beside those of the naive evaluator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.dwarf.rules import UNKNOWN_CFA, NoRule, RaSigning
from cfi2sframe.rules import Rule
from tests.support import naive
from tests.support.rules import state_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState, UnwindTable

SIGNING: Final = {RaSigning.NONE: (0, 2), RaSigning.SIGNED: (1,), RaSigning.SIGNED_WITH_PC: (3,)}


def said(rule: CfaRule | RegisterRule | None) -> naive.Rule | None:
    """Return a rule as the evaluator has it."""
    if isinstance(rule, NoRule):
        return {NoRule.UNSPECIFIED: None, NoRule.UNDEFINED: ("undefined",), NoRule.SAME_VALUE: ("same value",)}[rule]
    if isinstance(rule, Rule):
        if rule.register is not None:
            assert (rule.offset, rule.deref) == (0, False)
            return "register", rule.register
        return "offset" if rule.deref else "val_offset", rule.offset
    return None if rule is None else ("expression" if rule.deref else "val_expression", rule.code)


def said_of_cfa(rule: CfaRule | None) -> naive.Rule | None:
    if rule == UNKNOWN_CFA:
        return ("unknown",)
    if isinstance(rule, Rule):
        assert not rule.deref
        return "sum", rule.register, rule.offset
    return None if rule is None else ("value", rule.code)


def differences_of(ours: RowState, theirs: naive.Row, column: int, arch: Arch) -> Iterator[str]:
    if said_of_cfa(ours.cfa) != theirs.cfa:
        yield f"CFA {ours.cfa}, {theirs.cfa}"
    for name, register, rule in (("FP", arch.fp_register, ours.fp), ("SP", arch.sp_register, ours.sp)):
        if said(rule) != theirs.rules.get(register):
            yield f"{name} {rule}, {theirs.rules.get(register)}"
    ra = theirs.rules.get(column)
    if column != arch.ra_register and ra in (None, ("same value",)):
        ra = ("register", column)
    if said(ours.ra) != ra:
        yield f"RA {ours.ra}, {ra}"
    if arch.ra_may_be_signed:
        state = theirs.rules.get(naive.RA_SIGN_STATE, ("state", 0))
        if ours.signing is RaSigning.UNKNOWN or state[0] != "state" or state[1] not in SIGNING[ours.signing]:
            yield f"signing {ours.signing!r}, {state}"


def problems_of(table: UnwindTable, rows: Sequence[naive.Row], column: int, arch: Arch) -> Iterator[str]:
    """Describe how a table differs from the evaluator's rows of the same FDE."""
    for row in rows:
        yield from (f"+{row.start}: {text}" for text in differences_of(state_at(table, row.start), row, column, arch))
    # A row of ours that begins where none of theirs does would hold at an address that was not compared.
    yield from (f"+{start}: only here" for start in set(table.starts) - {row.start for row in rows})
