# SPDX-License-Identifier: Apache-2.0
"""Compare an SFrame row with a row of the DWARF table, and the attributes of a function with those of a CIE.

Compares values, not rules: what either row gives as the caller's SP, RA and FP, in terms of this frame's registers and
of memory. So it decides without `lower` and `reduce` which rules are equal; all use the shapes of expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.rules import NoRule, RaSigning, describe_cfa, describe_rule
from cfi2sframe.rules import Rule
from cfi2sframe.sframe.constants import SFRAME_VERSION_3

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.expression import Shapes
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.sframe.model import FrameState, FunctionBody


_WORD: Final = 1 << 64


class RowValue(NamedTuple):
    """A register of this frame plus `offsets[0]`; for each further offset, what is saved there plus that offset.

    Offsets are words, modulo 2**64, so that equal values have equal records.
    """

    register: int
    offsets: tuple[int, ...]

    def plus(self, offset: int) -> RowValue:
        """Return the sum with a number."""
        return RowValue(self.register, (*self.offsets[:-1], (self.offsets[-1] + offset) % _WORD))

    def load(self) -> RowValue:
        """Return what is saved at this address."""
        return RowValue(self.register, (*self.offsets, 0))


def row_difference(truth: RowState, state: FrameState | None, arch: Arch, shapes: Shapes) -> str | None:
    """Return how a state of the section (None: no row) differs from a row of the DWARF table; None: not at all.

    `shapes` are those of the expressions of the row's file.
    """
    if state is None:
        return "no row is in force"
    if truth.ra is NoRule.UNDEFINED:
        return None if state.cfa is None else "RA is undefined, but the row has a caller"
    if state.cfa is None:
        return "the row is an outermost frame, but RA is defined"
    cfa = _cfa_value(truth.cfa, shapes)
    cfa_of_row = _value(state.cfa, None)
    if cfa is None:
        return f"CFA is {describe_cfa(truth.cfa, arch)}, the row has {state.cfa.equation(arch)}"
    sp = _sp_of_caller(truth, cfa, arch, shapes)
    if sp is None or cfa_of_row is None or cfa_of_row.plus(arch.sp_offset_from_cfa) != sp:
        text = state.cfa.equation(arch)
        if sp == cfa.plus(arch.sp_offset_from_cfa):
            return f"CFA is {describe_cfa(truth.cfa, arch)}, the row has {text}"
        constant = f"{arch.sp_offset_from_cfa:+d}" if arch.sp_offset_from_cfa else ""
        return f"SP is {describe_rule(truth.sp, arch)}, the row has {text}{constant}"
    if not _is_same(truth.ra, cfa, state.ra, cfa_of_row, arch.ra_register, shapes):
        return f"RA is {describe_rule(truth.ra, arch)}, the row has {_describe(state.ra, arch)}"
    if not _is_same(truth.fp, cfa, state.fp, cfa_of_row, arch.fp_register, shapes):
        return f"FP is {describe_rule(truth.fp, arch)}, the row has {_describe(state.fp, arch)}"
    is_plain = truth.signing in (RaSigning.NONE, RaSigning.SIGNED)
    if not is_plain or (truth.signing is RaSigning.SIGNED) != state.mangled_ra:
        return f"RA is {truth.signing.name.lower()}, the row has {'signed' if state.mangled_ra else 'none'}"
    return None


def attribute_difference(cie: DwarfCie, function: FunctionBody, version: int, *, signs_ra: bool) -> str | None:
    """Return how the attributes of a function of the section differ from a CIE's; None: not at all.

    `signs_ra`: a row has a signed RA. Otherwise the key has no effect, and assemblers differ in it.
    """
    if version >= SFRAME_VERSION_3 and cie.is_signal_frame != function.is_signal_frame:
        return "a signal frame that is not marked as one" if cie.is_signal_frame else "marked as a signal frame"
    if signs_ra and cie.uses_b_key != function.uses_b_key:
        keys = ("B", "A") if cie.uses_b_key else ("A", "B")
        return f"RA is signed with key {keys[0]}, the function has {keys[1]}"
    return None


def _describe(rule: Rule | None, arch: Arch) -> str:
    return "unchanged" if rule is None else rule.equation(arch)


def _value(rule: Rule, cfa: RowValue | None) -> RowValue | None:
    """Return the value of a rule; None where it counts from a CFA that is not known."""
    base = cfa if rule.register is None else RowValue(rule.register, (0,))
    if base is None:
        return None
    return base.plus(rule.offset).load() if rule.deref else base.plus(rule.offset)


def _cfa_value(rule: CfaRule | None, shapes: Shapes) -> RowValue | None:
    """Return the value of DWARF's CFA; None where it is no sum and no load of one."""
    if rule is None or isinstance(rule, Rule):
        return rule and _value(rule, None)
    return _expression_value(rule.code, None, shapes)


def _expression_value(expression: bytes, cfa: RowValue | None, shapes: Shapes) -> RowValue | None:
    """Return the value of an expression that starts with a CFA, or with nothing; None as in `_cfa_value`."""
    rule = shapes[expression, cfa is not None]
    return rule and _value(rule, cfa)


def _register_value(rule: RegisterRule, cfa: RowValue, own_register: int, shapes: Shapes) -> RowValue | None:
    """Return the caller's value of a register by its DWARF rule; None where it is lost, or as in `_cfa_value`."""
    if isinstance(rule, NoRule):
        return None if rule is NoRule.UNDEFINED else RowValue(own_register, (0,))
    if isinstance(rule, Rule):
        return _value(rule, cfa)
    value = _expression_value(rule.code, cfa, shapes)
    return value.load() if value is not None and rule.deref else value


def _sp_of_caller(truth: RowState, cfa: RowValue, arch: Arch, shapes: Shapes) -> RowValue | None:
    """Return the caller's SP by the CFI; None as in `_register_value`."""
    of_abi = cfa.plus(arch.sp_offset_from_cfa)
    if arch.sp_offset_from_cfa and isinstance(truth.sp, Rule):
        # Where the ABI defines the CFA by SP (s390x), an SP that was saved in the stack frame is that same value.
        is_in_frame = cfa.register in (arch.sp_register, arch.fp_register)
        if truth.sp.is_saved_at_cfa or (truth.sp.is_register and is_in_frame):
            return of_abi
    if truth.sp is NoRule.UNSPECIFIED:
        return of_abi
    return _register_value(truth.sp, cfa, arch.sp_register, shapes)


def _is_same(
    truth: RegisterRule, cfa: RowValue, rule: Rule | None, cfa_of_row: RowValue, own_register: int, shapes: Shapes
) -> bool:
    value = _register_value(truth, cfa, own_register, shapes)
    found = RowValue(own_register, (0,)) if rule is None else _value(rule, cfa_of_row)
    return value is not None and value == found
