# SPDX-License-Identifier: Apache-2.0
"""A first block without stubs, which linkers write, too: its CFI describes it, and nothing is left out."""

from __future__ import annotations

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.conversion import convert_image
from cfi2sframe.stubs.records import StubReason
from tests.support import cfi_asm as asm
from tests.support.samples import cie_of
from tests.support.stubs.handmade import push_and_leave

TEXT_VADDR, PLT_VADDR, FRAME_VADDR = 0x1000, 0x2000, 0x3000


def stubs_of(*fdes: asm.Fde) -> tuple[list[StubReason], list[int]]:
    """Return why stubs of a file with a lone first block are left out, and the addresses that are described."""
    frame = asm.EhFrame((*fdes, asm.Terminator()), FRAME_VADDR).assemble()
    sections = (
        asm.Section(".eh_frame", frame, 1, 2, FRAME_VADDR, align=8),
        asm.Section(".text", b"\x90" * 0x20, 1, 6, TEXT_VADDR),
        asm.Section(".plt", push_and_leave(), 1, 6, PLT_VADDR),
    )
    segments = (asm.Segment(1, 4, (".eh_frame",)), asm.Segment(1, 5, (".text", ".plt")))
    image = load(asm.elf_file(AMD64.elf_machine, sections, file_type=3, segments=segments), "lone")
    conversion = convert_image(image)
    left_out = [skip.reason for skip in conversion.code_map.stubs.left_out]
    return left_out, [function.start_vaddr for function in conversion.section.functions]


def test_a_first_block_that_its_cfi_describes() -> None:
    text = asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x20, ())
    rows = (asm.def_cfa_offset(16), asm.advance(6), asm.def_cfa_offset(24))
    assert stubs_of(text, asm.Fde(cie_of(AMD64), PLT_VADDR, 0x10, rows)) == ([], [TEXT_VADDR, PLT_VADDR])
    assert stubs_of(text) == ([StubReason.ENTRY_UNKNOWN], [TEXT_VADDR])
