# SPDX-License-Identifier: Apache-2.0
"""Who enters a block that pushes for the dynamic loader and that no stub jumps to.

It may be a first block to which GOT slots lead before they are bound, or the trampoline of lazy TLS descriptors: both
are entered like functions. CFI knows, too. Otherwise (as with the first block of a row without stubs, which some
linkers leave behind) nothing enters it, and no frame can be given.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf import constants as c
from cfi2sframe.plt.flow import Frame
from cfi2sframe.plt.reconcile import depth_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.expression import Evaluator
    from cfi2sframe.plt.model import StubArch, Unit
    from cfi2sframe.plt.records import CfiAt

#: The tag by which the dynamic section names the trampoline of lazy TLS descriptors.
_DT_TLSDESC_PLT: Final = 0x6FFFFEF6


def dynamic_entries(image: ElfImage) -> dict[int, int]:
    """Return the entries of the dynamic section by tag; a tag that repeats keeps its last value."""
    for segment in image.segments:
        if segment.type == c.PT_DYNAMIC:
            data = image.bytes_at(segment.vaddr, segment.file_size) or b""
            usable = data[: len(data) // 16 * 16]
            return dict(struct.iter_unpack(image.byte_order + "QQ", usable))
    return {}


class Entries:
    """Looks for what enters the first blocks of a file; GOT slots are read when they are first asked for."""

    def __init__(
        self,
        image: ElfImage,
        units: Sequence[Unit],
        stubs: StubArch,
        entry: Frame,
        cfi_at: CfiAt,
        evaluator: Evaluator,
    ) -> None:
        self.image = image
        self.evaluator = evaluator
        self.units = units
        self.stubs = stubs
        self.entry = entry
        self.cfi_at = cfi_at

    def of_first_block(self, unit: Unit) -> Frame | None:
        """Return the frame at the entry of a first block, or None when nothing says who enters it."""
        state = self.cfi_at(unit.start_vaddr).state
        if state is not None:
            depth = depth_of(self.evaluator, state, unit.start_vaddr)
            return None if depth is None else Frame(depth)
        return self.entry if unit.start_vaddr in self._pointed_to else None

    @cached_property
    def _pointed_to(self) -> frozenset[int]:
        """The addresses that the GOT slots of stubs hold, and the trampoline of TLS descriptors."""
        found = {dynamic_entries(self.image).get(_DT_TLSDESC_PLT, 0)}
        for unit in self.units:
            # All slots of a row are bound alike: its first stub speaks for the others.
            first = unit.data[: unit.block_size]
            for vaddr in self.stubs.words_read(unit.block, first, unit.start_vaddr):
                word = self.image.bytes_at(vaddr, 8)
                if word is not None:
                    found.add(struct.unpack(self.image.byte_order + "Q", word)[0])
        return frozenset(found)
