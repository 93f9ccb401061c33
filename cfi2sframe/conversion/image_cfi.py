# SPDX-License-Identifier: Apache-2.0
"""All call frame information of an image: the FDEs of its sources, and the rows of their programs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.conversion.reasons import UnreadSource
from cfi2sframe.dwarf.programs import EntriesReader
from cfi2sframe.errors import CfiError, InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.dwarf.programs import CfiEntries, DamagedFde, Program
    from cfi2sframe.dwarf.row_section import RowSection
    from cfi2sframe.elf.cfi import CfiSection
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.states import Underived


class Cfi(NamedTuple):
    """All call frame information of an image; `damaged` is sorted by section and offset.

    `sections` are those that were read, `unread` those that could not be; the best source is never among these.
    `underived` is the code without CFI from whose instructions no rows follow; None where nobody asked for such rows.
    """

    sections: tuple[CfiSection | RowSection, ...]
    entries: CfiEntries
    damaged: tuple[DamagedFde, ...]
    unread: tuple[UnreadSource, ...] = ()
    underived: tuple[Underived, ...] | None = None

    def required(self) -> Cfi:
        """Return the CFI. Raises `InputError` when all FDEs are damaged."""
        if not self.entries and self.damaged:
            first = self.damaged[0].error
            raise InputError(f"no usable FDE; the first is damaged: {first.reason}", first.where, first.offset)
        return self

    def joined(self, other: Cfi) -> Cfi:
        """Return this CFI with that of lesser sources after it."""
        entries = self.entries.joined(other.entries)
        return self._replace(
            sections=self.sections + other.sections, entries=entries, damaged=self.damaged + other.damaged
        )

    @property
    def programs(self) -> Sequence[Program]:
        """The distinct programs, by their numbers."""
        return self.entries.programs


def read_programs(
    image: ElfImage, sections: Sequence[CfiSection | RowSection], unread: Sequence[UnreadSource] = ()
) -> Cfi:
    """Read the FDEs of an image's CFI sections, the best source first, and run their programs.

    `unread` are sources that are known not to be readable; a section that cannot be walked joins them. Raises
    `CfiError` when that is one of the best source.
    """
    best = [section for section in sections if section.kind == sections[0].kind]
    cfi = Cfi(tuple(best), *EntriesReader(image).read(best))
    not_read = list(unread)
    for section in sections[len(best) :]:
        try:
            cfi = cfi.joined(Cfi((section,), *EntriesReader(image).read([section])))
        except CfiError as error:
            not_read.append(UnreadSource.of(section.name, error))
    return cfi._replace(unread=tuple(not_read))
