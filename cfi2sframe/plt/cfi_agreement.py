# SPDX-License-Identifier: Apache-2.0
"""Compare the CFI of stubs with the frames derived from their instructions, at every byte."""

from __future__ import annotations

from math import lcm
from typing import TYPE_CHECKING

from cfi2sframe.dwarf.expression import Expression, describe
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState
from cfi2sframe.plt.stub_model import Problem
from cfi2sframe.plt.stub_reasons import StubReason
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.plt.flow import StubFrame
    from cfi2sframe.plt.scan_records import CfiAt
    from cfi2sframe.plt.sp_distance import SpDistances


def contradiction(
    evaluator: SpDistances, start_vaddr: int, size: int, frame_at: Sequence[StubFrame], cfi_at: CfiAt
) -> Problem | None:
    """Return the first place where CFI contradicts the derived frames, or None.

    `frame_at` has the frame at each byte of the block that repeats over the `size` bytes from `start_vaddr` on.
    Addresses without CFI agree.
    """
    pc = start_vaddr
    end = start_vaddr + size
    while pc < end:
        span = cfi_at(pc)
        stop = min(max(span.end_vaddr, pc + 1), end)
        if span.state is not None:
            problem = _compare_span(evaluator, span.state, start_vaddr, range(pc, stop), frame_at)
            if problem is not None:
                return problem
        pc = stop
    return None


def _compare_span(
    evaluator: SpDistances, state: RowState, start_vaddr: int, span: range, frame_at: Sequence[StubFrame]
) -> Problem | None:
    """Compare a DWARF row that is in force in `span` with the frames of blocks from `start_vaddr` on."""
    pc, arch = span.start, evaluator.arch
    period = len(frame_at)
    if isinstance(state.cfa, Expression):
        distance = evaluator.evaluate(state.cfa.code, pc)
        if distance is None:
            text = describe(state.cfa.code, arch.byte_order)
            return Problem(StubReason.CFI_EXPRESSION, text, pc - start_vaddr)
        # One period of both PC and block is enough.
        period = lcm(period, distance.pc_modulus) if distance.pc_modulus else len(span)
    for vaddr in span[:period]:
        frame = frame_at[(vaddr - start_vaddr) % len(frame_at)]
        depth = depth_of(evaluator, state, vaddr)
        if depth != frame.depth or not _agrees_on_registers(arch, state, frame):
            if depth is None:
                cfi_rule = "CFI has no CFA based on SP"
            elif depth == frame.depth:
                cfi_rule = "CFI has another rule for RA or FP"
            else:
                cfi_rule = f"CFI has CFA=SP{depth:+d}"
            return Problem(StubReason.CFI_DIFFERS, f"{cfi_rule}, the code SP{frame.depth:+d}", vaddr - start_vaddr)
    return None


def depth_of(evaluator: SpDistances, state: RowState, pc_vaddr: int) -> int | None:
    """Return the CFA's distance from SP at a PC in bytes, or None when the CFA is not based on SP."""
    match state.cfa:
        case Rule(register, offset) if register == evaluator.arch.sp_register:
            return offset
        case Expression(expression):
            distance = evaluator.evaluate(expression, pc_vaddr)
            return None if distance is None else distance.depth
    return None


def _agrees_on_registers(arch: Arch, state: RowState, frame: StubFrame) -> bool:
    # A register that was saved and not changed is in both places; CFI may name either.
    unchanged = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)
    if arch.fixed_ra_offset:
        ra_agrees = state.ra == Rule(None, arch.fixed_ra_offset, deref=True)
    elif frame.ra_offset is None:
        ra_agrees = state.ra in unchanged
    else:
        ra_agrees = state.ra in unchanged or state.ra == Rule(None, frame.ra_offset, deref=True)
    return ra_agrees and state.fp in unchanged and state.signing is RaSigning.NONE
