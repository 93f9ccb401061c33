# SPDX-License-Identifier: Apache-2.0
"""Rows of the DWARF row table to frame rows, or to the named reason why not: all that SFrame can express, by version.

There are two steps. `reduce_state` translates a row's rules to SFrame's (`Rule`), whatever the version. `Lowering` then
decides whether the version's default rows can express them, or its flexible rows, or neither.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

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
from cfi2sframe.intern import IdentityMap, TupleInterner
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import FLEX_REG_SHIFT, SFRAME_VERSION_2, SFRAME_VERSION_3, VERSIONS
from cfi2sframe.sframe.model import OUTERMOST, FrameState, FunctionBody, Rule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.programs import Program
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState, UnwindTable


class Target(NamedTuple):
    """What a section is made for: the ABI, the SFrame version, and the newest errata of version 2 that readers know."""

    arch: Arch
    version: int = SFRAME_VERSION_3
    errata: int = 1

    @property
    def has_flexible_rows(self) -> bool:
        """Whether the version has flexible FDEs (version 3)."""
        return self.version >= SFRAME_VERSION_3

    @property
    def has_outermost_rows(self) -> bool:
        """Whether a row without data words means that RA is undefined (version 2 errata 2, version 3)."""
        return self.version >= SFRAME_VERSION_3 or (self.version == SFRAME_VERSION_2 and self.errata >= 2)

    @property
    def start_is_pcrel(self) -> bool:
        """Whether a start field counts from itself, not from the section (version 2 errata 1, version 3)."""
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
    """Why a function is left out: the reason, the offending rule in readable form, and the start of its row.

    `start_delta` counts bytes from the function's start.
    """

    reason: SkipReason
    detail: str
    start_delta: int


class _InexpressibleError(Exception):
    """SFrame has no rule like this one. Raised and caught in this module only."""

    def __init__(self, reason: SkipReason, detail: str = "") -> None:
        self.reason = reason
        self.detail = detail
        super().__init__(reason, detail)


class _Limit(NamedTuple):
    """Why some kind of row cannot express a state: the reason, and the offending rule in readable form."""

    reason: SkipReason
    detail: str


class _LoweredState(NamedTuple):
    """A lowered row state; why the target cannot express it, and why its default rows cannot (None: they can)."""

    state: FrameState
    failure: _Limit | None
    default_limit: _Limit | None


class _LoweredStates(NamedTuple):
    """A lowered list of row states: all of a body that depends on neither its starts nor its CIE.

    `kept` are the numbers of the rows whose lowered state differs from the one before; None: all rows.
    """

    states: tuple[FrameState, ...]
    kept: tuple[int, ...] | None
    is_flexible: bool
    signs_ra: bool


class _SkippedStates(NamedTuple):
    """Why the target cannot express a list of row states, and the number of the first offending row."""

    limit: _Limit
    row: int


def lower_programs(programs: Iterable[Program], target: Target) -> tuple[FunctionBody | Skip, ...]:
    """Lower the programs of a file; return the result of each, in their order."""
    lowering = Lowering(target)
    return tuple([lowering.lower(program.table, program.cie) for program in programs])


class Lowering:
    """Lowers the programs of one file for one target. States, and lists of them, recur: each is lowered once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._frames: dict[FrameState, FrameState] = {}
        self._tuples: TupleInterner[FrameState] = TupleInterner()
        self._shapes = Shapes(target.arch.byte_order)
        self._lowered_state = IdentityMap(self._lower_state)
        self._lowered_states = IdentityMap(self._lower_states)

    def lower(self, table: UnwindTable, cie: DwarfCie) -> FunctionBody | Skip:
        """Lower a program's rows: equal neighbours merge, and a body is flexible only where default rows do not do."""
        target = self.target
        if cie.ra_register != target.arch.ra_register:
            return Skip(SkipReason.NON_DEFAULT_RA_COLUMN, f"column {cie.ra_register}", 0)
        starts = table.starts
        lowered = self._lowered_states[table.states]
        if isinstance(lowered, _SkippedStates):
            return Skip(lowered.limit.reason, lowered.limit.detail, starts[lowered.row])
        if lowered.kept is not None:
            starts = tuple([starts[number] for number in lowered.kept])
        is_signal_frame = cie.is_signal_frame and target.version >= SFRAME_VERSION_3
        # The key matters only where an RA is signed; elsewhere it would make functions of equal rows differ.
        uses_b_key = cie.uses_b_key and lowered.signs_ra
        return FunctionBody(starts, lowered.states, lowered.is_flexible, is_signal_frame, uses_b_key)

    def _lower_states(self, row_states: tuple[RowState, ...]) -> _LoweredStates | _SkippedStates:
        kept: list[int] = []
        states: list[FrameState] = []
        # The first state that default rows cannot express.
        not_default: _SkippedStates | None = None
        for number, row_state in enumerate(row_states):
            state, failure, default_limit = self._lowered_state[row_state]
            if failure is not None:
                return _SkippedStates(failure, number)
            if states and state is states[-1]:
                continue
            if default_limit is not None and not_default is None:
                not_default = _SkippedStates(default_limit, number)
            kept.append(number)
            states.append(state)
        if not_default is not None:
            skipped = self._flexible_limit(kept, states) if self.target.has_flexible_rows else not_default
            if skipped is not None:
                return skipped
        return _LoweredStates(
            self._tuples.intern(tuple(states)),
            None if len(kept) == len(row_states) else tuple(kept),
            is_flexible=not_default is not None,
            signs_ra=any(state.mangled_ra for state in states),
        )

    def _lower_state(self, row_state: RowState) -> _LoweredState:
        target = self.target
        try:
            state = reduce_state(row_state, target.arch, self._shapes)
        except _InexpressibleError as why:
            return _LoweredState(OUTERMOST, _Limit(why.reason, why.detail), None)
        state = self._frames.setdefault(state, state)
        if state.cfa is None and not target.has_outermost_rows:
            return _LoweredState(state, _Limit(SkipReason.RA_UNDEFINED, ""), None)
        return _LoweredState(state, None, _default_limit(state, target))

    def _flexible_limit(self, numbers: Sequence[int], states: Sequence[FrameState]) -> _SkippedStates | None:
        """Return why flexible rows cannot express these states of the rows with these numbers; None: they can."""
        for number, state in zip(numbers, states, strict=True):
            limit = _range_limit(state, self.target.arch)
            if limit is not None:
                return _SkippedStates(limit, number)
        return None


