# SPDX-License-Identifier: Apache-2.0
"""Stretches: functions without a gap between them, which may be joined; each distinct one is handled once.

With the padding after functions, nearly all functions of a text section follow one another without a gap. Stretches end
within such a run, too. A function of many rows that recurs is a stretch by itself, so that its ranges are chosen once;
and a stretch of many rows ends, because its ranges are chosen together, given those of all other stretches.
"""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.intern import distinct

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.sframe.model import Function
    from cfi2sframe.sframe.splitting.columns import Columns

#: A stretch ends with the function in which it gets more rows than this.
_LAST_ROW: Final = 300
#: A function of so many rows that recurs is a stretch by itself.
_LEAST_ROWS: Final = 8
#: A stretch ends before it has more bytes: a range's size has 32 bits.
_MAX_SIZE: Final = 1 << 31
#: Unrolling PCMASK functions of up to this many blocks costs nothing: a record of their own is as large.
_MAX_UNROLLED: Final = 4


class Stretch(NamedTuple):
    """A distinct stretch: the numbers of its first and last cut, and how often the section has it.

    Equal stretches may differ in their last function's size; all others together have `more_size` bytes more than the
    first of them each (which may be less than 0).
    """

    first_cut: int
    last_cut: int
    use_count: int
    more_size: int


class Group(NamedTuple):
    """Functions `[first, last)` without a gap, and the number of their stretch (None: a PCMASK function, kept)."""

    first: int
    last: int
    stretch: int | None


def unroll_stubs(functions: Sequence[Function]) -> list[Function]:
    """Replace PCMASK functions by PCINC ones of the same rows where that costs nothing: only those can be joined.

    It costs nothing for blocks of a single row, and for a few blocks that touch a function they can be joined with.
    """
    unrolled = list(functions)
    for number, function in enumerate(functions):
        body, block_size = function.body, function.body.repeat_size
        if not block_size:
            continue
        block_count, rest = (1, 0) if len(body.starts) == 1 else divmod(function.size, block_size)
        is_joinable = block_count == 1 or (block_count <= _MAX_UNROLLED and _has_neighbour(functions, number))
        if rest or not is_joinable:
            continue
        blocks = range(0, block_count * block_size, block_size)
        starts = tuple([block + start for block in blocks for start in body.starts])
        plain = body._replace(starts=starts, states=body.states * block_count, repeat_size=0)
        unrolled[number] = function._replace(body=plain)
    return unrolled


def _has_neighbour(functions: Sequence[Function], number: int) -> bool:
    """Whether a function touches the one before or after it and has the same attributes."""
    function = functions[number]
    return (number > 0 and _can_join(functions[number - 1], function)) or (
        number + 1 < len(functions) and _can_join(function, functions[number + 1])
    )


def _can_join(function: Function, following: Function) -> bool:
    if function.start_vaddr + function.size != following.start_vaddr:
        return False
    return function.body is following.body or function.body.attributes == following.body.attributes


def make_stretches(
    functions: Sequence[Function], columns: Columns, *, ends_within_runs: bool = True
) -> tuple[list[Group], list[Stretch]]:
    """Group the functions, and add the distinct stretches to `columns`, which is complete after that.

    Unless `ends_within_runs`, a stretch ends only where functions cannot be joined.
    """
    bodies, body_numbers = distinct([function.body for function in functions])
    use_counts = Counter(body_numbers)
    is_alone = [
        bool(body.repeat_size) or (ends_within_runs and use_counts[number] > 1 and len(body.starts) >= _LEAST_ROWS)
        for number, body in enumerate(bodies)
    ]
    groups: list[Group] = []
    cuts: list[tuple[int, int]] = []
    counts: list[int] = []
    last_sizes: list[int] = []
    more_sizes: list[int] = []
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    for first, last in _touching(
        functions, [is_alone[n] for n in body_numbers], _LAST_ROW if ends_within_runs else sys.maxsize
    ):
        if functions[first].body.repeat_size:
            groups.append(Group(first, last, None))
            continue
        # Without the last function's size: it changes no row start.
        sizes = tuple([function.size for function in functions[first : last - 1]])
        key = (tuple(body_numbers[first:last]), sizes)
        stretch = known.get(key)
        if stretch is None:
            stretch = known[key] = len(cuts)
            cuts.append(columns.add(functions[first:last]))
            counts.append(0)
            last_sizes.append(functions[last - 1].size)
            more_sizes.append(0)
        counts[stretch] += 1
        more_sizes[stretch] += functions[last - 1].size - last_sizes[stretch]
        groups.append(Group(first, last, stretch))
    columns.finish()
    return groups, [
        Stretch(first, last, count, more) for (first, last), count, more in zip(cuts, counts, more_sizes, strict=True)
    ]


def _touching(functions: Sequence[Function], is_alone: Sequence[bool], last_row: int) -> Iterator[tuple[int, int]]:
    """Yield the indices [first, last) of the functions of each stretch; `is_alone` is by function."""
    first = 0
    while first < len(functions):
        size, row_count = functions[first].size, len(functions[first].body.starts)
        last = first + 1
        while last < len(functions) and not is_alone[first]:
            function = functions[last]
            size += function.size
            if (
                is_alone[last]
                or row_count > last_row
                or size > _MAX_SIZE
                or not _can_join(functions[last - 1], function)
            ):
                break
            row_count += len(function.body.starts)
            last += 1
        yield first, last
        first = last
