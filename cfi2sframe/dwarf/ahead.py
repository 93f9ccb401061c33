# SPDX-License-Identifier: Apache-2.0
"""The later FDEs of a large section, read by another process while this one is at the earlier ones.

It goes through the entries and cuts instruction strings: most of what an FDE costs, and what comes of it are columns of
numbers, which are little to send. What they mean is found out by this process alone.
"""

from __future__ import annotations

from array import array
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cfi2sframe.beside import Beside
from cfi2sframe.dwarf.instructions import Cutter
from cfi2sframe.dwarf.machine import Codes
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from cfi2sframe.dwarf.entries import DwarfCie, EntryWalk
    from cfi2sframe.dwarf.machine import CutString

#: Bytes of a section from which on two processes take less time than one.
MIN_SIZE: Final = 1 << 19
#: How much of a section this process reads alone: it has more to do with every FDE, and so both are done at once.
_OWN_SHARE: Final = 0.35


class LaterFdes(NamedTuple):
    """FDEs as columns: offset, function start and size, and the number of the program.

    A program is a CIE with an instruction string. The other columns have an entry for each, in the order in which the
    whole section comes to them: the offsets of the first FDE that has it, and of the first that has its CIE; and for
    those that no earlier FDE has, the string as it is cut, or None where it takes more than that.
    """

    offsets: array[int]
    starts: array[int]
    sizes: array[int]
    programs: array[int]
    first_fdes: list[int]
    first_fdes_of_cie: list[int]
    strings: list[CutString | None]


class ReadAhead:
    """Another process, at the FDEs from `first_offset` on. The walk must not be used otherwise."""

    def __init__(self, walk: EntryWalk) -> None:
        self.first_offset: Final = int(len(walk.data) * _OWN_SHARE)
        self._other: Final = Beside(partial(read_later, walk, self.first_offset))

    def result(self) -> LaterFdes | None:
        """Wait for the FDEs, and return them; None where there are damaged ones, or no other process. Once."""
        return cast("LaterFdes | None", self._other.result())

    def stop(self) -> None:
        """End the other process, if its FDEs have not been asked for."""
        self._other.stop()


def read_later(walk: EntryWalk, first_offset: int) -> LaterFdes:
    """Read the FDEs from an offset on. Raises `CfiError` when any FDE of the section is damaged."""
    cutter = Cutter(0)
    tables: dict[DwarfCie, tuple[dict[bytes, int], Codes, int]] = {}
    known: dict[tuple[bytes, ...], tuple[bytes, ...]] = {}
    later = LaterFdes(array("Q"), array("Q"), array("Q"), array("Q"), [], [], [])
    offsets, starts, sizes, programs, first_fdes, first_fdes_of_cie, strings = later
    for offset, cie, start, size, instructions, _, _ in walk.fdes():
        table = tables.get(cie)
        if table is None:
            table = tables[cie] = {}, Codes(walk.bases.byte_order, cie.code_alignment), offset
        numbers, code_of, first_of_cie = table
        number = numbers.get(instructions)
        if number is None:
            number = numbers[instructions] = len(first_fdes)
            first_fdes.append(offset)
            first_fdes_of_cie.append(first_of_cie)
            string = _cut(cutter, code_of, instructions) if offset >= first_offset else None
            if string is not None:
                # What is one object is sent once, and is one object again.
                string = known.setdefault(string[0], string[0]), string[1]
            strings.append(string)
        if offset >= first_offset:
            offsets.append(offset)
            starts.append(start)
            sizes.append(size)
            programs.append(number)
    if walk.failures:
        raise CfiError("there are damaged FDEs")
    return later


def _cut(cutter: Cutter, code_of: Codes, instructions: bytes) -> CutString | None:
    """Cut a string; None when it takes a walk, or has rows of no length."""
    chunks = cutter.cut(instructions)
    if chunks is None:
        return None
    codes = tuple(map(code_of.__getitem__, chunks))
    advances = list(map(code_of.advances.__getitem__, chunks))
    return None if 0 in advances else (codes, tuple(accumulate(advances, initial=0)))
