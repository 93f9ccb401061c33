# SPDX-License-Identifier: Apache-2.0
"""Translate DWARF's rules to SFrame's, for any version: a row of the DWARF table to a frame state, if there is one.

SFrame's CFA is the caller's SP minus the ABI's constant. DWARF's CFA is any value that other rules count from, and SP
may have a rule of its own. Where the two differ, SFrame's CFA follows from the rule of SP, and rules that count from
DWARF's CFA are rewritten.
"""

from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.expression import Expression, expression_text, value_of
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RaSigning, RegisterRule, RowState, describe_rule
from cfi2sframe.sframe.model import OUTERMOST, FrameState
from cfi2sframe.why import Reason, Why

_SIGNING_REASONS: Final = {
    RaSigning.SIGNED_WITH_PC: Reason.PAUTH_WITH_PC,
    RaSigning.UNKNOWN: Reason.PAUTH_UNKNOWN,
}


class InexpressibleError(Exception):
    """SFrame has no rule for a value. It never leaves this module and `lower`."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        self.why = Why(reason, detail)
        super().__init__(reason, detail)


def reduce_state(row: RowState, arch: Arch) -> tuple[FrameState, Why | None]:
    """Translate a row's rules to SFrame's. Raises `InexpressibleError` when SFrame has no rule for one of them.

    Also returns the first rule that became another one of the same value, if any did: where default rows cannot express
    that one, reports name the original.
    """
    if row.ra is NoRule.UNDEFINED:
        return OUTERMOST, None
    if row.signing in _SIGNING_REASONS:
        raise InexpressibleError(_SIGNING_REASONS[row.signing])
    dwarf_cfa = _dwarf_cfa(row.cfa, arch)
    ra = _simple(row.ra, arch, Reason.RA_EXPRESSION)
    if row.fp is NoRule.UNDEFINED:
        raise InexpressibleError(Reason.FP_UNDEFINED)
    fp = _simple(row.fp, arch, Reason.FP_EXPRESSION)
    cfa = _cfa_of_sp(row.sp, dwarf_cfa, arch)

    # Rules that count from a CFA that is not SFrame's, and sums that no word can hold, become others.
    of_sp = None if cfa == dwarf_cfa else Why(Reason.SP_RULE, describe_rule(row.sp, arch))
    of_ra = of_sp or _sum_with_cfa(ra, Reason.RA_IS_CFA_VALUE)
    of_fp = of_sp or _sum_with_cfa(fp, Reason.FP_IS_CFA_VALUE)
    ra = _rewritten(ra, dwarf_cfa, cfa, of_ra)
    fp = _rewritten(fp, dwarf_cfa, cfa, of_fp)
    if ra == Rule(arch.ra_register, 0, deref=False):
        ra = None
    if ra is None and arch.fixed_ra_offset:
        # The call instruction pushed RA, and the CFI does not describe where.
        raise InexpressibleError(Reason.RA_UNSPECIFIED)
    if fp == Rule(arch.fp_register, 0, deref=False):
        fp = None
    return FrameState(cfa, ra, fp, mangled_ra=row.signing is RaSigning.SIGNED), of_ra or of_fp


# Rules as DWARF counts: a rule without a register counts from DWARF's CFA


def _dwarf_cfa(rule: CfaRule | None, arch: Arch) -> Rule:
    """Return DWARF's CFA as a sum or a load. Raises `InexpressibleError` when it has no rule, or is more than that."""
    if rule is None:
        raise InexpressibleError(Reason.CFA_UNDEFINED)
    if isinstance(rule, NoCfa):
        raise InexpressibleError(Reason.CFA_OFFSET_UNKNOWN)
    if isinstance(rule, Expression):
        return _rule_of(rule, arch, Reason.CFA_EXPRESSION, starts_with_cfa=False)
    return rule


def _simple(rule: RegisterRule, arch: Arch, reason: Reason) -> Rule | None:
    """Return the rule of a register as a sum or a load; None if it has none or keeps its value.

    Raises `InexpressibleError`, with this reason, for an expression that is more than that.
    """
    if isinstance(rule, NoRule):
        return None
    return rule if isinstance(rule, Rule) else _rule_of(rule, arch, reason, starts_with_cfa=True)


def _rule_of(expression: Expression, arch: Arch, reason: Reason, *, starts_with_cfa: bool) -> Rule:
    rule = value_of(expression.code, arch.byte_order, starts_with_cfa=starts_with_cfa)
    if not isinstance(rule, Rule) or (rule.deref and expression.deref):
        raise InexpressibleError(reason, expression_text(expression.code, arch.byte_order))
    return rule._replace(deref=rule.deref or expression.deref)


# Rules as SFrame counts: a rule without a register counts from SFrame's CFA


def _cfa_of_sp(rule: RegisterRule, dwarf_cfa: Rule, arch: Arch) -> Rule:
    """Return SFrame's CFA: the caller's SP minus the ABI's constant. Raises `InexpressibleError`."""
    constant = arch.sp_offset_from_cfa
    if rule is NoRule.UNSPECIFIED:
        return dwarf_cfa
    if constant and isinstance(rule, Rule):
        if rule.is_saved_at_cfa:
            # s390x saves SP with the other registers; it is CFA - 160 by the ABI's definition of the CFA.
            return dwarf_cfa
        if rule.is_register and dwarf_cfa.register in (arch.sp_register, arch.fp_register):
            # Likewise in leaf functions. With a CFA from any other register, a function is switching stacks.
            return dwarf_cfa
    why = Why(Reason.SP_RULE, describe_rule(rule, arch))
    if rule is NoRule.UNDEFINED:
        raise InexpressibleError(why.reason, why.detail)
    sp = _simple(rule, arch, Reason.SP_RULE) or Rule(arch.sp_register, 0, deref=False)
    if sp.deref and constant:
        # A load and a sum.
        raise InexpressibleError(why.reason, why.detail)
    return _absolute(sp._replace(offset=sp.offset - constant), dwarf_cfa, why)


def _sum_with_cfa(rule: Rule | None, reason: Reason) -> Why | None:
    """Return why a sum with the CFA cannot be written; None for any other rule.

    Its control word would be the padding word (version 3, "Control Data").
    """
    if rule is None or rule.register is not None or rule.deref:
        return None
    return Why(reason, f"CFA{rule.offset:+d}")


def _rewritten(rule: Rule | None, dwarf_cfa: Rule, cfa: Rule, why: Why | None) -> Rule | None:
    """Return SFrame's rule for the value of DWARF's; where `why` is None, it is the same rule.

    Raises `InexpressibleError` with `why` when SFrame has none.
    """
    if rule is None or why is None or rule.register is not None:
        return rule
    if rule.deref and cfa.register == dwarf_cfa.register and not (cfa.deref or dwarf_cfa.deref):
        # The distance from either CFA is constant. Readers know each frame's CFA, but only the topmost one's registers.
        return rule._replace(offset=rule.offset + dwarf_cfa.offset - cfa.offset)
    return _absolute(rule, dwarf_cfa, why)


def _absolute(rule: Rule, dwarf_cfa: Rule, why: Why) -> Rule:
    """Return a rule of the same value that counts from a register, not from DWARF's CFA.

    Raises `InexpressibleError` with `why` when it is a load and a sum, or two loads.
    """
    if rule.register is not None:
        return rule
    if not dwarf_cfa.deref:
        return rule._replace(register=dwarf_cfa.register, offset=rule.offset + dwarf_cfa.offset)
    if rule.deref or rule.offset:
        raise InexpressibleError(why.reason, why.detail)
    return dwarf_cfa
