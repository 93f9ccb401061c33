# SPDX-License-Identifier: Apache-2.0
"""One SFrame row against one row of the DWARF table.

Judges for itself: shares with lowering only the shapes of expressions, and with the encoder nothing.
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
from cfi2sframe.sframe.model import Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.sframe.model import FrameState


def judge(truth: RowState, said: FrameState | None, arch: Arch, shapes: Shapes) -> str | None:
    """Return how an SFrame row differs from a row of the DWARF table; None when they say the same.

    `shapes` are those of the expressions of the row's file.
    """
    if said is None:
        return "no row is in force"
    if truth.ra is NoRule.UNDEFINED:
        return None if said.cfa is None else "RA is undefined, but the row goes on to a caller"
    if said.cfa is None:
        return "the row says outermost frame, but RA is defined"
    if not _is_same_cfa(truth.cfa, said.cfa, shapes):
        return f"CFA is {describe_rule(truth.cfa, arch)}, the row says {describe_frame_rule(said.cfa, arch)}"
    if not _is_same_register(truth.ra, said.ra, arch.ra_register, shapes):
        return f"RA is {describe_rule(truth.ra, arch)}, the row says {_describe(said.ra, arch)}"
    if not _is_same_register(truth.fp, said.fp, arch.fp_register, shapes):
        return f"FP is {describe_rule(truth.fp, arch)}, the row says {_describe(said.fp, arch)}"
    if not _is_sp_of_caller(truth, said.cfa, arch, shapes):
        return f"SP is {describe_rule(truth.sp, arch)}, every row says c{arch.sp_offset_from_cfa:+d}"
    if truth.signing is RaSigning.SIGNED_WITH_PC or (truth.signing is RaSigning.SIGNED) != said.mangled_ra:
        return f"RA is {truth.signing.name.lower()}, the row says {'signed' if said.mangled_ra else 'none'}"
    return None


def _is_sp_of_caller(truth: RowState, cfa: Rule, arch: Arch, shapes: Shapes) -> bool:
    """Whether the caller's SP is the CFA plus the ABI's constant, as SFrame has it without saying so."""
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


def _is_same_cfa(truth: CfaRule | None, said: Rule, shapes: Shapes) -> bool:
    match truth:
        case RegisterOffset(register, offset):
            return said == Rule(register, offset, deref=False)
        case CfaExpression(expression):
            return _rule_of(expression, shapes, starts_with_cfa=False) == said
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


def _is_same_register(truth: RegisterRule, said: Rule | None, own_register: int, shapes: Shapes) -> bool:
    match truth:
        case NoRule.UNDEFINED:
            return False
        case NoRule():
            return said is None
        case AtCfa(offset):
            return said == Rule(None, offset, deref=True)
        case ValueAtCfa(offset):
            return said == Rule(None, offset, deref=False)
        case InRegister(register):
            return said == (None if register == own_register else Rule(register, 0, deref=False))
        case AtExpression(expression):
            address = _rule_of(expression, shapes, starts_with_cfa=True)
            return address is not None and not address.deref and said == address._replace(deref=True)
        case IsExpression(expression):
            value = _rule_of(expression, shapes, starts_with_cfa=True)
            return value is not None and said == value
