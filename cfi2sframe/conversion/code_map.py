# SPDX-License-Identifier: Apache-2.0
"""Give each address of the code to one FDE or one PLT stub, and find the padding after functions.

For stubs, instructions override the CFI.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.conversion.overlaps import Pieces, Ranges, resolve_overlaps
from cfi2sframe.conversion.reasons import Fate
from cfi2sframe.elf.padding import find_padding
from cfi2sframe.stubs.records import StubReason, StubScan

if TYPE_CHECKING:
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.range_map import Span
    from cfi2sframe.stubs.records import StubSkip


class CodeMap(NamedTuple):
    """The virtual addresses of an image, each given to one FDE or to the stubs at most.

    `pieces` are the ranges of FDEs, and `without_code` the fates of those that have none, by their numbers. `padding`
    follows pieces: the functions before it, if they are described, reach over it.
    """

    pieces: Pieces
    stubs: StubScan
    without_code: dict[int, Fate]
    padding: tuple[Span, ...]


def map_code(image: ElfImage, entries: CfiEntries, version: int) -> CodeMap:
    """Give each address to one FDE or to the stubs, which only linked files have; `version` is that of SFrame.

    Raises `InputError` when capstone cannot be loaded.
    """
    ranges = Ranges(entries.starts, entries.sizes, entries.program_numbers, entries.precedence)
    resolved = resolve_overlaps(ranges, image.not_code)
    pieces, stubs = resolved.pieces, StubScan()
    if not image.is_relocatable:
        from cfi2sframe.stubs.scan import scan_stubs

        stubs = _without_lone_blocks(scan_stubs(image, version), pieces)
        pieces = pieces.without([(stub.start_vaddr, stub.end_vaddr) for stub in stubs.functions])
    # A stub may leave an FDE a piece elsewhere.
    replaced = frozenset(resolved.pieces.numbers).difference(pieces.numbers)
    without_code = resolved.dropped | dict.fromkeys(replaced, Fate.STUBS)
    # Padding after a stub ends nothing.
    starts = sorted([*pieces.starts, *[stub.start_vaddr for stub in stubs.functions]])
    stub_ends = {stub.end_vaddr for stub in stubs.functions}
    padding = find_padding(image, starts, sorted([*pieces.ends, *stub_ends]))
    after_pieces = tuple([gap for gap in padding if gap.start not in stub_ends])
    return CodeMap(pieces, stubs, without_code, after_pieces)


def _without_lone_blocks(stubs: StubScan, pieces: Pieces) -> StubScan:
    """Return the stubs, but not as left out those first blocks that nothing enters and that an FDE describes."""

    def is_left(skip: StubSkip) -> bool:
        if skip.reason is not StubReason.ENTRY_UNKNOWN:
            return True
        index = bisect_right(pieces.starts, skip.start_vaddr) - 1
        return index < 0 or skip.start_vaddr + skip.size > pieces.ends[index]

    return stubs._replace(left_out=tuple(filter(is_left, stubs.left_out)))
