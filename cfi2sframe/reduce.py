# SPDX-License-Identifier: Apache-2.0
"""DWARF's rules to SFrame's, whatever the version: a row state to a frame state, or the named reason why not.

SFrame's CFA is the caller's SP, minus the ABI's constant. DWARF's is any value that other rules count from, and SP may
have a rule of its own. Where that makes the two differ, SFrame's CFA is taken from the rule of SP, and rules that count
from DWARF's CFA are rewritten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.describe import describe_rule
from cfi2sframe.dwarf.expression import Load, Shapes, Sum, describe
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
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.model import OUTERMOST, FrameState, Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState


class Unlike(NamedTuple):
    """A rule without its like in SFrame, or in a version of it: the reason to leave it out, and its readable form."""

    reason: SkipReason
    detail: str


class InexpressibleError(Exception):
    """SFrame has no rule of this value. `lower` catches it: it never leaves these two modules."""

    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        self.unlike = Unlike(reason, detail)
        super().__init__(reason, detail)


class Reduced(NamedTuple):
    """A row's rules as SFrame's.

    `rewritten` is the first rule for which SFrame has none like it, but one of the same value (None: there is no such
    rule). It is what reports name where a version's default rows cannot express that other one.
    """

    state: FrameState
    rewritten: Unlike | None


def reduce_state(state: RowState, arch: Arch, shapes: Shapes) -> Reduced:
    """Translate a row's rules to SFrame's. Raises `InexpressibleError` when SFrame has no rule for one of them."""
    if state.ra is NoRule.UNDEFINED:
        return Reduced(OUTERMOST, None)
    if state.signing is RaSigning.SIGNED_WITH_PC:
        raise InexpressibleError(SkipReason.PAUTH_WITH_PC)
    dwarf_cfa = _reduce_cfa(state.cfa, shapes)
    dwarf_ra = _reduce_register(state.ra, shapes, SkipReason.RA_EXPRESSION)
    if state.fp is NoRule.UNDEFINED:
        raise InexpressibleError(SkipReason.FP_UNDEFINED)
    dwarf_fp = _reduce_register(state.fp, shapes, SkipReason.FP_EXPRESSION)
    cfa = _cfa_of_sp(state.sp, dwarf_cfa, arch, shapes)

    of_sp = None if cfa == dwarf_cfa else Unlike(SkipReason.SP_RULE, describe_rule(state.sp, arch))
    of_ra = of_sp or _sum_with_cfa(dwarf_ra, SkipReason.RA_IS_CFA_VALUE)
    of_fp = of_sp or _sum_with_cfa(dwarf_fp, SkipReason.FP_IS_CFA_VALUE)
    ra = _rewritten(dwarf_ra, dwarf_cfa, cfa, of_ra)
    fp = _rewritten(dwarf_fp, dwarf_cfa, cfa, of_fp)
    if ra == Rule(arch.ra_register, 0, deref=False):
        ra = None
    if ra is None and arch.fixed_ra_offset:
        # The call instruction pushed RA, and the CFI does not describe where.
        raise InexpressibleError(SkipReason.RA_UNSPECIFIED)
    if fp == Rule(arch.fp_register, 0, deref=False):
        fp = None
    return Reduced(FrameState(cfa, ra, fp, mangled_ra=state.signing is RaSigning.SIGNED), of_ra or of_fp)


# Rules as DWARF counts: a rule without a register counts from DWARF's CFA


def _reduce_cfa(rule: CfaRule | None, shapes: Shapes) -> Rule:
    match rule:
        case RegisterOffset(register, offset):
            return Rule(register, offset, deref=False)
        case CfaExpression(expression):
            return _by_shape(expression, shapes, SkipReason.CFA_EXPRESSION, starts_with_cfa=False)
        case None:
            raise InexpressibleError(SkipReason.CFA_UNDEFINED)


def _by_shape(expression: bytes, shapes: Shapes, reason: SkipReason, *, starts_with_cfa: bool) -> Rule:
    """Return the rule of an expression that computes a value."""
    match shapes[expression, starts_with_cfa]:
        case Sum(register, offset):
            return Rule(register, offset, deref=False)
        case Load(Sum(register, offset)):
            return Rule(register, offset, deref=True)
        case None:
            raise InexpressibleError(reason, describe(expression, shapes.byte_order))


def _reduce_register(rule: RegisterRule, shapes: Shapes, reason: SkipReason) -> Rule | None:
    """Return the rule of a register; None where the CFI gives none or the register keeps its value.

    Raises `InexpressibleError` with this reason when an expression is more than a sum or one load.
    """
    match rule:
        case NoRule():
            return None
        case AtCfa(offset):
            return Rule(None, offset, deref=True)
        case ValueAtCfa(offset):
            return Rule(None, offset, deref=False)
        case InRegister(register):
            return Rule(register, 0, deref=False)
        case IsExpression(expression):
            return _by_shape(expression, shapes, reason, starts_with_cfa=True)
        case AtExpression(expression):
            address = _by_shape(expression, shapes, reason, starts_with_cfa=True)
            if address.deref:
                raise InexpressibleError(reason, describe(expression, shapes.byte_order))
            return address._replace(deref=True)


# Rules as SFrame counts: a rule without a register counts from SFrame's CFA


def _cfa_of_sp(rule: RegisterRule, dwarf_cfa: Rule, arch: Arch, shapes: Shapes) -> Rule:
    """Return SFrame's CFA: the caller's SP minus the ABI's constant. Raises `InexpressibleError`."""
    constant = arch.sp_offset_from_cfa
    if constant and isinstance(rule, AtCfa):
        # s390x saves SP with the other registers; it is CFA - 160 by the ABI's definition of the CFA.
        return dwarf_cfa
    if constant and isinstance(rule, InRegister) and dwarf_cfa.register in (arch.sp_register, arch.fp_register):
        # The same, in leaf functions. A CFA from any other register means that stacks are being switched.
        return dwarf_cfa
    if rule is NoRule.UNSPECIFIED:
        return dwarf_cfa
    unlike = Unlike(SkipReason.SP_RULE, describe_rule(rule, arch))
    if rule is NoRule.UNDEFINED:
        raise InexpressibleError(*unlike)
    sp = _reduce_register(rule, shapes, SkipReason.SP_RULE) or Rule(arch.sp_register, 0, deref=False)
    if sp.deref and constant:
        # A load and a sum.
        raise InexpressibleError(*unlike)
    return _absolute(sp._replace(offset=sp.offset - constant), dwarf_cfa, unlike)


