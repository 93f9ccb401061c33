# SPDX-License-Identifier: Apache-2.0
"""The accounts of several files as a table: the answer for all of them, a line for each, and the sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.printable import printable
from cfi2sframe.render.coverage_text import headline, share
from cfi2sframe.report.code_bytes import ByteCounts
from cfi2sframe.report.coverage import FunctionCounts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.report.coverage import Coverage

_HEADING: Final = ("described", "bytes of code", "without CFI", "left out", "functions", "not in full")
#: Where rows from instructions were made.
_CODE_HEADING: Final = ("from code",)


class FileCoverage(NamedTuple):
    """What a table needs of an account; accounts of thousands of files would not fit into memory."""

    file: str
    version: int
    bytes: ByteCounts
    functions: FunctionCounts

    @classmethod
    def of(cls, coverage: Coverage) -> FileCoverage:
        """Return what the table shows of an account."""
        return cls(coverage.file, coverage.version, coverage.bytes, coverage.functions)


def total_of(files: Sequence[FileCoverage]) -> FileCoverage:
    """Return the sums of some files, of which there is one at least."""
    return FileCoverage(
        "total",
        files[0].version,
        ByteCounts(*map(sum, zip(*(file.bytes for file in files), strict=True))),
        FunctionCounts(*map(sum, zip(*(file.functions for file in files), strict=True))),
    )


def table_lines(files: Sequence[FileCoverage]) -> Iterator[str]:
    """Yield the lines of the table. Files without any are no table."""
    if not files:
        return
    total = total_of(files)
    count = f"{len(files):,} file{'' if len(files) == 1 else 's'}"
    yield f"{count}: {headline(total.version, total.bytes, total.functions)}"
    yield ""
    heading = _HEADING + _CODE_HEADING if total.bytes.from_code else _HEADING
    rows = [_cells(file)[: len(heading)] for file in (*files, total)]
    widths = [max(map(len, column)) for column in zip(heading, *rows, strict=True)]
    for cells, name in (
        (heading, "file"),
        *zip(rows, (*(printable(file.file) for file in files), "total"), strict=True),
    ):
        yield "  " + "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True)) + f"  {name}"


def _cells(file: FileCoverage) -> tuple[str, ...]:
    counts, functions = file.bytes, file.functions
    numbers = (counts.code, counts.uncovered, counts.left_out, functions.wanted, functions.wanted - functions.described)
    return (share(counts.described, counts.code), *(f"{number:,}" for number in (*numbers, counts.from_code)))
