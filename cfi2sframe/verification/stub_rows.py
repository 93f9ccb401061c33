# SPDX-License-Identifier: Apache-2.0
"""Compare PLT stubs, as their instructions describe them, with the section's rows."""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import FrameState, Function
    from cfi2sframe.verification.comparison import Comparison


def compare_stubs(comparison: Comparison, stubs: Function) -> None:
    """Compare a function of PLT stubs with the section at every address where rows of either start or end."""
    start, end, body = stubs.start_vaddr, stubs.start_vaddr + stubs.size, stubs.body
    block_size = body.repeat_size or stubs.size
    edges = sorted({start, *comparison.edges.between(start, end)})
    for begin, edge in pairwise((*edges, end)):
        holder = comparison.lookup.holder_of(begin)
        if holder is None:
            comparison.point_count += 1
            comparison.report("missing", start, "no SFrame FDE for a PLT stub")
            return
        # Past a common multiple of the block size and the section's period, both sides repeat.
        limit = min(edge, begin + lcm(block_size, comparison.edges.period(holder)))
        first_block = (begin - start) // block_size * block_size
        blocks = range(first_block, limit - start, block_size)
        rows = {start + block + delta for block in blocks for delta in body.starts}
        points = {begin, *(pc for pc in rows if begin < pc < limit)}
        for pc in sorted(points | comparison.edges.in_blocks(points, limit)):
            _compare_at(comparison, pc, body.states[bisect_right(body.starts, (pc - start) % block_size) - 1])


def _compare_at(comparison: Comparison, pc: int, truth: FrameState) -> None:
    comparison.point_count += 1
    found = comparison.lookup.find(pc)
    state = None if found is None or found.row is None else found.row.state
    if state != truth:
        arch = comparison.arch
        comparison.report(
            "wrong", pc, f"the stub has {_state_text(truth, arch)}, the row has {_state_text(state, arch)}"
        )


def _state_text(state: FrameState | None, arch: Arch) -> str:
    if state is None:
        return "nothing"
    if state.cfa is None:
        return "RA undefined"
    rules = (("CFA", state.cfa), ("RA", state.ra), ("FP", state.fp))
    return " ".join(f"{name}={rule.equation(arch)}" for name, rule in rules if rule)
