# SPDX-License-Identifier: Apache-2.0
"""The answers of a section at each address, as a column."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import cache, reduce
from itertools import islice, pairwise
from operator import lt, or_
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_1
from cfi2sframe.range_map import ADDRESS_END, Distinct, RangeMap, Span, touches, walk_both
from cfi2sframe.sframe.model import NO_BLOCK_SIZE, Attributes, FrameState, Function, FunctionBody, Section, no_row_state

#: Of PCMASK functions in sections whose answers are compared: PLTs of real files have some ten thousand.
_MAX_BLOCK_EDGES: Final = 1 << 20


class FoundState(NamedTuple):
    """An answer of a section: the state in force (None: no row is), and the function's attributes that have an effect.

    The form of rows has none, nor has the signing key where RA is not signed.
    """

    state: FrameState | None
    is_signal_frame: bool
    uses_b_key: bool

    @classmethod
    def of(cls, state: FrameState | None, *, is_signal_frame: bool, uses_b_key: bool) -> "FoundState":
        """Return the answer of a state in a function with these attributes."""
        return cls(state, is_signal_frame, uses_b_key and state is not None and state.mangled_ra)


def function_ends(section: Section) -> list[int]:
    """Return the ends of the functions of `section.ascending`: each ends where the next one starts at the latest."""
    ordered = section.ascending
    limits = (*ordered.starts[1:], ADDRESS_END)
    return [min(start + size, limit) for start, size, limit in zip(ordered.starts, ordered.sizes, limits, strict=False)]


def section_column(section: Section, others: Sequence[int], number_of: Callable[[FoundState], int]) -> RangeMap[int]:
    """Return a section's answer at each address, as its number; 0 is none: no function is there.

    The column that it is compared with changes at the addresses `others`.
    """
    column = RangeMap(0)

    @cache
    def answer_of(attributes: Attributes, state: FrameState | None) -> int:
        _, is_signal_frame, uses_b_key = attributes
        return number_of(FoundState.of(state, is_signal_frame=is_signal_frame, uses_b_key=uses_b_key))

    # Without this memo, it takes 1.7 times as long for libz3 at -O0.
    @cache
    def answers_of(attributes: Attributes, states: tuple[FrameState | None, ...]) -> list[int]:
        return [answer_of(attributes, state) for state in states]

    @cache
    def rows_of(body: FunctionBody) -> tuple[tuple[int, ...], list[int], bool]:
        """Return the starts of a body's rows, their answers, and whether they are in force one after the other."""
        starts = body.starts
        is_plain = not body.repeat_size and starts[:1] == (0,) and all(map(lt, starts, starts[1:]))
        return starts, answers_of(body.attributes, body.states), is_plain

    ordered = section.ascending
    for start, end, body in zip(ordered.starts, function_ends(section), ordered.bodies, strict=True):
        if end <= start:
            continue
        deltas, of_rows, is_plain = rows_of(body)
        if is_plain:
            if deltas[-1] >= end - start:
                # Rows past the end never hold.
                row_count = bisect_left(deltas, end - start)
                deltas, of_rows = deltas[:row_count], of_rows[:row_count]
            column.append([start + delta for delta in deltas], of_rows, end)
            continue
        function = Function(start, end - start, body)
        (no_row,) = answers_of(body.attributes, (no_row_state(body, section.version),))
        held: dict[int, int] = {}
        last = 0
        for vaddr in _changes(function, section.version, others):
            row = function.row_index_at(vaddr, section.version)
            answer = no_row if row is None else of_rows[row]
            if answer != last:
                last = held[vaddr] = answer
        column.append(list(held), list(held.values()), end)
    return column


