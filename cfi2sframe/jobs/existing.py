# SPDX-License-Identifier: Apache-2.0
"""Whether the section that a file already has may be replaced without --replace."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.ranges import Span, touches, united
from cfi2sframe.errors import InputError
from cfi2sframe.printable import counted
from cfi2sframe.reasons import SkipReason
from cfi2sframe.sframe.constants import DEFAULT_ERRATA, SFRAME_VERSION_2

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion, Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Section

#: Start files and what else a linker adds have no more functions than these, beside stubs.
_FEW_FUNCTIONS: Final = 16


def options_for(image: ElfImage, options: Options) -> Options:
    """Return the options for a file that has a section: in version 2, its errata level if that is newer.

    The caller's choice of an errata level stays.
    """
    if options.version != SFRAME_VERSION_2 or options.errata is not None or (existing := _existing(image)) is None:
        return options
    return options._replace(errata=max(DEFAULT_ERRATA, existing.errata))


def _existing(image: ElfImage) -> Section | None:
    """Return the section that a file has; None where it is damaged."""
    from cfi2sframe.api import decode_existing

    try:
        return decode_existing(image)
    except InputError:
        return None


class Existing(NamedTuple):
    """Whether to replace the section, and why or why not. `is_kept`: in a tree, keeping it is no error."""

    is_replaced: bool
    reason: str
    is_kept: bool = False


def compare_existing(conversion: Conversion) -> Existing:
    """Compare the section that a file has with a new one: a linker's few rows for start files and PLT are replaced.

    The new section must have a row wherever the old one has, and end walks wherever that ends them. Rows may differ:
    GNU ld (2.44 to 2.47) describes .plt.got with a CFA that is 8 bytes too far.
    """
    from cfi2sframe.placing.linked import is_inserted
    from cfi2sframe.verification.answers import first_lost_row

    different = Existing(is_replaced=False, reason="the file already has a different .sframe section (use --replace)")
    image = conversion.image
    old = None if image.is_relocatable or is_inserted(image.data) else _existing(image)
    if old is None:
        return different
    stubs = united((stub.start_vaddr, stub.end_vaddr) for stub in conversion.code_map.stubs.functions)
    others = sum(not touches(stubs, Span(start, start + 1)) for start in old.starts)
    if others > _FEW_FUNCTIONS or sum(old.sizes) >= sum(conversion.section.sizes):
        return different
    # GNU as up to 2.45 gives these functions a caller.
    ends = united(
        (entry.fde.pc_begin_vaddr, entry.fde.pc_begin_vaddr + entry.fde.pc_range)
        for entry, why in conversion.skips
        if why.reason is SkipReason.RA_UNDEFINED
    )
    lost = first_lost_row(old, conversion.section, ends)
    if lost is None:
        return Existing(is_replaced=True, reason=f"takes the place of a section of {counted(old.row_count, 'row')}")
    if not lost.is_outermost:
        return different
    reason = f"the file has an .sframe section that ends walks at 0x{lost.vaddr:x}, which this version or errata cannot"
    return Existing(is_replaced=False, reason=f"{reason} (use --replace)", is_kept=True)
