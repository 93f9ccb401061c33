# SPDX-License-Identifier: Apache-2.0
"""Sets of address ranges, against plain sets of addresses."""

from __future__ import annotations

from itertools import chain, pairwise

from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.verification.address_set import AddressSet

LIMIT = 30
addresses = st.integers(0, LIMIT)
ranges = st.tuples(addresses, addresses).filter(lambda pair: pair[0] < pair[1])


@given(st.lists(ranges, max_size=6), ranges)
def test_a_set_holds_its_ranges_and_knows_the_gaps(drawn: list[tuple[int, int]], asked: tuple[int, int]) -> None:
    addresses = AddressSet(drawn)
    wanted = set(chain.from_iterable(range(start, end) for start, end in drawn))
    assert {vaddr for vaddr in range(-1, LIMIT + 2) if vaddr in addresses} == wanted
    gaps = list(addresses.gaps(*asked))
    assert [vaddr for gap in gaps for vaddr in range(*gap)] == [vaddr for vaddr in range(*asked) if vaddr not in wanted]
    # Gaps are as long as they can be.
    assert all(before[1] < after[0] for before, after in pairwise(gaps))


def test_ranges_that_touch_are_one() -> None:
    assert list(AddressSet([(1, 2), (2, 4), (6, 7)]).gaps(0, 9)) == [(0, 1), (4, 6), (7, 9)]