def _changes(function: Function, version: int, others: Sequence[int]) -> list[int]:
    """Return the addresses where another row of a function may come into force; `others` are ascending addresses.

    A section may claim billions of blocks: between two of these, the rows of a PCMASK function are listed only until
    they repeat.
    """
    start, end, body = function.start_vaddr, function.end_vaddr, function.body
    if not body.repeat_size:
        return sorted({start, *[start + delta for delta in body.starts if delta < end - start]})
    points = [start, *others[bisect_right(others, start) : bisect_left(others, end)]]
    changes = set(points)
    # Later versions than 1 divide by the block size, and find no row where it is 0.
    step, period = _steps_by_bits(body) if version == SFRAME_VERSION_1 else (0, 0)
    for begin, next_point in pairwise([*points, end]):
        if body.repeat_size != NO_BLOCK_SIZE:
            limit = min(next_point, begin + body.repeat_size)
            block = begin - (begin - start) % body.repeat_size
            rows = [block + delta for delta in body.starts if delta < body.repeat_size]
            changes.update([row for row in (*rows, *[row + body.repeat_size for row in rows]) if begin < row < limit])
        elif step:
            limit = min(next_point, begin + period)
            changes.update(range(begin + step - begin % step, limit, step))
    return sorted(changes)


def _steps_by_bits(body: FunctionBody) -> tuple[int, int]:
    """Return the step and the period of the rows of version 1: they change only at multiples of the step.

    Without block sizes, a row is in force where the PC has all bits of its start: only multiples of the lowest one of
    all these bits are edges. (0, 1): rows never change.
    """
    bits = reduce(or_, body.starts, 0)
    return bits & -bits, 1 << bits.bit_length()


class LostRow(NamedTuple):
    """An address with a row of an old section that a new one does not have."""

    vaddr: int
    is_outermost: bool


def have_same_answers(one: Section, other: Section) -> bool:
    """Return whether two sections of one version give the same answer at every PC, however functions are cut."""
    edges = [*_block_edges(one), *_block_edges(other)]
    if len(edges) > _MAX_BLOCK_EDGES:
        return False
    points = sorted(set(edges))
    number_of = Distinct[FoundState | None](None).number_of
    columns = section_column(one, points, number_of), section_column(other, points, number_of)
    return all(here == there for _, _, here, there in walk_both(*columns))


def _block_edges(section: Section) -> Iterator[int]:
    """Yield where rows of PCMASK functions may start, block by block: more than `_MAX_BLOCK_EDGES` are cut."""
    for function in section:
        start, body = function.start_vaddr, function.body
        size = body.repeat_size
        if size == NO_BLOCK_SIZE:
            step, _ = _steps_by_bits(body)
            size = step or function.size
            start -= start % max(size, 1)
        if size:
            blocks = range(start, function.end_vaddr, size)
            deltas = [delta for delta in body.starts if delta < size] or [0]
            yield from islice((block + delta for block in blocks for delta in deltas), _MAX_BLOCK_EDGES)


def first_lost_row(
    old: Section, new: Section, is_code: Callable[[int], bool], ends: Sequence[Span] = ()
) -> LostRow | None:
    """Return the first address of code at which `old` has a row, and `new` has none; None where it has all.

    Where the row of `old` ends the walk (RA is undefined), that of `new` has to do so, too. Otherwise they may differ:
    each is compared with the CFI for itself. In `ends`, walks end, and rows of `old` that go on need not be kept.
    """
    answers = Distinct[FoundState | None](None)
    kept = section_column(new, section_column(old, (), answers.number_of).starts, answers.number_of)
    wanted = section_column(old, kept.starts, answers.number_of)
    for vaddr, _, here, there in walk_both(wanted, kept):
        state, other = (answer and answer.state for answer in (answers.values[here], answers.values[there]))
        is_lost = state is not None and (other is None or (state.cfa is None and other.cfa is not None))
        if (
            state is not None
            and is_lost
            and is_code(vaddr)
            and not (state.cfa and touches(ends, Span(vaddr, vaddr + 1)))
        ):
            return LostRow(vaddr, state.cfa is None)
    return None
