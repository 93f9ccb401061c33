# SPDX-License-Identifier: Apache-2.0
"""Derived frames held against the CFI that covers the stubs, at every byte of every block."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from cfi2sframe.dwarf.expression import describe
from cfi2sframe.dwarf.rules import AtCfa, CfaExpression, NoRule, RaSigning, RegisterOffset, RowState
from cfi2sframe.plt.model import Problem
from cfi2sframe.plt.records import StubReason

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.plt.expression import Evaluator
    from cfi2sframe.plt.flow import Frame
    from cfi2sframe.plt.records import CfiAt


def contradiction(
    evaluator: Evaluator, start_vaddr: int, size: int, frame_at: Sequence[Frame], cfi_at: CfiAt
) -> Problem | None:
    """Return where CFI says something else than the derived frames, or None when it nowhere does.

    `frame_at` has the frame at each byte of the block that repeats over the `size` bytes from `start_vaddr` on. Where
    there is no CFI, nothing is contradicted.
    """
    pc = start_vaddr
    end = start_vaddr + size
    while pc < end:
        span = cfi_at(pc)
        stop = min(max(span.end_vaddr, pc + 1), end)
        if span.state is not None:
            problem = _compare_span(evaluator, span.state, (start_vaddr, pc, stop), frame_at)
            if problem is not None:
                return problem
        pc = stop
    return None


def _compare_span(
    evaluator: Evaluator, state: RowState, place: tuple[int, int, int], frame_at: Sequence[Frame]
) -> Problem | None:
    start_vaddr, pc, stop = place
    arch = evaluator.arch
    period = len(frame_at)
    if isinstance(state.cfa, CfaExpression):
        distance = evaluator.evaluate(state.cfa.expression, pc)
        if distance is None:
            text = describe(state.cfa.expression, arch.byte_order)
            return Problem(StubReason.CFI_EXPRESSION, text, pc - start_vaddr)
        # What holds for one period of PC and block holds for all.
        period = lcm(period, distance.pc_modulus) if distance.pc_modulus else stop - pc
    for vaddr in _first(pc, stop, period):
        frame = frame_at[(vaddr - start_vaddr) % len(frame_at)]
        depth = depth_of(evaluator, state, vaddr)
        if depth != frame.depth or not _agrees_on_registers(arch, state, frame):
            said = "CFI has no CFA based on SP" if depth is None else f"CFI has CFA=SP{depth:+d}"
            if depth == frame.depth:
                said = "CFI has another rule for RA or FP"
            return Problem(StubReason.CFI_DIFFERS, f"{said}, the code SP{frame.depth:+d}", vaddr - start_vaddr)
    return None


def _first(pc: int, stop: int, period: int) -> Iterator[int]:
    return iter(range(pc, min(stop, pc + period)))


def depth_of(evaluator: Evaluator, state: RowState, pc_vaddr: int) -> int | None:
    """Return the CFA's distance from SP at a PC, or None when CFI does not base it on SP."""
    match state.cfa:
        case RegisterOffset(register, offset) if register == evaluator.arch.sp_register:
            return offset
        case CfaExpression(expression):
            distance = evaluator.evaluate(expression, pc_vaddr)
            return None if distance is None else distance.depth
    return None


def _agrees_on_registers(arch: Arch, state: RowState, frame: Frame) -> bool:
    # A register that was saved and not changed is in both places: CFI may name either.
    unchanged = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)
    if arch.fixed_ra_offset:
        ra_agrees = state.ra == AtCfa(arch.fixed_ra_offset)
    elif frame.ra_offset is None:
        ra_agrees = state.ra in unchanged
    else:
        ra_agrees = state.ra in unchanged or state.ra == AtCfa(frame.ra_offset)
    return ra_agrees and state.fp in unchanged and state.signing is RaSigning.NONE
