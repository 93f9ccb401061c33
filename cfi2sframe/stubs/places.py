# SPDX-License-Identifier: Apache-2.0
"""Places of stubs in a linked file: sections of certain names or, without sections, what dynamic relocations lead to.

GOT slots of lazy binding hold an address among the stubs: of the second half of a stub, which jumps to the first block,
or of the first block itself. From the first block on, rows of blocks are stubs as long as each block jumps to where a
slot leads that the dynamic loader fills, or to the first block.
"""

import re
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import product
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_tables
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import JUMP
from cfi2sframe.instructions.states import State, apply, word_of
from cfi2sframe.range_map import ADDRESS_END, Span
from cfi2sframe.stubs import StubSkip
from cfi2sframe.stubs.frames import StubInstruction, decoded
from cfi2sframe.why import Reason

#: .plt, .plt.sec, .plt.got, .plt.bnd, .iplt and the like.
_NAME_PREFIXES: Final = (".plt", ".iplt")
#: Linkers align each row of stubs; blocks have sizes that are multiples of `_UNIT`, up to `_MAX_BLOCK`.
_ALIGNMENT: Final = 16
_UNIT: Final = 8
_MAX_BLOCK: Final = 64
#: No stub is around so many bytes that only fill space.
_LONG_FILL: Final = 256


class StubRange(NamedTuple):
    """Stubs at `[start_vaddr, end_vaddr)`."""

    name: str
    start_vaddr: int
    end_vaddr: int


def find_stubs(image: ElfImage) -> tuple[tuple[StubRange, ...], tuple[StubSkip, ...]]:
    """Return the ranges of stubs in ascending order without overlap, and those that cannot be read.

    Long runs of bytes that fill space are in no range.
    """
    fill = re.compile(image.arch.fill, re.DOTALL)
    if not image.sections:
        return tuple(_rows(image)), ()
    ranges: list[StubRange] = []
    left_out: list[StubSkip] = []
    end_vaddr = total = 0
    for section in sorted(image.sections, key=lambda s: s.vaddr):
        if not (section.is_code and section.size and section.name.startswith(_NAME_PREFIXES)):
            continue
        total += section.size
        # In a file smaller than its sections, these share bytes.
        overlaps = section.vaddr < end_vaddr or total > len(image.data)
        end_vaddr = max(end_vaddr, section.end_vaddr)
        if overlaps or not _is_in_file(image, section):
            reason = Reason.OVERLAP if overlaps else Reason.NOT_IN_FILE
            left_out.append(StubSkip(section.vaddr, section.size, section.name, reason, ""))
            continue
        runs = [run.span() for run in fill.finditer(image.section_bytes(section)) if len(run[0]) >= _LONG_FILL]
        # The last operand before a run may look like a part of it.
        starts, ends = [0, *[end for _, end in runs]], [*[start + _ALIGNMENT for start, _ in runs], section.size]
        bounds = zip(starts, ends, strict=True)
        ranges += [StubRange(section.name, section.vaddr + a, section.vaddr + b) for a, b in bounds if a < b]
    return tuple(ranges), tuple(left_out)


def _is_in_file(image: ElfImage, section: ElfSection) -> bool:
    # Nothing is at addresses past 2^64.
    if section.type == c.SHT_NOBITS or section.end_vaddr > ADDRESS_END:
        return False
    try:
        return bool(image.section_bytes(section))
    except ElfError:
        return False


def _rows(image: ElfImage) -> Iterator[StubRange]:
    """Yield the rows of equal blocks in a file without section headers."""
    slots, lazy = _slots(image)
    if not lazy:
        return
    spans = [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges]
    decoder = Decoder(image, spans, "PLT stubs are described")
    lowest = min(lazy)
    last = next((found for _, found in _known(decoder, lowest) if found.ends_flow), None)
    # A second half of a stub leads back to the first block.
    target = last.effect.target if last is not None and last.effect is not None else None
    vaddr = first = target if target is not None and target <= lowest else lowest
    headers: Iterable[int] = range(0, _MAX_BLOCK + 1, _ALIGNMENT)
    while (end := _end_of_row(decoder, vaddr, headers, slots, first)) > vaddr:
        code = image.code_range_of(vaddr)
        yield StubRange("" if code is None else code.name, vaddr, end)
        vaddr, headers = -(-end // _ALIGNMENT) * _ALIGNMENT, (0,)


def _slots(image: ElfImage) -> tuple[set[int], set[int]]:
    """Return the words that dynamic relocations fill, and the addresses of code in those of lazy binding."""
    slots, lazy = set[int](), set[int]()
    with suppress(ElfError):
        for table in dynamic_tables(image):
            for vaddr, _info, _addend in table.records():
                slots.add(vaddr)
                word = image.bytes_at(vaddr, 8) if table.tag == c.DT_JMPREL else None
                value = 0 if word is None else struct.unpack(image.byte_order + "Q", word)[0]
                if value and image.code_range_of(value) is not None:
                    lazy.add(value)
    return slots, lazy


def _known(decoder: Decoder, vaddr: int) -> Iterator[tuple[int, StubInstruction]]:
    """Yield the instructions from an address on, up to one that stubs do not have."""
    span = decoder.span_of(vaddr)
    filled = 0
    for at, found in decoded(decoder, vaddr, vaddr if span is None else span.end):
        filled = filled + found.size if found.is_filler else 0
        if filled > _LONG_FILL or (found.effect is None and not found.is_filler):
            return
        yield at, found


def _end_of_row(decoder: Decoder, vaddr: int, headers: Iterable[int], slots: set[int], first: int) -> int:
    """Return where the row of stubs at an address ends, cut into the most blocks; its own address without any.

    Blocks have the same mnemonics, and each jumps to where one of the `slots` leads, or to the `first` block.
    """
    inside = dict(_known(decoder, vaddr))
    leading = set(_leading(decoder, inside, slots, first))
    best_end, best_count = vaddr, 0
    for size, header in product(range(_UNIT, _MAX_BLOCK + 1, _UNIT), headers):
        start = end = vaddr + header
        kind = _block(inside, start, size)
        while kind and _block(inside, end, size) == kind and not leading.isdisjoint(range(end, end + size)):
            end += size
        if (end - start) // size > best_count:
            best_end, best_count = end, (end - start) // size
    return best_end


def _leading(decoder: Decoder, inside: dict[int, StubInstruction], slots: set[int], first: int) -> Iterator[int]:
    """Yield the addresses of the instructions that jump to where one of the slots leads, or to the first block."""
    state: State = {}
    for vaddr, found in inside.items():
        if found.effect is None:
            continue
        apply(state, [step for step in found.effect.steps if step.register != decoder.abi.arch.sp_register])
        if found.effect.target == first or word_of(state.get(JUMP)) in slots:
            yield vaddr
        if found.ends_flow:
            state = {}


def _block(inside: dict[int, StubInstruction], start: int, size: int) -> tuple[str, ...]:
    """Return the mnemonics of a block; none where it does not consist of whole instructions, or control never ends."""
    block: list[StubInstruction] = []
    vaddr = start
    while vaddr < start + size and vaddr in inside:
        block.append(inside[vaddr])
        vaddr += block[-1].size
    is_whole = vaddr == start + size and any(each.ends_flow for each in block)
    return tuple([each.text.partition(" ")[0] for each in block]) if is_whole else ()
