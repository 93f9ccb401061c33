# SPDX-License-Identifier: Apache-2.0
"""The records of a size report. Every format is rendered from them, and every total is a sum of them.

Sizes count bytes. A part that is not there has size 0; what cannot be said at all is None.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

#: Upper bounds of the classes in which functions are counted by their rows; the last class is open.
_BUCKETS: Final = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32, 64)
ROWS_BUCKETS: Final = (
    *(str(bound) for bound in (0, 1, 2, 3, 4)),
    "5-6",
    "7-8",
    "9-12",
    "13-16",
    "17-32",
    "33-64",
    "65+",
)

Maker = Literal["cfi2sframe", "gnu"]
MAKERS: Final[tuple[Maker, ...]] = ("cfi2sframe", "gnu")


def rows_bucket(row_count: int) -> str:
    """Return the class of a function with that many rows."""
    return next((name for name, bound in zip(ROWS_BUCKETS, _BUCKETS, strict=False) if row_count <= bound), "65+")


class Parts(NamedTuple):
    """Where a section's bytes go; they add up to the section. `attributes` are version 3's."""

    header: int = 0
    function_table: int = 0
    attributes: int = 0
    rows: int = 0
    padding: int = 0

    @property
    def total(self) -> int:
        """The section's size."""
        return sum(self)


class Layout(NamedTuple):
    """A section of one version.

    Functions in it are `default_count` + `flexible_count` + `pcmask_count`. `row_sizes` counts rows by their size and
    `rows_per_function` functions by their rows (see `ROWS_BUCKETS`). `row_count` counts rows as they are stored, once
    where functions share them.
    """

    parts: Parts = Parts()
    default_count: int = 0
    flexible_count: int = 0
    pcmask_count: int = 0
    left_out_count: int = 0
    row_count: int = 0
    row_sizes: dict[int, int] = {}  # noqa: RUF012 - never written to
    rows_per_function: dict[str, int] = {}  # noqa: RUF012

    @property
    def size(self) -> int:
        """The section's size."""
        return self.parts.total

    @property
    def function_count(self) -> int:
        """The functions in the section."""
        return self.default_count + self.flexible_count + self.pcmask_count
