# SPDX-License-Identifier: Apache-2.0
"""The frame at the entry of a first block: one that pushes for the dynamic loader, and to which no stub jumps.

Its CFI gives the frame. Without CFI, the block may be entered like a function: through GOT slots that are not bound
yet, or as the trampoline of lazy TLS descriptors. Some linkers emit a first block without stubs: nothing enters it, and
it has no frame.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.plt.cfi_agreement import depth_of
from cfi2sframe.plt.flow import StubFrame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.scan_records import CfiAt
    from cfi2sframe.plt.sp_distance import SpDistances
    from cfi2sframe.plt.stub_model import StubArch, Unit

#: The tag of the dynamic section for the trampoline of lazy TLS descriptors (an address).
_DT_TLSDESC_PLT: Final = 0x6FFFFEF6


class FirstBlockEntries:
    """Finds the frames at the entries of first blocks; GOT slots are read when they are first needed."""

    def __init__(
        self,
        image: ElfImage,
        units: Sequence[Unit],
        stubs: StubArch,
        entry: StubFrame,
        cfi_at: CfiAt,
        evaluator: SpDistances,
    ) -> None:
        self.image = image
        self.evaluator = evaluator
        self.units = units
        self.stubs = stubs
        self.entry = entry
        self.cfi_at = cfi_at

    def of_first_block(self, unit: Unit) -> StubFrame | None:
        """Return the frame at the entry of a first block, or None when nothing is known to enter it."""
        state = self.cfi_at(unit.start_vaddr).state
        if state is not None:
            depth = depth_of(self.evaluator, state, unit.start_vaddr)
            return None if depth is None else StubFrame(depth)
        return self.entry if unit.start_vaddr in self._pointed_to else None

    @cached_property
    def _pointed_to(self) -> frozenset[int]:
        """The addresses in the GOT slots of stubs, and that of the trampoline of TLS descriptors."""
        found = {dynamic_entries(self.image).get(_DT_TLSDESC_PLT, 0)}
        for unit in self.units:
            # All slots of a run are bound in the same way, so the first stub is enough.
            first = unit.data[: unit.block_size]
            for vaddr in self.stubs.words_read(unit.block, first, unit.start_vaddr):
                word = self.image.bytes_at(vaddr, 8)
                if word is not None:
                    found.add(struct.unpack(self.image.byte_order + "Q", word)[0])
        return frozenset(found)
