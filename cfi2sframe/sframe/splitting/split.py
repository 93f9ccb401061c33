# SPDX-License-Identifier: Apache-2.0
"""Functions of a section to the ranges to write: all steps of -O2 (see the package)."""

from __future__ import annotations

import sys
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import BudgetError
from cfi2sframe.intern import IdentityMap, distinct
from cfi2sframe.sframe.lookup_cost import lookup_cost
from cfi2sframe.sframe.model import Function
from cfi2sframe.sframe.splitting.choose import choose_ranges
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.prices import Prices
from cfi2sframe.sframe.splitting.stretches import make_stretches, unroll_stubs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.model import FrameState, FunctionBody
    from cfi2sframe.sframe.splitting.partition import Range
    from cfi2sframe.sframe.splitting.stretches import Group

#: By `Arch.prologue_step`: sections of up to that many distinct rows have a cut after each row; larger ones only after
#: rows in force for longer than a step. More cuts cost more time, and rows that are close together usually belong to
#: the same range: without those cuts git is 0.2 % larger for AMD64, and gdb 0.6 % smaller for AArch64.
_EVERY_ROW: Final = {2: 20_000, 4: 10_000, 6: 10_000}
#: With the longest steps, those of s390x, there is also a cut before a row in force for so many bytes: where many
#: addresses are, readers should not have to walk over an epilogue first. Without these, libmergedlo is 26 % larger.
_LONG_GAPS: Final = {6: 64}


def split_functions(
    functions: Sequence[Function],
    version: int,
    words_size: Callable[[FrameState, bool], int],
    prologue_step: int,
    max_rows: int,
    budget: Budget,
) -> list[tuple[Function, int]]:
    """Return the ranges to write, in the order of the functions, each with the number of the function it begins in.

    `words_size(state, is_flexible)` is the size of a state's data words in bytes, `prologue_step` the ABI's
    (`Arch.prologue_step`), for which there has to be an entry in `_EVERY_ROW`. Every address keeps its row, and no
    range holds an address that no function holds. Readers walk no more rows on average than before, and no range has
    more than `max_rows` where there is a choice: there is a cut after eight rows at the latest. PCMASK functions of a
    few blocks become PCINC functions; the others are returned unchanged. Functions of equal bodies should have one body
    object. Where nothing smaller is found, or more ways to cut the functions than `budget` allows for, functions are
    cut at `max_rows` only.
    """
    bodies, _ = distinct(function.body for function in functions)
    row_count = sum(len(body.starts) for body in bodies)
    long_gap = _LONG_GAPS.get(prologue_step, sys.maxsize)
    columns = Columns(words_size, least_gap(row_count, prologue_step), long_gap)
    plain = unroll_stubs(functions)
    groups, stretches = make_stretches(plain, columns)
    plainest = _cut_at_limit(functions, max_rows)
    prices = Prices.of(version, max_rows)
    plainest_size = _size(plainest, columns, prices)
    walked_before = _walked_count(functions)
    kept = _walked_count(functions[group.first] for group in groups if group.stretch is None)
    try:
        choices = choose_ranges(columns, stretches, prices, budget, walked_before - kept)
    except BudgetError:
        return plainest
    ranges = _ranges(groups, choices, plain, columns)
    # No step knows the final cost, so the result for a few functions may be larger than they are.
    if _size(ranges, columns, prices) > plainest_size:
        return plainest
    if _walked_count(each for each, _ in ranges) > walked_before:
        return plainest
    return ranges


def least_gap(row_count: int, prologue_step: int) -> int:
    """Return for how many bytes a row has to be in force to have a cut after it, in a section of so many rows."""
    return 1 if row_count <= _EVERY_ROW[prologue_step] else prologue_step + 1


def _cut_at_limit(functions: Sequence[Function], max_rows: int) -> list[tuple[Function, int]]:
    """Return functions, those of too many rows cut into ranges of about as many rows each."""

    def pieces_of(body: FunctionBody) -> list[tuple[int, FunctionBody]]:
        starts = body.starts
        count = -(-len(starts) // max_rows)
        edges = [starts[len(starts) * number // count] for number in range(count)]
        return [(edge, body.cut(edge, end)) for edge, end in pairwise((*edges, starts[-1] + 1))]

    pieces = IdentityMap(pieces_of)
    ranges: list[tuple[Function, int]] = []
    for number, function in enumerate(functions):
        if len(function.body.starts) <= max_rows or function.body.repeat_size:
            ranges.append((function, number))
            continue
        cut = pieces[function.body]
        ends = [*[edge for edge, _ in cut[1:]], function.size]
        for (edge, body), end in zip(cut, ends, strict=True):
            ranges.append((Function(function.start_vaddr + edge, end - edge, body), number))
    return ranges


def _walked_count(functions: Iterable[Function]) -> int:
    """Return the rows that readers walk for all addresses of functions together."""
    columns = [(function.size, function.body) for function in functions]
    return lookup_cost([size for size, _ in columns], [body for _, body in columns]).walked_count


def _ranges(
    groups: Sequence[Group], choices: Sequence[Sequence[Range]], functions: Sequence[Function], columns: Columns
) -> list[tuple[Function, int]]:
    """Return the chosen ranges of all groups."""
    known: dict[bytes, FunctionBody] = {}
    ranges: list[tuple[Function, int]] = []
    for group in groups:
        if group.stretch is None:
            ranges.append((functions[group.first], group.first))
        else:
            ranges += _ranges_of(group, choices[group.stretch], functions, columns, known)
    return ranges


def _ranges_of(
    group: Group,
    ranges: Sequence[Range],
    functions: Sequence[Function],
    columns: Columns,
    known: dict[bytes, FunctionBody],
) -> Iterator[tuple[Function, int]]:
    """Yield a group's ranges and the function that each begins in; equal rows get one body, kept in `known`."""
    base = functions[group.first].start_vaddr
    last = functions[group.last - 1]
    # Equal stretches may differ in the size of their last function.
    starts = [base + columns.cut_deltas[each.first_cut] for each in ranges]
    ends = [*starts[1:], last.start_vaddr + last.size]
    number = group.first
    for each, start, end in zip(ranges, starts, ends, strict=True):
        key = columns.key(each.first_cut, each.last_cut)
        body = known.get(key)
        if body is None:
            body = known[key] = columns.body(each.first_cut, each.last_cut)
        while number + 1 < group.last and functions[number + 1].start_vaddr <= start:
            number += 1
        yield Function(start, end - start, body), number


def _size(ranges: Sequence[tuple[Function, int]], columns: Columns, prices: Prices) -> int:
    """Return the bytes of ranges, records and rows, in a section where equal rows are shared."""
    bodies, _ = distinct(function.body for function, _ in ranges)
    size = prices.record_size * len(ranges)
    if not prices.shares_beginnings:
        return size + sum(prices.attribute_size + columns.body_size(body) for body in bodies)
    lists = {(columns.start_size_of(body), columns.body_key(body)): columns.body_size(body) for body in bodies}
    # In sorted order, a list is followed by the longer ones that begin with it.
    for (start_size, key), (next_start_size, next_key) in pairwise([*sorted(lists), (0, b"")]):
        if start_size != next_start_size or not next_key.startswith(key):
            size += lists[start_size, key]
    return size
