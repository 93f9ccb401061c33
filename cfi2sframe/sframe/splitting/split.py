# SPDX-License-Identifier: Apache-2.0
"""Functions cut and joined into ranges whose row lists recur (-O2).

An SFrame function is a range of code, nothing more: a function of the program may be several ranges one behind the
other, and a range may reach over several functions that no gap parts. Prologues and epilogues recur all over a program,
so ranges of their own let functions share those rows that differ elsewhere; small functions without a gap need but one
record. A range costs a record of the function table; a list of rows costs its bytes once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import Function
from cfi2sframe.sframe.splitting.candidates import Recurring
from cfi2sframe.sframe.splitting.partition import OWN_LIST, Programme, Range
from cfi2sframe.sframe.splitting.stretches import Columns, Group, Stretch, make_stretches, unroll_stubs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.model import FrameState, FunctionBody

#: How often all ranges are chosen by what their lists cost one use, before each is held to what it costs in truth.
_ROUNDS: Final = 2
#: (distinct rows, bytes): in sections of as many rows, a row that holds for as many bytes may end a range. More places
#: to cut take more time, and rows close to one another belong together more often than not.
_LEAST_GAPS: Final = ((20_000, 1), (100_000, 2))
_LEAST_GAP: Final = 3


def split_functions(
    functions: Sequence[Function], version: int, words_size: Callable[[FrameState, bool], int], budget: Budget
) -> list[tuple[Function, int]]:
    """Return the ranges to write, in the order of the functions, each with the number of the function it begins in.

    `words_size(state, is_flexible)` is the bytes that a state's data words take. Every address has the same rows
    before and after, and no range holds an address that no function has. Of functions whose blocks repeat (PCMASK),
    those of a few blocks become plain ones; the others stay as they are. Raises `BudgetError` when there are more ways
    to cut them than `budget` allows to look at.
    """
    row_count = sum(map(len, {id(body): body.starts for _, _, body in functions}.values()))
    columns = Columns(words_size, next((gap for limit, gap in _LEAST_GAPS if row_count <= limit), _LEAST_GAP))
    plain = unroll_stubs(functions)
    groups, stretches = make_stretches(plain, columns)
    choices = _choose(columns, stretches, version, budget)
    bodies: dict[bytes, FunctionBody] = {}
    ranges: list[tuple[Function, int]] = []
    for group in groups:
        chosen = () if group.stretch is None else choices[group.stretch]
        if group.last - group.first == 1 and len(chosen) <= 1:
            ranges.append((plain[group.first], group.first))
        else:
            ranges += _ranges_of(group, chosen, plain, columns, bodies)
    # Each step takes what looks best by itself: a section of few functions may have been smaller before.
    if _size([each for each, _ in ranges], columns, version) > _size(functions, columns, version):
        return [(function, number) for number, function in enumerate(functions)]
    return ranges


def _size(functions: Sequence[Function], columns: Columns, version: int) -> int:
    """Return the bytes of functions that share equal rows."""
    bodies = {id(body): body for _, _, body in functions}
    return s.FDE_SIZE[version] * len(functions) + sum(
        s.FDE_ATTRIBUTE_SIZE * (version >= s.SFRAME_VERSION_3) + columns.body_size(body) for body in bodies.values()
    )


def _ranges_of(
    group: Group,
    ranges: Sequence[Range],
    functions: Sequence[Function],
    columns: Columns,
    bodies: dict[bytes, FunctionBody],
) -> Iterator[tuple[Function, int]]:
    base = functions[group.first].start_vaddr
    last = functions[group.last - 1]
    # Stretches may be equal but for the size of their last function.
    starts = [base + columns.cut_deltas[each.first_cut] for each in ranges]
    ends = [*starts[1:], last.start_vaddr + last.size]
    number = group.first
    for (first_cut, last_cut, _), start, end in zip(ranges, starts, ends, strict=True):
        key = columns.key(first_cut, last_cut)
        body = bodies.get(key)
        if body is None:
            body = bodies[key] = columns.body(first_cut, last_cut)
        while number + 1 < group.last and functions[number + 1].start_vaddr <= start:
            number += 1
        yield Function(start, end - start, body), number


def _choose(columns: Columns, stretches: list[Stretch], version: int, budget: Budget) -> list[list[Range]]:
    """Choose the ranges of each stretch so that records and row lists together are small."""
    record_size = s.FDE_SIZE[version]
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    recurring = Recurring(columns, stretches, attribute_size, budget)
    programme = Programme(columns, recurring, record_size, attribute_size)
    choices: list[list[Range]] = []
    uses = recurring.use_counts
    for _ in range(_ROUNDS):
        costs = [record_size + size / max(count, 1) for size, count in zip(recurring.sizes, uses, strict=True)]
        choices = [programme.cheapest(stretch, costs) for stretch in stretches]
        uses = [0] * len(costs)
        for stretch, ranges in zip(stretches, choices, strict=True):
            _count(uses, ranges, stretch.use_count)
    _settle(programme, stretches, choices, uses)
    return choices


def _settle(programme: Programme, stretches: list[Stretch], choices: list[list[Range]], uses: list[int]) -> None:
    """Choose once more, one stretch after the other, by what the lists cost while all others stay as they are."""
    record_size, sizes = programme.record_size, programme.recurring.sizes
    costs: list[float] = [record_size + (0 if count else size) for size, count in zip(sizes, uses, strict=True)]
    for number, stretch in enumerate(stretches):
        use_count, ranges = stretch.use_count, choices[number]
        _count(uses, ranges, -use_count)
        for each in _unused(ranges, uses):
            costs[each] = record_size + sizes[each] / use_count
        better = programme.cheapest(stretch, costs)
        if better != ranges and programme.is_cheaper(better, ranges, use_count, uses):
            for each in _unused(ranges, uses):
                costs[each] = record_size + sizes[each]
            choices[number] = better
        _count(uses, choices[number], use_count)
        for _, _, each in choices[number]:
            if each != OWN_LIST:
                costs[each] = record_size


def _unused(ranges: list[Range], uses: list[int]) -> list[int]:
    """Return the lists of ranges that no other stretch uses."""
    return [number for _, _, number in ranges if number != OWN_LIST and not uses[number]]


def _count(uses: list[int], ranges: list[Range], use_count: int) -> None:
    for _, _, number in ranges:
        if number != OWN_LIST:
            uses[number] += use_count
