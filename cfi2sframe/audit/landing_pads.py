# SPDX-License-Identifier: Apache-2.0
"""Where calls continue when an exception is thrown: the call site tables of C++'s language-specific data areas.

Only the unwinder leads to such code (LSB, "Exception Frames"; the tables are those of GCC's and LLVM's personality
routines). Its frame is that of the call, with the registers that calls keep.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.instructions import ADVANCES, read_instructions
from cfi2sframe.dwarf.leb128 import read_uleb
from cfi2sframe.dwarf.pointer import PointerBases, fixed_size, read_pointer, read_value
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.dwarf.entries import DwarfFde
    from cfi2sframe.dwarf.programs import CfiEntries, CfiEntry
    from cfi2sframe.elf.image import ElfImage

#: The most bytes of a call site table that are read.
_MAX_TABLE_SIZE: Final = 1 << 20
_HEADER_SIZE: Final = 64


class CallSite(NamedTuple):
    """Calls at the virtual addresses `[start_vaddr, end_vaddr)`, whose exceptions are caught at `pad_vaddr`."""

    start_vaddr: int
    end_vaddr: int
    pad_vaddr: int


class LandingPads:
    """The landing pads of an image, by the calls that lead there. Damaged tables have none."""

    def __init__(self, image: ElfImage, entries: CfiEntries) -> None:
        self.image = image
        self._bases = PointerBases(image.byte_order, None, lambda _vaddr: None)
        sites: list[CallSite] = []
        for entry in entries if any(_has_area(program.cie.lsda_encoding) for program in entries.programs) else ():
            try:
                sites += self._sites(entry)
            except CfiError:
                continue
        self._sites_by_start = sorted(sites)
        self._starts = [site.start_vaddr for site in self._sites_by_start]
        self._pads = {site.pad_vaddr for site in sites}

    def pad_of(self, vaddr: int) -> int | None:
        """Return where the call at an address continues after an exception; None where it does not."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0 or vaddr >= self._sites_by_start[index].end_vaddr:
            return None
        return self._sites_by_start[index].pad_vaddr

    def __contains__(self, vaddr: object) -> bool:
        """Whether an address is that of a landing pad."""
        return vaddr in self._pads

    def _sites(self, entry: CfiEntry) -> Iterator[CallSite]:
        """Yield the call sites of a function that have landing pads. Raises `CfiError` when they are damaged."""
        fde, section = entry.fde, entry.section
        encoding = fde.cie.lsda_encoding
        if not _has_area(encoding) or isinstance(section, RowSection):
            return
        size = fixed_size(encoding)
        if size is None:
            return
        place = fde.instructions_offset - size
        area, _ = read_pointer(section.data, place, encoding, self._bases, section.vaddr)
        if area == 0 or area == section.vaddr + place:
            return
        header = self.image.bytes_at(area, _HEADER_SIZE) or b""
        base, position = fde.pc_begin_vaddr, 1
        if header[:1] != bytes((d.DW_EH_PE_omit,)):
            base, position = read_pointer(header, 1, _byte(header, 0), self._bases, area)
        types, position = _byte(header, position), position + 1
        if types != d.DW_EH_PE_omit:
            _, position = read_uleb(header, position)
        form, position = _byte(header, position), position + 1
        length, position = read_uleb(header, position)
        if length > _MAX_TABLE_SIZE:
            raise CfiError("a call site table of more than a megabyte")
        pushed = _with_arguments(fde, self.image.byte_order)
        for site in self._table(self.image.bytes_at(area + position, length) or b"", form, fde.pc_begin_vaddr, base):
            # Where arguments are pushed, the unwinder pops them on the way, by an instruction that rows do not have.
            yield site._replace(end_vaddr=site.start_vaddr)
            for start, end in without([(site.start_vaddr, site.end_vaddr)], pushed):
                yield CallSite(start, end, site.pad_vaddr)

    def _table(self, table: bytes, form: int, function_vaddr: int, base: int) -> Iterator[CallSite]:
        position = 0
        while position < len(table):
            start, position = read_value(table, position, form, self.image.byte_order)
            size, position = read_value(table, position, form, self.image.byte_order)
            pad, position = read_value(table, position, form, self.image.byte_order)
            _, position = read_uleb(table, position)
            if pad:
                yield CallSite(function_vaddr + start, function_vaddr + start + size, base + pad)


def _has_area(encoding: int) -> bool:
    return encoding != d.DW_EH_PE_omit


def _with_arguments(fde: DwarfFde, byte_order: str) -> list[Span]:
    """Return where an FDE says that arguments are on the stack, ascending. Raises `CfiError` when it is damaged."""
    found: list[Span] = []
    if d.DW_CFA_GNU_args_size not in fde.instructions:
        return found
    vaddr, start_vaddr = fde.pc_begin_vaddr, None
    for each in read_instructions(fde.instructions, byte_order):
        if each.opcode == d.DW_CFA_set_loc:
            raise CfiError("DW_CFA_set_loc beside DW_CFA_GNU_args_size")
        if each.opcode in ADVANCES and isinstance(each.operands[0], int):
            vaddr += each.operands[0] * fde.cie.code_alignment
        if each.opcode == d.DW_CFA_GNU_args_size:
            if start_vaddr is not None:
                found.append(Span(start_vaddr, vaddr))
            start_vaddr = vaddr if each.operands[0] else None
    if start_vaddr is not None:
        found.append(Span(start_vaddr, fde.pc_begin_vaddr + fde.pc_range))
    return found


def _byte(data: bytes, offset: int) -> int:
    if offset >= len(data):
        raise CfiError("truncated language-specific data")
    return data[offset]
