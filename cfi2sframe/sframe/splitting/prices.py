# SPDX-License-Identifier: Apache-2.0
"""What ranges, row lists, and the rows that readers walk cost, in bytes."""

from __future__ import annotations

from typing import NamedTuple

from cfi2sframe.sframe import constants as s


class Prices(NamedTuple):
    """What a section's version charges, in bytes.

    `record_size` is that of a function's record, `attribute_size` that of the attribute before a row list (version 3).
    `max_rows` is the most rows that a range may have. `walk_price` is what may be spent to save a reader one row at one
    address.
    """

    record_size: int
    attribute_size: int
    max_rows: int
    walk_price: float = 0.0

    @classmethod
    def of(cls, version: int, max_rows: int) -> Prices:
        """Return the prices of a version."""
        attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
        return cls(s.FDE_SIZE[version], attribute_size, max_rows)

    @property
    def shares_beginnings(self) -> bool:
        """Whether a row list that is the beginning of another costs nothing: it has no attribute of its own."""
        return not self.attribute_size
