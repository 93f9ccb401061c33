# SPDX-License-Identifier: Apache-2.0
"""Rows of the DWARF row table -> frame rows, or the named reason why not: all of what SFrame can say, by version.

Two steps. `reduce_state` puts a row's rules into SFrame's algebra (`Rule`), whatever the version. `Lowering` then asks
whether a version's default rows can say them, or its flexible rows, or none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.describe import describe_frame_rule, describe_rule
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
from cfi2sframe.errors import RequestError
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import FLEX_REG_SHIFT, SFRAME_VERSION_2, SFRAME_VERSION_3, VERSIONS
from cfi2sframe.sframe.model import OUTERMOST, FrameState, FunctionBody, Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState

#: Makes a record of a tuple without a call in between.
_make: Final = tuple.__new__


class Target(NamedTuple):
    """What is written: the ABI, the SFrame version, and of version 2 which errata (0, 1 or 2) its readers know."""

    arch: Arch
    version: int = SFRAME_VERSION_3
    errata: int = 2

    @property
    def has_flexible_rows(self) -> bool:
        """Whether the version has flexible FDEs."""
        return self.version >= SFRAME_VERSION_3

    @property
    def says_outermost(self) -> bool:
        """Whether a row without data words may say that RA is undefined (version 2 errata 2, version 3)."""
        return self.version >= SFRAME_VERSION_3 or (self.version == SFRAME_VERSION_2 and self.errata >= 2)

    @property
    def start_is_pcrel(self) -> bool:
        """Whether function starts count from their own field (version 2 errata 1, version 3)."""
        return self.version >= SFRAME_VERSION_3 or (self.version == SFRAME_VERSION_2 and self.errata >= 1)


def check_target(target: Target) -> None:
    """Raise `RequestError` when the version does not exist, or does not define the ABI."""
    if target.version not in VERSIONS:
        raise RequestError(f"SFrame version {target.version} is unknown; there are 1, 2 and 3")
    if target.version < target.arch.first_version:
        raise RequestError(
            f"SFrame version {target.version} does not define {target.arch.name}; "
            f"version {target.arch.first_version} does"
        )


class Skip(NamedTuple):
    """Why a function is left out: the reason, the offending rule in readable form, and the row it stands in."""

    reason: SkipReason
    detail: str
    start_delta: int


class _CannotSay(Exception):  # noqa: N818 - control flow inside this module, never an error
    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason, detail)


class _Lowered(NamedTuple):
    """A lowered row state: why it cannot be said at all, or why default rows cannot say it (None: they can)."""

    state: FrameState
    failure: Skip | None
    default_limit: Skip | None


class _KnownRows(NamedTuple):
    """What functions say whose rows differ by their starts alone; the first two are what they are known by."""

    states: tuple[RowState, ...]
    cie: DwarfCie
    behind_starts: tuple[tuple[FrameState, ...], bool, bool, bool, int]


class Lowering:
    """Lowers the functions of one file for one target. Row states recur all over a program: each is lowered once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # By identity, which costs no hashing of nested records; the entries keep what is identified alive.
        self._states: dict[int, tuple[_Lowered, RowState]] = {}
        self._frames: dict[FrameState, FrameState] = {}
        self._known_rows: dict[tuple[int, int], _KnownRows] = {}
        self._shapes = Shapes(target.arch.byte_order)

    def lower(self, starts: tuple[int, ...], states: tuple[RowState, ...], cie: DwarfCie) -> FunctionBody | Skip:
        """Lower a function's rows: `states[N]` holds from `starts[N]` on.

        Equal neighbours merge; the body is flexible only where default rows cannot say it.
        """
        key = (id(states), id(cie))
        known = self._known_rows.get(key)
        if known is not None:
            # Nearly always: programs differ by where their rows start more than by what these say.
            body: FunctionBody = _make(FunctionBody, (starts, *known[2]))
            return body
        if cie.ra_register != self.target.arch.ra_register:
            return Skip(SkipReason.NON_DEFAULT_RA_COLUMN, f"column {cie.ra_register}", 0)
        kept_starts: list[int] = []
        kept_frames: list[FrameState] = []
        limit: Skip | None = None
        for start_delta, row_state in zip(starts, states, strict=True):
            state, failure, default_limit = self._lower_state(row_state)
            if failure is not None:
                return failure._replace(start_delta=start_delta)
            if kept_frames and state is kept_frames[-1]:
                continue
            if default_limit is not None and limit is None:
                limit = default_limit._replace(start_delta=start_delta)
            kept_starts.append(start_delta)
            kept_frames.append(state)
        result = self._body(tuple(kept_starts), tuple(kept_frames), cie, limit)
        if len(kept_starts) == len(starts) and isinstance(result, FunctionBody):
            self._known_rows[key] = _KnownRows(states, cie, result[1:])
        return result

    def _lower_state(self, row_state: RowState) -> _Lowered:
        known = self._states.get(id(row_state))
        if known is not None:
            return known[0]
        target = self.target
        try:
            state = reduce_state(row_state, target.arch, self._shapes)
        except _CannotSay as why:
            lowered = _Lowered(OUTERMOST, Skip(why.reason, why.detail, 0), None)
        else:
            # Equal states are one object: neighbours are compared by identity.
            state = self._frames.setdefault(state, state)
            if state.cfa is None and not target.says_outermost:
                lowered = _Lowered(state, Skip(SkipReason.RA_UNDEFINED, "", 0), None)
            else:
                lowered = _Lowered(state, None, _default_limit(state, target))
        self._states[id(row_state)] = (lowered, row_state)
        return lowered

    def _body(
        self, starts: tuple[int, ...], states: tuple[FrameState, ...], cie: DwarfCie, limit: Skip | None
    ) -> FunctionBody | Skip:
        target = self.target
        if limit is not None:
            if not target.has_flexible_rows:
                return limit
            for start_delta, state in zip(starts, states, strict=True):
                detail = _range_limit(state, target.arch)
                if detail is not None:
                    return Skip(SkipReason.OFFSET_RANGE, detail, start_delta)
        is_signal_frame = cie.is_signal_frame and target.version >= SFRAME_VERSION_3
        # The key matters where an RA is signed; elsewhere it would only keep equal functions apart.
        uses_b_key = cie.uses_b_key and any(state.mangled_ra for state in states)
        return FunctionBody(starts, states, limit is not None, is_signal_frame, uses_b_key)


