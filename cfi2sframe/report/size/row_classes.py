# SPDX-License-Identifier: Apache-2.0
"""The classes in which reports count functions by their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_BOUNDS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
_OPEN_CLASS: Final = "65+"
#: The classes in which functions are counted by their rows.
ROWS_CLASSES: Final = ("0", "1", "2", "3", "4", "5-6", "7-8", "9-12", "13-16", "17-32", "33-64", _OPEN_CLASS)


def rows_class(row_count: int) -> str:
    """Return the class of a function with that many rows."""
    return next((name for name, bound in zip(ROWS_CLASSES, _BOUNDS, strict=False) if row_count <= bound), _OPEN_CLASS)


def in_class_order(rows_per_function: Mapping[str, int]) -> dict[str, int]:
    """Return counts by class of row count, in the order of `ROWS_CLASSES` and without those of 0."""
    return {name: count for name in ROWS_CLASSES if (count := rows_per_function.get(name))}
