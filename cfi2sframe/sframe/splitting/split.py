# SPDX-License-Identifier: Apache-2.0
"""Functions of a section to the ranges to write: all steps of -O2 (see the package)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.intern import distinct
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import Function
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.partition import Range, choose_ranges
from cfi2sframe.sframe.splitting.stretches import Group, make_stretches, unroll_stubs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.model import FrameState, FunctionBody

#: (distinct rows, bytes): sections of up to that many rows have a cut after each row in force for that many bytes or
#: more. More cuts cost more time, and rows that are close together usually belong to the same range.
_LEAST_GAPS: Final = ((20_000, 1), (100_000, 2))
_LEAST_GAP: Final = 3


def split_functions(
    functions: Sequence[Function], version: int, words_size: Callable[[FrameState, bool], int], budget: Budget
) -> list[tuple[Function, int]]:
    """Return the ranges to write, in the order of the functions, each with the number of the function it begins in.

    `words_size(state, is_flexible)` is the size of a state's data words in bytes. Every address keeps its row, and no
    range holds an address that no function holds. PCMASK functions of a few blocks become PCINC functions; the others
    are returned unchanged. Functions of equal bodies should have one body object. Raises `BudgetError` when there are
    more ways to cut the functions than `budget` allows for.
    """
    bodies, _ = distinct(function.body for function in functions)
    row_count = sum(len(body.starts) for body in bodies)
    columns = Columns(words_size, next((gap for limit, gap in _LEAST_GAPS if row_count <= limit), _LEAST_GAP))
    plain = unroll_stubs(functions)
    groups, stretches = make_stretches(plain, columns)
    choices = choose_ranges(columns, stretches, version, budget)
    known: dict[bytes, FunctionBody] = {}
    ranges: list[tuple[Function, int]] = []
    for group in groups:
        chosen = () if group.stretch is None else choices[group.stretch]
        if group.last - group.first == 1 and len(chosen) <= 1:
            ranges.append((plain[group.first], group.first))
        else:
            ranges += _ranges_of(group, chosen, plain, columns, known)
    # No step knows the final cost, so the result for a few functions may be larger than they are.
    if _size([each for each, _ in ranges], columns, version) > _size(functions, columns, version):
        return [(function, number) for number, function in enumerate(functions)]
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


def _size(functions: Sequence[Function], columns: Columns, version: int) -> int:
    """Return the bytes of functions, records and rows, in a section where equal rows are shared."""
    bodies, _ = distinct(function.body for function in functions)
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    return s.FDE_SIZE[version] * len(functions) + sum(attribute_size + columns.body_size(body) for body in bodies)