# Step 1: into the algebra


def reduce_state(state: RowState, arch: Arch, shapes: Shapes) -> FrameState:
    """Put a row into SFrame's algebra; raises `_CannotSay` with the reason when no rule there says the same."""
    if state.ra is NoRule.UNDEFINED:
        return OUTERMOST
    if state.signing is RaSigning.SIGNED_WITH_PC:
        raise _CannotSay(SkipReason.PAUTH_WITH_PC)
    cfa = _reduce_cfa(state.cfa, shapes)
    ra = _reduce_ra(state.ra, arch, shapes)
    fp = _reduce_fp(state.fp, arch, shapes)
    _check_sp(state.sp, cfa, arch, shapes)
    return FrameState(cfa, ra, fp, mangled_ra=state.signing is RaSigning.SIGNED)


def _reduce_cfa(rule: CfaRule | None, shapes: Shapes) -> Rule:
    match rule:
        case RegisterOffset(register, offset):
            return Rule(register, offset, deref=False)
        case CfaExpression(expression):
            return _by_shape(expression, shapes, SkipReason.CFA_EXPRESSION, starts_with_cfa=False)
        case None:
            raise _CannotSay(SkipReason.CFA_UNDEFINED)


def _by_shape(expression: bytes, shapes: Shapes, reason: SkipReason, *, starts_with_cfa: bool) -> Rule:
    """Return the rule of an expression that computes a value."""
    match shapes[expression, starts_with_cfa]:
        case Sum(register, offset):
            return Rule(register, offset, deref=False)
        case Load(Sum(register, offset)):
            return Rule(register, offset, deref=True)
        case None:
            raise _CannotSay(reason, describe(expression, shapes.byte_order))


def _at_shape(expression: bytes, shapes: Shapes, reason: SkipReason) -> Rule:
    """Return the rule of an expression that computes the address where the value is saved."""
    address = _by_shape(expression, shapes, reason, starts_with_cfa=True)
    if address.deref:
        raise _CannotSay(reason, describe(expression, shapes.byte_order))
    return address._replace(deref=True)


def _reduce_register(
    rule: RegisterRule, shapes: Shapes, expression_reason: SkipReason, value_reason: SkipReason
) -> Rule | None:
    reduced: Rule | None
    match rule:
        case NoRule():
            return None
        case AtCfa(offset):
            return Rule(None, offset, deref=True)
        case InRegister(register):
            return Rule(register, 0, deref=False)
        case AtExpression(expression):
            return _at_shape(expression, shapes, expression_reason)
        case ValueAtCfa(offset):
            reduced = Rule(None, offset, deref=False)
        case IsExpression(expression):
            reduced = _by_shape(expression, shapes, expression_reason, starts_with_cfa=True)
    if reduced.register is None and not reduced.deref:
        # Its control word would be 0, and that is the padding word (version 3, "Control Data").
        raise _CannotSay(value_reason, f"CFA{reduced.offset:+d}")
    return reduced


def _reduce_ra(rule: RegisterRule, arch: Arch, shapes: Shapes) -> Rule | None:
    ra = _reduce_register(rule, shapes, SkipReason.RA_EXPRESSION, SkipReason.RA_IS_CFA_VALUE)
    if ra == Rule(arch.ra_register, 0, deref=False):
        ra = None
    if ra is None and arch.fixed_ra_offset:
        # The call put RA on the stack; CFI that does not say where leaves it unknown.
        raise _CannotSay(SkipReason.RA_UNSPECIFIED)
    return ra


def _reduce_fp(rule: RegisterRule, arch: Arch, shapes: Shapes) -> Rule | None:
    if rule is NoRule.UNDEFINED:
        raise _CannotSay(SkipReason.FP_UNDEFINED)
    fp = _reduce_register(rule, shapes, SkipReason.FP_EXPRESSION, SkipReason.FP_IS_CFA_VALUE)
    return None if fp == Rule(arch.fp_register, 0, deref=False) else fp


