# SPDX-License-Identifier: Apache-2.0
"""Compare an SFrame row with a row of the DWARF table, and the attributes of a function with those of a CIE.

Decides without `lower` which SFrame rule a DWARF rule is equal to; both use the shapes of expressions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.describe import describe_frame_rule, describe_rule
from cfi2sframe.dwarf.expression import Load, Shapes, Sum
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    InRegister,
    IsExpression,
    NoRule,
    RaSigning,
    RegisterOffset,
    ValueAtCfa,
)
from cfi2sframe.sframe.constants import SFRAME_VERSION_3
from cfi2sframe.sframe.model import Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.sframe.decode import DecodedBody, DecodedFunction
    from cfi2sframe.sframe.model import FrameState


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
    if not _is_same_cfa(truth.cfa, state.cfa, shapes):
        return f"CFA is {describe_rule(truth.cfa, arch)}, the row has {describe_frame_rule(state.cfa, arch)}"
    if not _is_same_register(truth.ra, state.ra, arch.ra_register, shapes):
        return f"RA is {describe_rule(truth.ra, arch)}, the row has {_describe(state.ra, arch)}"
    if not _is_same_register(truth.fp, state.fp, arch.fp_register, shapes):
        return f"FP is {describe_rule(truth.fp, arch)}, the row has {_describe(state.fp, arch)}"
    if not _is_sp_of_caller(truth, state.cfa, arch, shapes):
        return f"SP is {describe_rule(truth.sp, arch)}, every row has c{arch.sp_offset_from_cfa:+d}"
    if truth.signing is RaSigning.SIGNED_WITH_PC or (truth.signing is RaSigning.SIGNED) != state.mangled_ra:
        return f"RA is {truth.signing.name.lower()}, the row has {'signed' if state.mangled_ra else 'none'}"
    return None


def attribute_difference(
    cie: DwarfCie, function: DecodedBody | DecodedFunction, arch: Arch, version: int, *, signs_ra: bool
) -> str | None:
    """Return how the attributes of a function of the section differ from a CIE's; None: not at all.

    `signs_ra`: a row has a signed RA. Otherwise the key has no effect, and assemblers differ in it.
    """
    if cie.ra_register != arch.ra_register:
        return f"the return address is in column {cie.ra_register}, rows have {arch.register_name(arch.ra_register)}"
    if version >= SFRAME_VERSION_3 and cie.is_signal_frame != function.is_signal_frame:
        return "a signal frame that is not marked as one" if cie.is_signal_frame else "marked as a signal frame"
    if signs_ra and cie.uses_b_key != function.uses_b_key:
        keys = ("B", "A") if cie.uses_b_key else ("A", "B")
        return f"RA is signed with key {keys[0]}, the function has {keys[1]}"
    return None


def _is_sp_of_caller(truth: RowState, cfa: Rule, arch: Arch, shapes: Shapes) -> bool:
    """Whether the caller's SP is the CFA plus the ABI's constant, which is all that SFrame can express."""
    match truth.sp:
        case NoRule():
            return truth.sp is NoRule.UNSPECIFIED
        case ValueAtCfa(offset):
            return offset == arch.sp_offset_from_cfa
        case AtCfa():
            # Where the ABI defines the CFA by SP (s390x), the saved SP is that same value.
            return arch.sp_offset_from_cfa != 0
        case InRegister():
            return arch.sp_offset_from_cfa != 0 and cfa.register in (arch.sp_register, arch.fp_register)
        case AtExpression(expression):
            address = _rule_of(expression, shapes, starts_with_cfa=True)
            return address is not None and not arch.sp_offset_from_cfa and address._replace(deref=True) == cfa
        case _:
            return False


def _describe(rule: Rule | None, arch: Arch) -> str:
    return "unchanged" if rule is None else describe_frame_rule(rule, arch)


def _is_same_cfa(truth: CfaRule | None, rule: Rule, shapes: Shapes) -> bool:
    match truth:
        case RegisterOffset(register, offset):
            return rule == Rule(register, offset, deref=False)
        case CfaExpression(expression):
            return _rule_of(expression, shapes, starts_with_cfa=False) == rule
        case None:
            return False


def _rule_of(expression: bytes, shapes: Shapes, *, starts_with_cfa: bool) -> Rule | None:
    match shapes[expression, starts_with_cfa]:
        case Sum(register, offset):
            return Rule(register, offset, deref=False)
        case Load(Sum(register, offset)):
            return Rule(register, offset, deref=True)
        case None:
            return None


def _is_same_register(truth: RegisterRule, rule: Rule | None, own_register: int, shapes: Shapes) -> bool:
    match truth:
        case NoRule.UNDEFINED:
            return False
        case NoRule():
            return rule is None
        case AtCfa(offset):
            return rule == Rule(None, offset, deref=True)
        case ValueAtCfa(offset):
            return rule == Rule(None, offset, deref=False)
        case InRegister(register):
            return rule == (None if register == own_register else Rule(register, 0, deref=False))
        case AtExpression(expression):
            address = _rule_of(expression, shapes, starts_with_cfa=True)
            return address is not None and not address.deref and rule == address._replace(deref=True)
        case IsExpression(expression):
            value = _rule_of(expression, shapes, starts_with_cfa=True)
            return value is not None and rule == value