# Step 1: DWARF's rules to SFrame's


def reduce_state(state: RowState, arch: Arch, shapes: Shapes) -> FrameState:
    """Translate a row's rules to SFrame's. Raises `_InexpressibleError` when SFrame has no rule like one of them."""
    if state.ra is NoRule.UNDEFINED:
        return OUTERMOST
    if state.signing is RaSigning.SIGNED_WITH_PC:
        raise _InexpressibleError(SkipReason.PAUTH_WITH_PC)
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
            raise _InexpressibleError(SkipReason.CFA_UNDEFINED)


def _by_shape(expression: bytes, shapes: Shapes, reason: SkipReason, *, starts_with_cfa: bool) -> Rule:
    """Return the rule of an expression that computes a value."""
    match shapes[expression, starts_with_cfa]:
        case Sum(register, offset):
            return Rule(register, offset, deref=False)
        case Load(Sum(register, offset)):
            return Rule(register, offset, deref=True)
        case None:
            raise _InexpressibleError(reason, describe(expression, shapes.byte_order))


def _at_shape(expression: bytes, shapes: Shapes, reason: SkipReason) -> Rule:
    """Return the rule of an expression that computes the address where the value is saved."""
    address = _by_shape(expression, shapes, reason, starts_with_cfa=True)
    if address.deref:
        raise _InexpressibleError(reason, describe(expression, shapes.byte_order))
    return address._replace(deref=True)


def _reduce_register(
    rule: RegisterRule, shapes: Shapes, expression_reason: SkipReason, value_reason: SkipReason
) -> Rule | None:
    """Return the rule of RA or FP; None where the CFI gives none or the register keeps its value."""
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
        # Its control word would be 0, which is the padding word (version 3, "Control Data").
        raise _InexpressibleError(value_reason, f"CFA{reduced.offset:+d}")
    return reduced


def _reduce_ra(rule: RegisterRule, arch: Arch, shapes: Shapes) -> Rule | None:
    ra = _reduce_register(rule, shapes, SkipReason.RA_EXPRESSION, SkipReason.RA_IS_CFA_VALUE)
    if ra == Rule(arch.ra_register, 0, deref=False):
        ra = None
    if ra is None and arch.fixed_ra_offset:
        # The call instruction pushed RA, and the CFI does not describe where.
        raise _InexpressibleError(SkipReason.RA_UNSPECIFIED)
    return ra


def _reduce_fp(rule: RegisterRule, arch: Arch, shapes: Shapes) -> Rule | None:
    if rule is NoRule.UNDEFINED:
        raise _InexpressibleError(SkipReason.FP_UNDEFINED)
    fp = _reduce_register(rule, shapes, SkipReason.FP_EXPRESSION, SkipReason.FP_IS_CFA_VALUE)
    return None if fp == Rule(arch.fp_register, 0, deref=False) else fp


