# SPDX-License-Identifier: Apache-2.0
"""All entries of a CFI section at once."""

from typing import NamedTuple

from cfi2sframe.dwarf.entries import DwarfFde, EntryWalk
from cfi2sframe.dwarf.numbers import PointerBases
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.errors import CfiError


class CfiTable(NamedTuple):
    """The sound FDEs, the damaged ones, and the number of CIEs that were read."""

    fdes: tuple[DwarfFde, ...]
    failures: tuple[CfiError, ...]
    cie_count: int


def parse_entries(section: CfiSection, bases: PointerBases) -> CfiTable:
    """Raises `CfiError` as `EntryWalk.fdes` does."""
    walk = EntryWalk(section, bases)
    fdes = tuple(walk.fdes())
    return CfiTable(fdes, tuple(walk.failures), len(walk.cies))
