# SPDX-License-Identifier: Apache-2.0
"""The data flow over all code of an image, as if it had no CFI but for where functions start."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from cfi2sframe.audit.landing_pads import LandingPads
from cfi2sframe.code.decoder import Decoder
from cfi2sframe.code.entries import find_entries
from cfi2sframe.code.flow import FlowAnalysis
from cfi2sframe.code.machines import code_arch_of
from cfi2sframe.code.surroundings import ImageSurroundings
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.elf.dynamic import dynamic_words
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import ElfError
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.audit.rows_in_force import RowsInForce
    from cfi2sframe.code.effects import CodeArch
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage


class _Entry(Enum):
    """What starts at an address."""

    FUNCTION = 0
    OUTERMOST = 1
    """A function without a caller."""
    WITHOUT_CFI = 2


def follow(image: ElfImage, rows: RowsInForce) -> FlowAnalysis:
    """Follow control through an image's code, from the starts of FDEs and from the other entries that are certain.

    The start of a cold part of a function is no entry: its CFI is not that of one, and jumps lead there. Raises
    `InputError` where capstone cannot be loaded.
    """
    arch = code_arch_of(image.arch)
    decoder = Decoder(image, arch, [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges])
    pads = LandingPads(image, rows.entries)
    found = find_entries(image, decoder, ())
    starts = set(rows.pieces.starts)
    around = ImageSurroundings(image, decoder, [], found.certain | starts, found.possible, arch)
    flow = FlowAnalysis(decoder, arch, around.answers()._replace(landing_pad=pads.pad_of))
    if found.process_entry is not None:
        flow.enter(found.process_entry, has_caller=False)
    lazy = set(_lazy_entries(image))
    for vaddr in sorted(found.certain | starts | lazy):
        if vaddr == found.process_entry or decoder.span_of(vaddr) is None or _is_before_pad(vaddr, decoder, pads):
            continue
        row = rows.at(vaddr).row
        kind = _kind_of(row, arch, is_function=vaddr in found.certain)
        if kind is not None or vaddr in lazy:
            flow.enter(vaddr, has_caller=kind is not _Entry.OUTERMOST, is_firm=kind not in (None, _Entry.WITHOUT_CFI))
    flow.run()
    return flow


def _is_before_pad(vaddr: int, decoder: Decoder, pads: LandingPads) -> bool:
    """Whether an instruction without effect stands before a landing pad: the first one of a part cannot be at 0."""
    decoded = decoder.at(vaddr)
    if decoded is None or decoded.effect is None or not decoded.effect.is_padding:
        return False
    return vaddr + decoded.size in pads


def _kind_of(row: RowState | None, arch: CodeArch, *, is_function: bool) -> _Entry | None:
    """Return what a row says of a function that may start with it; None: it is a part that other code leads to."""
    if row is None:
        return _Entry.WITHOUT_CFI
    if row.ra is NoRule.UNDEFINED:
        return _Entry.OUTERMOST
    unchanged = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)
    is_ra_there = row.ra in unchanged if arch.ra_slot is None else row.ra == Rule(None, arch.ra_slot, deref=True)
    # A symbol makes up for what a row says of FP, which may be wrong.
    if row.cfa != Rule(arch.sp_register, -arch.entry_sp_offset, deref=False) or not is_ra_there:
        return None
    return _Entry.FUNCTION if row.fp in unchanged or is_function else None


def _lazy_entries(image: ElfImage) -> Iterator[int]:
    """Yield where the stubs of functions that are bound lazily continue: what their words hold in the file."""
    if image.is_relocatable:
        return
    try:
        names = dynamic_words(image)[0]
    except ElfError:
        return
    for vaddr in names:
        word = image.bytes_at(vaddr, 8)
        if word is not None:
            yield int.from_bytes(word, "little" if image.byte_order == "<" else "big")
