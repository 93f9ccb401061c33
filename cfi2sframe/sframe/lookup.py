# SPDX-License-Identifier: Apache-2.0
"""Find the row in force at a PC, as a stack tracer does (version 3, 2.3.3.1 "PC types")."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.sframe.constants import SFRAME_VERSION_1

if TYPE_CHECKING:
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedRow, DecodedSection


class Found(NamedTuple):
    """The function that holds a PC, and the row in force there (None: the function's rows start later)."""

    function: DecodedFunction
    row: DecodedRow | None


class Lookup:
    """A searchable view of a decoded section; unsorted sections are sorted once."""

    def __init__(self, section: DecodedSection) -> None:
        self.version = section.header.version
        self.functions = sorted(section.functions, key=_start_of)
        self.starts = [function.start_vaddr for function in self.functions]

    def find(self, pc: int) -> Found | None:
        """Return the function and the row for the virtual address `pc`, or None where no function holds it."""
        function = self.holder_of(pc)
        return None if function is None else Found(function, row_at(function, pc, self.version))

    def holder_of(self, pc: int) -> DecodedFunction | None:
        """Return the function that holds the virtual address `pc`: of several, the one that starts last; or None."""
        index = bisect_right(self.starts, pc) - 1
        if index < 0:
            return None
        function = self.functions[index]
        return function if pc - function.start_vaddr < function.size else None


def row_at(function: DecodedFunction, pc: int, version: int) -> DecodedRow | None:
    """Return the row of a function for an address inside it, or None where its rows start later.

    `version` is the section's. PCINC: the last row that starts at or before the PC's distance from the function's
    start. PCMASK: the same with the distance from the start of the repeating block; version 1 stores no block size, and
    its readers test the PC's bits instead.
    """
    rows = function.rows
    if function.is_pcmask:
        if version == SFRAME_VERSION_1:
            matching = [r for r in rows if pc & r.row.start_delta >= r.row.start_delta]
            return matching[-1] if matching else None
        if function.repeat_size == 0:
            return None
        distance = (pc - function.start_vaddr) % function.repeat_size
    else:
        distance = pc - function.start_vaddr
    index = bisect_right(rows, distance, key=_delta_of) - 1
    return rows[index] if index >= 0 else None


def _start_of(function: DecodedFunction) -> int:
    return function.start_vaddr


def _delta_of(row: DecodedRow) -> int:
    return row.row.start_delta