def _check_sp(rule: RegisterRule, cfa: Rule, arch: Arch, shapes: Shapes) -> None:
    """Check that SP is the CFA plus the ABI's constant, since SFrame has no rule of SP.

    Raises `_InexpressibleError` otherwise.
    """
    match rule:
        case NoRule.UNSPECIFIED:
            return
        case ValueAtCfa(offset) if offset == arch.sp_offset_from_cfa:
            return
        case AtCfa() if arch.sp_offset_from_cfa:
            # s390x saves SP with the other registers; it is CFA - 160 by the ABI's definition of the CFA.
            return
        case InRegister() if arch.sp_offset_from_cfa and cfa.register in (arch.sp_register, arch.fp_register):
            # The same, in leaf functions. A CFA from any other register means that stacks are being switched.
            return
        case AtExpression(expression):
            # A signal frame: CFA and SP are loaded from the same word.
            if not arch.sp_offset_from_cfa and _at_shape(expression, shapes, SkipReason.SP_RULE) == cfa:
                return
        case _:
            pass
    raise _InexpressibleError(SkipReason.SP_RULE, describe_rule(rule, arch))


# Step 2: rows of a version


def _default_limit(state: FrameState, target: Target) -> _Limit | None:
    """Return why default rows cannot express a state; None when they can."""
    if state.cfa is None:
        return None
    return (
        _default_cfa_limit(state.cfa, target.arch)
        or _default_ra_limit(state.ra, state.fp, target)
        or _default_fp_limit(state.fp, target)
        or _range_limit(state, target.arch)
    )


def _default_cfa_limit(cfa: Rule, arch: Arch) -> _Limit | None:
    if cfa.deref:
        return _Limit(SkipReason.CFA_EXPRESSION, describe_frame_rule(cfa, arch))
    if cfa.register not in (arch.sp_register, arch.fp_register):
        return _Limit(SkipReason.CFA_BASE_REGISTER, describe_frame_rule(cfa, arch))
    if (cfa.offset - arch.cfa_offset_bias) % arch.cfa_offset_scale:
        return _Limit(SkipReason.OFFSET_RANGE, f"CFA={describe_frame_rule(cfa, arch)}")
    return None


def _default_ra_limit(ra: Rule | None, fp: Rule | None, target: Target) -> _Limit | None:
    arch = target.arch
    if arch.fixed_ra_offset:
        if ra == Rule(None, arch.fixed_ra_offset, deref=True):
            return None
        if ra is not None and ra.register is None:
            return _Limit(SkipReason.RA_NOT_AT_FIXED_OFFSET, describe_frame_rule(ra, arch))
    elif ra is None:
        # FP without RA needs a padding word for RA, which s390x has and AArch64 has not.
        return None if fp is None or arch.pads_ra else _Limit(SkipReason.FP_WITHOUT_RA, "")
    if ra is None:
        return _Limit(SkipReason.RA_UNSPECIFIED, "")
    return _default_saved_limit(ra, target, SkipReason.RA_EXPRESSION, SkipReason.RA_IN_REGISTER)


def _default_fp_limit(fp: Rule | None, target: Target) -> _Limit | None:
    if fp is None:
        return None
    return _default_saved_limit(fp, target, SkipReason.FP_EXPRESSION, SkipReason.FP_IN_REGISTER)


def _default_saved_limit(
    rule: Rule, target: Target, expression_reason: SkipReason, register_reason: SkipReason
) -> _Limit | None:
    """Return why a default row's RA or FP word cannot express a rule."""
    arch = target.arch
    if rule.register is None:
        # To readers an offset of 0 means "not saved"; no compiler saves a register at the CFA itself.
        if rule.offset == 0 or (arch.pads_ra and rule.offset & 1):
            return _Limit(SkipReason.OFFSET_RANGE, describe_frame_rule(rule, arch))
        return None
    if rule.deref or rule.offset:
        return _Limit(expression_reason, describe_frame_rule(rule, arch))
    if target.version == SFRAME_VERSION_2 and arch.pads_ra:
        return None
    return _Limit(register_reason, describe_frame_rule(rule, arch))


def _range_limit(state: FrameState, arch: Arch) -> _Limit | None:
    """Return the first rule with an offset or a register that no data word can hold; None when there is none."""
    for rule in (state.cfa, state.ra, state.fp):
        if rule is None:
            continue
        offset = rule.offset
        if rule is state.cfa:
            if (offset - arch.cfa_offset_bias) % arch.cfa_offset_scale:
                return _Limit(SkipReason.OFFSET_RANGE, describe_frame_rule(rule, arch))
            offset = (offset - arch.cfa_offset_bias) // arch.cfa_offset_scale
        register = rule.register or 0
        if not -(1 << 31) <= offset < 1 << 31 or register >= 1 << (32 - FLEX_REG_SHIFT):
            return _Limit(SkipReason.OFFSET_RANGE, describe_frame_rule(rule, arch))
    return None