def _check_sp(rule: RegisterRule, cfa: Rule, arch: Arch, shapes: Shapes) -> None:
    """Accept only an SP that is the CFA (plus the ABI's constant): SFrame has no other."""
    match rule:
        case NoRule.UNSPECIFIED:
            return
        case ValueAtCfa(offset) if offset == arch.sp_offset_from_cfa:
            return
        case AtCfa() if arch.sp_offset_from_cfa:
            # s390x saves SP with the other registers; it is CFA - 160 by the ABI's definition of the CFA.
            return
        case InRegister() if arch.sp_offset_from_cfa and cfa.register in (arch.sp_register, arch.fp_register):
            # The same, in leaf functions. Where the CFA comes from elsewhere, stacks are being switched.
            return
        case AtExpression(expression):
            # A signal frame: CFA and SP are loaded from the same word.
            if not arch.sp_offset_from_cfa and _at_shape(expression, shapes, SkipReason.SP_RULE) == cfa:
                return
        case _:
            pass
    raise _CannotSay(SkipReason.SP_RULE, describe_rule(rule, arch))


# Step 2: into a version's rows


def _default_limit(state: FrameState, target: Target) -> Skip | None:
    """Return why default rows cannot say a state, or None when they can."""
    arch = target.arch
    cfa, ra, fp, _ = state
    reason: SkipReason | None
    if cfa is None:
        return None
    if cfa.deref:
        reason, detail = SkipReason.CFA_EXPRESSION, describe_frame_rule(cfa, arch)
    elif cfa.register not in (arch.sp_register, arch.fp_register):
        reason, detail = SkipReason.CFA_BASE_REGISTER, describe_frame_rule(cfa, arch)
    elif (cfa.offset - arch.cfa_offset_bias) % arch.cfa_offset_scale:
        reason, detail = SkipReason.OFFSET_RANGE, f"CFA={describe_frame_rule(cfa, arch)}"
    else:
        reason, detail = _default_ra_limit(ra, fp, target)
        if reason is None:
            reason, detail = _default_fp_limit(fp, target)
        if reason is None:
            too_wide = _range_limit(state, arch)
            if too_wide is not None:
                reason, detail = SkipReason.OFFSET_RANGE, too_wide
    return None if reason is None else Skip(reason, detail, 0)


def _default_ra_limit(ra: Rule | None, fp: Rule | None, target: Target) -> tuple[SkipReason | None, str]:
    arch = target.arch
    if arch.fixed_ra_offset:
        if ra == Rule(None, arch.fixed_ra_offset, deref=True):
            return None, ""
        if ra is not None and ra.register is None:
            return SkipReason.RA_NOT_AT_FIXED_OFFSET, describe_frame_rule(ra, arch)
    elif ra is None:
        # s390x has a padding word for this; AArch64 has not.
        if fp is None or arch.pads_ra:
            return None, ""
        return SkipReason.FP_WITHOUT_RA, ""
    if ra is None:
        return SkipReason.RA_UNSPECIFIED, ""
    return _default_saved_limit(ra, target, SkipReason.RA_EXPRESSION, SkipReason.RA_IN_REGISTER)


def _default_fp_limit(fp: Rule | None, target: Target) -> tuple[SkipReason | None, str]:
    if fp is None:
        return None, ""
    return _default_saved_limit(fp, target, SkipReason.FP_EXPRESSION, SkipReason.FP_IN_REGISTER)


def _default_saved_limit(
    rule: Rule, target: Target, expression_reason: SkipReason, register_reason: SkipReason
) -> tuple[SkipReason | None, str]:
    """Return why a default row's RA or FP word cannot say a rule."""
    arch = target.arch
    if rule.register is None:
        # An offset of 0 is what readers take for "none"; nothing is saved at the CFA itself in real code.
        if rule.offset == 0 or (arch.pads_ra and rule.offset & 1):
            return SkipReason.OFFSET_RANGE, describe_frame_rule(rule, arch)
        return None, ""
    if rule.deref or rule.offset:
        return expression_reason, describe_frame_rule(rule, arch)
    if target.version == SFRAME_VERSION_2 and arch.pads_ra:
        return None, ""
    return register_reason, describe_frame_rule(rule, arch)


def _range_limit(state: FrameState, arch: Arch) -> str | None:
    """Return the rule whose numbers no data word can hold, or None."""
    for rule in state[:3]:
        if rule is None:
            continue
        offset = rule.offset
        if rule is state.cfa:
            if (offset - arch.cfa_offset_bias) % arch.cfa_offset_scale:
                return describe_frame_rule(rule, arch)
            offset = (offset - arch.cfa_offset_bias) // arch.cfa_offset_scale
        register = rule.register or 0
        if not -(1 << 31) <= offset < 1 << 31 or register >= 1 << (32 - FLEX_REG_SHIFT):
            return describe_frame_rule(rule, arch)
    return None
