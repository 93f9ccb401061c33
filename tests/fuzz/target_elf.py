# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as an ELF file, through every reader."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.elf.constants import SHT_DYNSYM, SHT_SYMTAB
from cfi2sframe.errors import Cfi2SFrameError
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_conversions, check_existing
from tests.support import cfi_asm as asm
from tests.support.go_table import GoFunction, GoTable, go_file
from tests.support.samples import FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, cie_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage

_SOME = 64


def run(data: bytes) -> None:
    """Load a file, look at all its parts, convert it in every version, at a level that its size chooses."""
    try:
        image = load(data)
    except Cfi2SFrameError:
        return
    _look_around(image)
    check_existing(image)
    check_conversions(image, LEVELS[len(data) % len(LEVELS)])


def _look_around(image: ElfImage) -> None:
    for section in islice(image.sections, _SOME):
        try:
            image.section_bytes(section)
            if section.type in (SHT_SYMTAB, SHT_DYNSYM):
                vaddrs = [s.vaddr for s in islice(image.symbols(section), _SOME) if s.vaddr is not None]
                image.names_of(vaddrs)
        except Cfi2SFrameError:
            continue
        image.place(section.vaddr)
        image.code_range_of(section.vaddr)
        image.bytes_at(section.vaddr, 16)
    image.end_of_segments()


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield files of every ABI, linked ones and objects, with and without section headers."""
    for arch in make.ARCHES:
        name = arch.name.lower().replace(" ", "-")
        yield f"{name}-linked", make.linked_file(arch)
        yield f"{name}-object", make.small_object(arch)
    yield "no-section-headers", make.linked_file(make.ARCHES[0], section_headers=False)
    yield "debug-frame", make.linked_file(make.ARCHES[0], debug_frame=True)
    yield "all-sources", _all_sources()


def _all_sources() -> bytes:
    """Return a file with all sources of CFI; they overlap, and contradict one another."""
    cies = [cie_of(AMD64), cie_of(AMD64, augmentation="")]
    body = (asm.advance(4), asm.def_cfa_offset(16))
    debug = (asm.Fde(cies[1], TEXT_VADDR, 32, body), asm.Fde(cies[1], TEXT_VADDR + 48, 32, body))
    eh_frame = (
        asm.Fde(cies[0], TEXT_VADDR + 8, 16, body),
        asm.Fde(cies[0], TEXT_VADDR + 64, 32, body),
        asm.Terminator(),
    )
    table = GoTable((GoFunction(0, ((4, 0), (60, 8))), GoFunction(64, ((4, 0), (28, 16)))), 128)
    return go_file(
        AMD64,
        table,
        asm.Section(
            ".eh_frame",
            asm.EhFrame((*eh_frame, asm.Terminator()), FRAME_VADDR).assemble(),
            1,
            SHF_ALLOC,
            FRAME_VADDR,
            align=8,
        ),
        asm.Section(".debug_frame", asm.EhFrame(debug, debug_frame=True).assemble()),
    )
