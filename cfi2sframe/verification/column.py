# SPDX-License-Identifier: Apache-2.0
"""A column of addresses: what holds from each address on. Two of them are walked together."""

from __future__ import annotations

from bisect import bisect_left
from itertools import chain, islice
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

S = TypeVar("S")
T = TypeVar("T")
#: Past the last address.
ADDRESS_END: Final = 1 << 64


class AddressColumn(Generic[T]):
    """What holds from each of ascending addresses on up to the next one: `answers[numbers[N]]` from `addresses[N]` on.

    The first of the answers holds where nothing else was put. Ranges are put in ascending order.
    """

    def __init__(self, nothing: T) -> None:
        self.addresses: list[int] = [0]
        self.numbers: list[int] = [0]
        self.answers = [nothing]
        self._known: dict[T, int] = {nothing: 0}

    def number(self, answer: T) -> int:
        """Return the number of an answer; equal ones have one, and are compared once."""
        number = self._known.setdefault(answer, len(self.answers))
        if number == len(self.answers):
            self.answers.append(answer)
        return number

    def put(self, addresses: Sequence[int], numbers: Sequence[int], end: int) -> None:
        """Put answers from some addresses on, the last one up to `end`; they follow all that was put before."""
        if self.addresses[-1] == addresses[0]:
            del self.addresses[-1], self.numbers[-1]
        self.addresses += addresses
        self.numbers += numbers
        self.addresses.append(end)
        self.numbers.append(0)

    def cover(self, end: int, points: Mapping[int, int]) -> None:
        """Put the answers of these numbers in place of others from ascending addresses on, the last one up to `end`."""
        first, last = bisect_left(self.addresses, next(iter(points))), bisect_left(self.addresses, end)
        rest = {} if self.addresses[last : last + 1] == [end] else {end: self.numbers[last - 1]}
        self.addresses[first:last] = [*points, *rest]
        self.numbers[first:last] = [*points.values(), *rest.values()]


def steps(first: AddressColumn[S], second: AddressColumn[T]) -> Iterator[tuple[int, int, int, int]]:
    """Yield the addresses `[start, end)` over which neither of two columns changes, and the numbers of both answers."""
    here, there = (chain(islice(each.addresses, 1, None), [ADDRESS_END]) for each in (first, second))
    our_numbers, their_numbers = iter(first.numbers), iter(second.numbers)
    start = our_end = their_end = ours = theirs = 0
    while start < ADDRESS_END:
        if our_end == start:
            our_end, ours = next(here), next(our_numbers)
        if their_end == start:
            their_end, theirs = next(there), next(their_numbers)
        end = min(our_end, their_end)
        yield start, end, ours, theirs
        start = end
