# SPDX-License-Identifier: Apache-2.0
"""What the first tier keeps of the combinations of parameters."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from tests.tiers import corners

lists = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@given(lists)
def test_every_value_is_kept_by_few_cases(lengths: list[int]) -> None:
    cases = [
        frozenset((str(number), str(value)) for number, value in enumerate(values))
        for values in product(*map(range, lengths))
    ]
    kept = corners(cases)
    assert set().union(*(cases[number] for number in kept)) == set().union(*cases)
    assert len(kept) == max(lengths)
