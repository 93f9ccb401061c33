# SPDX-License-Identifier: Apache-2.0
"""Lower rows of the DWARF table to the frame rows of a version, or to a named reason why it cannot express them.

`reduce` translates rules for any version; `Lowering` decides whether the default rows of a version can express the
result, or its flexible rows, or neither.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import groupby
from typing import NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants.sframe import (
    DEFAULT_ERRATA,
    ERRATA_OF_OUTERMOST_ROWS,
    ERRATA_OF_PCREL_STARTS,
    FLEX_REG_SHIFT,
    SFRAME_VERSION_2,
    SFRAME_VERSION_3,
    VERSIONS,
)
from cfi2sframe.conversion.reduce import InexpressibleError, reduce_state
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.fdes import Program
from cfi2sframe.dwarf.rules import RowState, UnwindTable
from cfi2sframe.errors import RequestError
from cfi2sframe.sframe.model import OUTERMOST, FrameState, FunctionBody, States
from cfi2sframe.why import Reason, Why


class Target(NamedTuple):
    """The target of a conversion: the ABI, the SFrame version, and the newest errata of version 2 that readers know."""

    arch: Arch
    version: int = SFRAME_VERSION_3
    errata: int = DEFAULT_ERRATA

    @property
    def has_flexible_rows(self) -> bool:
        """True if the version has flexible FDEs (version 3)."""
        return self.version >= SFRAME_VERSION_3

    @property
    def has_outermost_rows(self) -> bool:
        """True if a row without data words means that RA is undefined (version 2 errata 2, version 3)."""
        return self._has(ERRATA_OF_OUTERMOST_ROWS)

    @property
    def start_is_pcrel(self) -> bool:
        """True if a start field counts from itself, not from the section (version 2 errata 1, version 3)."""
        return self._has(ERRATA_OF_PCREL_STARTS)

    def _has(self, errata: int) -> bool:
        return self.version >= SFRAME_VERSION_3 or (self.version == SFRAME_VERSION_2 and self.errata >= errata)


def check_target(target: Target) -> None:
    """Raise `RequestError` when the version does not exist, or does not define the ABI."""
    if target.version not in VERSIONS:
        raise RequestError(f"SFrame version {target.version} is unknown; there are 1, 2 and 3")
    if target.version < target.arch.first_version:
        raise RequestError(
            f"SFrame version {target.version} does not define {target.arch.name}; "
            f"version {target.arch.first_version} does"
        )


class InParts(NamedTuple):
    """A function that the target can express in part: bodies, and the holes between them with the reason of each.

    Piece N reaches from `starts[N]` (bytes from the function's start) to the next start or the function's end. The
    starts of a body's rows count from its own.
    """

    starts: tuple[int, ...]
    pieces: tuple[FunctionBody | Why, ...]


#: A program or an FDE as the target can express it: whole, in parts, or not, with the reason.
Lowered = FunctionBody | InParts | Why


def pieces_within(result: Lowered, first: int, last: int) -> list[tuple[int, int, FunctionBody | Why]]:
    """Return the pieces of a function in `[first, last)`: start, end, and the rows or the reason why not.

    All offsets count bytes from the function's start. The function ends at `last` or after it.
    """
    if isinstance(result, FunctionBody) and first < last:
        return [(first, last, result.cut(first, last))]
    starts, pieces = result if isinstance(result, InParts) else ((0,), (result,))
    within: list[tuple[int, int, FunctionBody | Why]] = []
    # Other FDEs may cut a function a thousand times.
    touched = slice(bisect_right(starts, first) - 1, bisect_left(starts, last))
    for begin, following, piece in zip(starts[touched], (*starts[1:], last)[touched], pieces[touched], strict=True):
        start, end = max(begin, first), min(following, last)
        if start < end:
            within.append((start, end, piece if isinstance(piece, Why) else piece.cut(start - begin, end - begin)))
    return within


class _LoweredRow(NamedTuple):
    """A lowered row, why the target cannot express it (None: it can), and whether only a flexible row can."""

    state: FrameState
    limit: Why | None
    needs_flexible: bool


class _RowRun(NamedTuple):
    """Consecutive rows of a list that the target can express, or cannot for the reason `limit`.

    `kept` are the indices of rows whose lowered state differs from the one before, and `states` these states. Only the
    rows' starts and the CIE are missing for a body.
    """

    limit: Why | None
    kept: list[int]
    states: tuple[FrameState, ...]
    is_flexible: bool
    signs_ra: bool


def lower_programs(programs: Iterable[Program], target: Target) -> tuple[Lowered, ...]:
    """Lower the programs of a file; return the result of each, in their order."""
    lowering = Lowering(target)
    return tuple([lowering.lower(program.table, program.cie) for program in programs])


class Lowering:
    """Lowers the programs of a file for a target. Rows, and lists of rows, recur: each is lowered once."""

    def __init__(self, target: Target) -> None:
        self.target = target
        # Not of bound methods: no object refers to itself, so reference counts free all memory of a file.
        self._runs = cache(partial(_runs_of, lowered_of=cache(partial(_lower_row, target=target))))

    def lower(self, table: UnwindTable, cie: DwarfCie) -> Lowered:
        """Lower a program's rows: equal neighbours merge, and a body is flexible only if default rows do not suffice.

        If the target cannot express some of the rows, those between them become bodies of their own.
        """
        runs = self._runs(table.states)
        if len(runs) == 1 or not any(run.limit is None for run in runs):
            return self._piece(runs[0], table.starts, cie)
        starts = tuple([table.starts[run.kept[0]] for run in runs])
        return InParts(starts, tuple([self._piece(run, table.starts, cie) for run in runs]))

    def _piece(self, run: _RowRun, row_starts: tuple[int, ...], cie: DwarfCie) -> FunctionBody | Why:
        first = row_starts[run.kept[0]]
        if run.limit is not None:
            return run.limit._replace(start_delta=first)
        # Usually all rows are kept: then body and table share their starts.
        is_all = first == 0 and len(run.kept) == len(row_starts)
        starts = row_starts if is_all else tuple([row_starts[row] - first for row in run.kept])
        is_signal_frame = cie.is_signal_frame and self.target.version >= SFRAME_VERSION_3
        # The key matters only where an RA is signed; elsewhere it would make functions of equal rows differ.
        return FunctionBody(starts, run.states, run.is_flexible, is_signal_frame, cie.uses_b_key and run.signs_ra)


def _runs_of(rows: tuple[RowState, ...], lowered_of: Callable[[RowState], _LoweredRow]) -> list[_RowRun]:
    """Cut a list of rows where the target begins or ceases to express them, or the reason changes."""
    lowered = list(map(lowered_of, rows))
    runs: list[_RowRun] = []
    for limit, group in groupby(range(len(rows)), key=lambda row: lowered[row].limit):
        first, *others = group
        kept = [first, *[row for row in others if lowered[row].state != lowered[row - 1].state]]
        states = States([lowered[row].state for row in kept])
        is_flexible = any(lowered[row].needs_flexible for row in kept)
        runs.append(_RowRun(limit, kept, states, is_flexible, any(state.mangled_ra for state in states)))
    return runs


def _lower_row(row: RowState, target: Target) -> _LoweredRow:
    try:
        state, rewritten = reduce_state(row, target.arch)
    except InexpressibleError as error:
        return _LoweredRow(OUTERMOST, error.why, needs_flexible=False)
    if state.cfa is None:
        limit = None if target.has_outermost_rows else Why(Reason.RA_UNDEFINED, "")
        return _LoweredRow(state, limit, needs_flexible=False)
    limit = _default_limit(state, state.cfa, target)
    if limit is not None and target.has_flexible_rows:
        return _LoweredRow(state, _range_limit(state, target.arch), needs_flexible=True)
    # Name the rule that the CFI has, not the one that would replace it.
    return _LoweredRow(state, limit and (rewritten or limit), needs_flexible=False)


# Rows of a version


def _default_limit(state: FrameState, cfa: Rule, target: Target) -> Why | None:
    """Return why default rows cannot express a state that has this CFA; None when they can."""
    return (
        _default_cfa_limit(cfa, target.arch)
        or _default_ra_limit(state.ra, state.fp, target)
        or (state.fp and _default_saved_limit(state.fp, target, Reason.FP_EXPRESSION, Reason.FP_IN_REGISTER))
        or _range_limit(state, target.arch)
    )


def _default_cfa_limit(cfa: Rule, arch: Arch) -> Why | None:
    if cfa.deref:
        return Why(Reason.CFA_EXPRESSION, cfa.text(arch))
    if cfa.register not in (arch.sp_register, arch.fp_register):
        return Why(Reason.CFA_BASE_REGISTER, cfa.text(arch))
    if (cfa.offset - arch.cfa_offset_bias) % arch.cfa_offset_scale:
        return Why(Reason.OFFSET_RANGE, f"CFA={cfa.text(arch)}")
    return None


def _default_ra_limit(ra: Rule | None, fp: Rule | None, target: Target) -> Why | None:
    arch = target.arch
    if arch.fixed_ra_offset:
        if ra == Rule(None, arch.fixed_ra_offset, deref=True):
            return None
        if ra is not None and ra.register is None:
            return Why(Reason.RA_NOT_AT_FIXED_OFFSET, ra.text(arch))
    elif ra is None:
        # FP without RA needs a padding word for RA, which s390x has and AArch64 has not.
        return None if fp is None or arch.pads_ra else Why(Reason.FP_WITHOUT_RA, "")
    if ra is None:
        return Why(Reason.RA_UNSPECIFIED, "")
    return _default_saved_limit(ra, target, Reason.RA_EXPRESSION, Reason.RA_IN_REGISTER)


def _default_saved_limit(rule: Rule, target: Target, of_expression: Reason, of_register: Reason) -> Why | None:
    """Return why a default row's RA or FP word cannot express a rule."""
    arch = target.arch
    if rule.register is None:
        # To readers an offset of 0 means "not saved"; libffi's assembly for AArch64 saves FP at the CFA itself.
        if rule.offset == 0 or (arch.pads_ra and rule.offset & 1):
            return Why(Reason.OFFSET_RANGE, rule.text(arch))
        return None
    if rule.deref or rule.offset:
        return Why(of_expression, rule.text(arch))
    if target.version == SFRAME_VERSION_2 and arch.pads_ra and rule.register < len(arch.registers):
        return None
    return Why(of_register, rule.text(arch))


def _range_limit(state: FrameState, arch: Arch) -> Why | None:
    """Return the first rule with an offset or a register that no data word can hold; None when there is none."""
    for rule in (state.cfa, state.ra, state.fp):
        if rule is None:
            continue
        offset, rest = rule.offset, 0
        if rule is state.cfa:
            offset, rest = divmod(offset - arch.cfa_offset_bias, arch.cfa_offset_scale)
        if rest or not -(1 << 31) <= offset < 1 << 31 or (rule.register or 0) >= 1 << (32 - FLEX_REG_SHIFT):
            return Why(Reason.OFFSET_RANGE, rule.text(arch))
    return None
