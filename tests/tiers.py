# SPDX-License-Identifier: Apache-2.0
"""Two tiers of tests: what every change runs, and the rest.

The first tier (`make test`) leaves to the second (`make test-all`):

- tests marked `slow`;
- of each test marked `sampled` all cases but the first;
- of a test with several lists of parameters the combinations that add no value: each value of each list is in a
  case that stays.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

import pytest

#: The choices of pytest's option --tier.
TIERS: Final = ("first", "second", "all")


class Tiers(NamedTuple):
    """The items of each tier, in the order of their collection."""

    first: list[pytest.Item]
    second: list[pytest.Item]


def split(items: Sequence[pytest.Item]) -> Tiers:
    """Share out what was collected."""
    functions: defaultdict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("slow") is None:
            functions[item.nodeid.partition("[")[0]].append(item)
    first = {item for cases in functions.values() for item in _kept(cases)}
    return Tiers([item for item in items if item in first], [item for item in items if item not in first])


def _kept(cases: Sequence[pytest.Item]) -> Iterable[pytest.Item]:
    if cases[0].get_closest_marker("sampled") is not None:
        return cases[:1]
    return [cases[number] for number in corners([frozenset(_values(case)) for case in cases])]


def _values(case: pytest.Item) -> Iterator[tuple[str, ...]]:
    """Yield the names and the value that each list of parameters has given a case; a test without any has one case."""
    callspec = getattr(case, "callspec", None)
    left = dict(callspec.params) if callspec is not None else {"": None}
    for mark in case.iter_markers("parametrize"):
        names = mark.args[0]
        names = [name.strip() for name in names.split(",")] if isinstance(names, str) else names
        # Combinations of lists share the objects in the lists.
        yield (*names, *(str(id(left.pop(name))) for name in names if name in left))
    for name, value in left.items():
        yield name, str(id(value))


def corners(cases: Sequence[frozenset[tuple[str, ...]]]) -> list[int]:
    """Return the numbers of few cases that together have every value: each time the case with most values to come."""
    wanted = set[tuple[str, ...]]().union(*cases)
    kept: list[int] = []
    while wanted:
        best = max(range(len(cases)), key=lambda number: len(cases[number] & wanted))
        kept.append(best)
        wanted -= cases[best]
    return kept
