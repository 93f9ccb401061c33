# SPDX-License-Identifier: Apache-2.0
"""Maps from addresses to values, by ranges; walks over two such maps; sets of addresses.

    starts   0          0x1000     0x1030     0x1040     0x1080
    values   nothing    A          B          nothing    A
             |----------|----------|----------|----------|---------> 2^64
             0          0x1000     0x1030     0x1040     0x1080

A walk over this map and another one that has C from 0x1020 up to 0x1030, and nothing elsewhere, yields

    [0, 0x1000) nothing, nothing  [0x1000, 0x1020) A, nothing  [0x1020, 0x1030) A, C  [0x1030, 0x1040) B, nothing ...
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Final, Generic, NamedTuple, TypeVar

S = TypeVar("S")
T = TypeVar("T")
#: Past the last address.
ADDRESS_END: Final = 1 << 64
#: The bits of an address: sums wrap around.
ADDRESS_MASK: Final = ADDRESS_END - 1


class Span(NamedTuple):
    """The bytes from `start` up to, not including, `end`: addresses, or file offsets."""

    start: int
    end: int


class RangeMap(Generic[T]):
    """A value for each address: `values[N]` from `starts[N]` up to the next start, or to the end of addresses.

    Starts ascend from 0. `nothing` holds where no other value was put. Ranges that touch stay apart, also with equal
    values.
    """

    def __init__(self, nothing: T, ranges: Iterable[tuple[int, int, T]] = ()) -> None:
        """Make a map of ascending ranges `[start, end)` that do not overlap, each with its value."""
        self.nothing: Final = nothing
        self.values = [nothing]
        # Not by `append`, which takes three times as long for one range.
        starts, values = [0], self.values
        for start, end, value in ranges:
            if starts[-1] == start:
                values[-1] = value
            else:
                starts.append(start)
                values.append(value)
            if end < ADDRESS_END:
                starts.append(end)
                values.append(nothing)
        # Boxed integers scatter over the heap.
        self.starts = array("Q", starts)

    def put(self, starts: Sequence[int], values: Sequence[T], end: int) -> None:
        """Replace values up to `end`: each new one holds from its start on."""
        first = bisect_left(self.starts, starts[0])
        last = bisect_left(self.starts, end, first)
        new_starts, new_values = array("Q", starts), [*values]
        if end < ADDRESS_END and end not in self.starts[last : last + 1]:
            new_starts.append(end)
            new_values.append(self.values[last - 1])
        self.starts[first:last] = new_starts
        self.values[first:last] = new_values

    def append(self, starts: Sequence[int], values: Sequence[T], end: int) -> None:
        """Put values as `put` does, but after all that were put before: four times as fast."""
        if self.starts[-1] == starts[0]:
            del self.starts[-1], self.values[-1]
        self.starts.extend(starts)
        self.values += values
        if end < ADDRESS_END:
            self.starts.append(end)
            self.values.append(self.nothing)

    def __contains__(self, address: object) -> bool:
        return isinstance(address, int) and self[address] != self.nothing

    def __getitem__(self, address: int) -> T:
        is_address = 0 <= address < ADDRESS_END
        return self.values[bisect_right(self.starts, address) - 1] if is_address else self.nothing

    def range_at(self, address: int) -> tuple[int, int, T]:
        """Return the start and the end of the range that an address is in, and its value."""
        following = bisect_right(self.starts, address)
        end = self.starts[following] if following < len(self.starts) else ADDRESS_END
        return self.starts[following - 1], end, self.values[following - 1]

    def within(self, start: int, end: int) -> list[T]:
        """Return the values of the ranges from one address up to another, ascending."""
        return self.values[bisect_right(self.starts, start) - 1 : bisect_left(self.starts, end)]

    def __iter__(self) -> Iterator[tuple[int, int, T]]:
        return zip(self.starts, chain(islice(self.starts, 1, None), [ADDRESS_END]), self.values, strict=True)

    def held(self: "RangeMap[S | None]") -> Iterator[tuple[int, int, S]]:
        """Yield the ranges that have a value, of a map whose `nothing` is None."""
        return ((start, end, value) for start, end, value in self if value is not None)


class Distinct(Generic[T]):
    """Values that recur, numbered from 0 on: a map of their numbers is compared without comparing them each time."""

    def __init__(self, *values: T) -> None:
        self.values = list(values)
        self._numbers = {value: number for number, value in enumerate(values)}

    def number_of(self, value: T) -> int:
        """Return the number of a value; equal ones have one."""
        number = self._numbers.setdefault(value, len(self.values))
        if number == len(self.values):
            self.values.append(value)
        return number


def walk_both(first: RangeMap[S], second: RangeMap[T]) -> Iterator[tuple[int, int, S, T]]:
    """Yield the ranges `[start, end)` over which neither of two maps changes, and the values of both."""
    # This loop is hot: verification of a library of 100 MB takes a million steps.
    ours, theirs = iter(first), iter(second)
    start = our_end = their_end = 0
    our_value, their_value = first.nothing, second.nothing
    while start < ADDRESS_END:
        if our_end == start:
            _, our_end, our_value = next(ours)
        if their_end == start:
            _, their_end, their_value = next(theirs)
        end = our_end if our_end < their_end else their_end  # noqa: FURB136 - min() takes a quarter of the loop
        yield start, end, our_value, their_value
        start = end


# Sets of bytes, as spans


def united(spans: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in any of the spans, as ascending spans that do not touch."""
    result: list[Span] = []
    # Below all spans, some of which start a little below 0.
    begin = reached = -ADDRESS_END
    for start, end in sorted(spans):
        if start >= end:
            continue
        if start > reached:
            if begin < reached:
                result.append(Span(begin, reached))
            begin = start
        reached = max(reached, end)
    return [*result, Span(begin, reached)] if begin < reached else result


def without(spans: Iterable[tuple[int, int]], taken: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in any of `spans` and in none of `taken`, as ascending spans that do not touch."""
    steps = walk_both(bytes_of(spans), bytes_of(taken))
    return [Span(start, end) for start, end, is_ours, is_taken in steps if is_ours and not is_taken]


def common(first: Iterable[tuple[int, int]], second: Iterable[tuple[int, int]]) -> list[Span]:
    """Return the bytes that are in both, as ascending spans that do not touch."""
    steps = walk_both(bytes_of(first), bytes_of(second))
    return [Span(start, end) for start, end, is_ours, is_theirs in steps if is_ours and is_theirs]


def bytes_of(spans: Iterable[tuple[int, int]]) -> RangeMap[bool]:
    """Return the map that is true for the bytes that are in any of the spans."""
    return RangeMap(False, ((start, end, True) for start, end in united(spans) if start < ADDRESS_END))


def holder_of(spans: Sequence[Span], wanted: Span) -> Span | None:
    """Return the span that holds all of `wanted`, of ascending ones that do not touch; None when none does."""
    index = bisect_right(spans, Span(wanted.start, ADDRESS_END)) - 1
    return spans[index] if index >= 0 and wanted.end <= spans[index].end else None


def touches(spans: Sequence[Span], wanted: Span) -> bool:
    """Return whether a span, of ascending ones that do not touch, has bytes in common with `wanted`."""
    index = bisect_left(spans, Span(wanted.end, -ADDRESS_END)) - 1
    return index >= 0 and wanted.start < min(spans[index].end, wanted.end)
