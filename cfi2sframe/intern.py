# SPDX-License-Identifier: Apache-2.0
"""Look-up by identity, and the contract that makes it useful: which equal objects are one object.

Two thirds of a large library's functions repeat rows of others. So each stage of a conversion computes once for each
distinct object, and looks the result up by the object's identity: to hash nested tuples at every stage would cost more
than the stage. These places make equal objects one:

| objects | interned by | scope |
|---|---|---|
| `RowState`, tuples of them | `dwarf.rules.Rows` | a file |
| `FunctionBody` | `lower.Lowering`, one for each distinct program | a conversion |
| `FunctionBody` of a section that was read | `sframe.read`, one for each distinct one | a section |

Without them, conversions would take longer and give the same result: nothing may depend on whether equal objects are
one. A test holds every row of this table.
"""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

K = TypeVar("K")
V = TypeVar("V")


class IdentityMap(Generic[K, V]):
    """Values made once for each key object. Keeps its keys alive, because a later object could get a freed one's id."""

    __slots__ = ("_keys", "_make", "_values")

    def __init__(self, make: Callable[[K], V]) -> None:
        self._make = make
        self._values: dict[int, V] = {}
        self._keys: list[K] = []

    def __getitem__(self, key: K) -> V:
        try:
            return self._values[id(key)]
        except KeyError:
            pass
        value = self._values[id(key)] = self._make(key)
        self._keys.append(key)
        return value


def identities(objects: Iterable[object]) -> tuple[int, ...]:
    """Return a key by which to find what belongs to some objects; whoever keeps it has to keep them alive."""
    return tuple(map(id, objects))


def distinct(objects: Iterable[K]) -> tuple[list[K], list[int]]:
    """Return the distinct objects in the order of their first occurrence, and for each object its number among them."""
    kept = list(objects)
    identities = list(map(id, kept))
    firsts = dict(zip(identities, kept, strict=True))
    number_of = dict(zip(firsts, count(), strict=False))
    return list(firsts.values()), list(map(number_of.__getitem__, identities))