def _sum_with_cfa(rule: Rule | None, reason: SkipReason) -> Unlike | None:
    """Return that a rule is a sum with the CFA, which would have the padding word as its control word; None: it is not.

    Version 3, "Control Data".
    """
    is_sum = rule is not None and rule.register is None and not rule.deref
    return Unlike(reason, f"CFA{rule.offset:+d}") if rule is not None and is_sum else None


def _rewritten(rule: Rule | None, dwarf_cfa: Rule, cfa: Rule, unlike: Unlike | None) -> Rule | None:
    """Return an SFrame rule of the same value as DWARF's; it is the same where `unlike` is None.

    Raises `InexpressibleError` with `unlike` when there is none.
    """
    if rule is None or unlike is None or rule.register is not None:
        return rule
    if rule.deref and cfa.register == dwarf_cfa.register and not (cfa.deref or dwarf_cfa.deref):
        # At a constant distance from either CFA. Readers know that of any frame, other registers of the topmost only.
        return rule._replace(offset=rule.offset + dwarf_cfa.offset - cfa.offset)
    return _absolute(rule, dwarf_cfa, unlike)


def _absolute(rule: Rule, dwarf_cfa: Rule, unlike: Unlike) -> Rule:
    """Return a rule of the same value that counts from a register, not from DWARF's CFA.

    Raises `InexpressibleError` with `unlike` when it is a load and a sum, or two loads.
    """
    if rule.register is not None:
        return rule
    if not dwarf_cfa.deref:
        return rule._replace(register=dwarf_cfa.register, offset=rule.offset + dwarf_cfa.offset)
    if rule.deref or rule.offset:
        raise InexpressibleError(*unlike)
    return dwarf_cfa
