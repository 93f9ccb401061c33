# SPDX-License-Identifier: Apache-2.0
"""The cost of look-ups, against the plain definition: look up every byte, and count the rows up to the one found."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.sframe.lookup_cost import LookupCost, lookup_cost
from cfi2sframe.sframe.model import FrameState, FunctionBody, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence


STATES = tuple(FrameState(Rule(7, 8 * number, deref=False)) for number in range(8))


def body_of(*starts: int, repeat_size: int = 0) -> FunctionBody:
    return FunctionBody(starts, STATES[: len(starts)], repeat_size=repeat_size)


def walked_at(body: FunctionBody, delta: int) -> int:
    """Return how many rows a reader walks that looks up the byte at `delta` of a function; 0: there is no row."""
    return bisect_right(body.starts, delta % body.repeat_size if body.repeat_size else delta)


def by_looking_up(functions: Sequence[tuple[int, FunctionBody]]) -> LookupCost:
    """Return the cost of functions, given their sizes and bodies, by looking up every byte."""
    walked = [count for size, body in functions for delta in range(size) if (count := walked_at(body, delta))]
    steps = math.ceil(math.log2(len(functions) + 1))
    return LookupCost(len(walked), sum(walked), max(walked, default=0), len(functions), steps)


def cost_of(functions: Sequence[tuple[int, FunctionBody]]) -> LookupCost:
    return lookup_cost([size for size, _ in functions], [body for _, body in functions])


BODIES = st.builds(
    lambda starts, repeat_size: body_of(*sorted(starts), repeat_size=repeat_size),
    st.one_of(st.sets(st.integers(0, 40), max_size=8), st.sets(st.integers(1, 40), max_size=7).map(lambda s: s | {0})),
    st.one_of(st.just(0), st.integers(1, 20)),
)


@given(st.data(), st.lists(BODIES, max_size=4))
def test_any_functions_cost_what_their_look_ups_cost(data: st.DataObject, bodies: list[FunctionBody]) -> None:
    """Functions may share a body, end before its last row, have no row at their start, or no rows at all."""
    functions = (
        data.draw(st.lists(st.tuples(st.integers(0, 60), st.sampled_from(bodies)), max_size=8)) if bodies else []
    )
    assert cost_of(functions) == by_looking_up(functions)


def test_a_function_of_three_rows() -> None:
    cost = cost_of([(16, body_of(0, 4, 9))])
    assert cost == LookupCost(16, 4 * 1 + 5 * 2 + 7 * 3, 3, 1, 1)
    assert cost.mean_rows == 35 / 16


def test_no_functions() -> None:
    assert cost_of([]) == LookupCost()
    assert LookupCost().mean_rows == 0


def test_the_time_does_not_grow_with_functions_times_rows() -> None:
    """Functions that end before the last row of a body that they share are not walked row by row."""
    body = body_of(0)._replace(starts=tuple(range(50_000)))
    start = time.process_time()
    assert lookup_cost([40_000] * 50_000, [body] * 50_000).max_rows == 40_000
    assert time.process_time() - start < 5
