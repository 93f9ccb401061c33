# SPDX-License-Identifier: Apache-2.0
"""Find the ranges of stubs in a linked file: sections of certain names or, without sections, by dynamic relocations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import SHT_NOBITS
from cfi2sframe.errors import ElfError
from cfi2sframe.plt.stub_model import StubRange
from cfi2sframe.plt.stub_reasons import StubReason, StubSkip
from cfi2sframe.plt.without_sections import find_in_segments

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.block_decoder import BlockDecoder
    from cfi2sframe.plt.scan_records import CfiAt
    from cfi2sframe.plt.sp_distance import SpDistances

#: .plt, .plt.sec, .plt.got, .plt.bnd, .iplt and the like.
_NAME_PREFIXES: Final = (".plt", ".iplt")


def find_stubs(
    image: ElfImage, cfi_at: CfiAt, decoder: BlockDecoder, evaluator: SpDistances
) -> tuple[tuple[StubRange, ...], tuple[StubSkip, ...]]:
    """Return the ranges of stubs in ascending order without overlap, and those that cannot be read.

    `cfi_at`, the decoder and the evaluator are used only for files without section headers.
    """
    if image.is_relocatable:
        return (), ()
    if not image.sections:
        return find_in_segments(image, cfi_at, decoder, evaluator), ()
    ranges: list[StubRange] = []
    left_out: list[StubSkip] = []
    end_vaddr = 0
    for section in sorted(image.sections, key=lambda s: s.vaddr):
        if not (section.is_code and section.size and section.name.startswith(_NAME_PREFIXES)):
            continue
        if section.vaddr < end_vaddr:
            left_out.append(StubSkip(section.vaddr, section.size, section.name, StubReason.OVERLAP, ""))
            continue
        end_vaddr = section.end_vaddr
        try:
            data = b"" if section.type == SHT_NOBITS else image.section_bytes(section)
            # Counted, because sections may overlap in the file.
        except ElfError:
            data = b""
        if data:
            ranges.append(StubRange(section.name, section.vaddr, data))
        else:
            left_out.append(StubSkip(section.vaddr, section.size, section.name, StubReason.NOT_IN_FILE, ""))
    return tuple(ranges), tuple(left_out)
