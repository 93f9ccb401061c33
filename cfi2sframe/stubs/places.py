# SPDX-License-Identifier: Apache-2.0
"""Find the stubs of a linked file: sections of certain names or, without sections, from dynamic relocations.

GOT slots of lazy binding hold an address among the stubs: of the second half of a stub, which jumps to the first block,
or of the first block itself. From the first block on, rows of blocks are stubs as long as each block jumps through a
slot that the dynamic loader fills, or to the first block.
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
    """Return the ranges of stubs, ascending and without overlap, and those that cannot be read.

    Long runs of bytes that fill space are in no range.
    """
    fill = re.compile(image.arch.fill, re.DOTALL)
    if not image.sections:
        return tuple(_rows(image)), ()
    ranges: list[StubRange] = []
    left_out: list[StubSkip] = []
    end_vaddr = total = 0
    sections = [s for s in image.sections if s.is_code and s.size and s.name.startswith(_NAME_PREFIXES)]
    for section in sorted(sections, key=lambda s: s.vaddr):
        total += section.size
        # Sections larger than their file share bytes.
        overlaps = section.vaddr < end_vaddr or total > len(image.data)
        end_vaddr = max(end_vaddr, section.end_vaddr)
        code = b"" if overlaps else _bytes_in_file(image, section)
        if not code:
            reason = Reason.OVERLAP if overlaps else Reason.NOT_IN_FILE
            left_out.append(StubSkip(section.vaddr, section.size, section.name, reason, ""))
            continue
        runs = [run.span() for run in fill.finditer(code) if len(run[0]) >= _LONG_FILL]
        # The last operand before a run may look like a part of it.
        starts, ends = [0, *[end for _, end in runs]], [*[start + _ALIGNMENT for start, _ in runs], section.size]
        bounds = zip(starts, ends, strict=True)
        ranges += [StubRange(section.name, section.vaddr + a, section.vaddr + b) for a, b in bounds if a < b]
    return tuple(ranges), tuple(left_out)


def _bytes_in_file(image: ElfImage, section: ElfSection) -> bytes:
    """Return the bytes of a section, none where the file does not have them."""
    with suppress(ElfError):
        # There are no addresses past 2^64.
        return image.section_bytes(section) if section.end_vaddr <= ADDRESS_END else b""
    return b""


def _rows(image: ElfImage) -> Iterator[StubRange]:
    """Yield the rows of stubs in a file without section headers."""
    slots, lazy = _slots(image)
    if not lazy:
        return
    spans = [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges]
    decoder = Decoder(image, spans, "PLT stubs are described")
    lowest = min(lazy)
    # The second half of a stub leads back to the first block.
    instructions = (instruction for _, instruction in _stub_code(decoder, lowest))
    target = next((i.effect.target for i in instructions if i.effect is not None and i.ends_flow), None)
    vaddr = first = target if target is not None and target <= lowest else lowest
    headers: Iterable[int] = range(0, _MAX_BLOCK + 1, _ALIGNMENT)
    while (end := _end_of_row(decoder, vaddr, headers, slots, first)) > vaddr:
        code = image.code_range_of(vaddr)
        yield StubRange("" if code is None else code.name, vaddr, end)
        vaddr, headers = -(-end // _ALIGNMENT) * _ALIGNMENT, (0,)


def _slots(image: ElfImage) -> tuple[set[int], set[int]]:
    """Return the words that dynamic relocations fill, and the addresses of code in the words of lazy binding."""
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


def _stub_code(decoder: Decoder, vaddr: int) -> Iterator[tuple[int, StubInstruction]]:
    """Yield the instructions from an address on, up to a long run of fillers, or to one that stubs do not have."""
    span = decoder.span_of(vaddr)
    filled = 0
    for at, instruction in decoded(decoder, vaddr, vaddr if span is None else span.end):
        filled = filled + instruction.size if instruction.is_filler else 0
        if filled > _LONG_FILL or (instruction.effect is None and not instruction.is_filler):
            return
        yield at, instruction


def _end_of_row(decoder: Decoder, vaddr: int, headers: Iterable[int], slots: set[int], first: int) -> int:
    """Return the end of the row of stubs at an address, cut into the most blocks; the address itself without any.

    Blocks have the same mnemonics, and each jumps through one of the `slots`, or to the `first` block.
    """
    inside = dict(_stub_code(decoder, vaddr))
    jumps = set(_jumps(decoder, inside, slots, first))
    best_end, best_count = vaddr, 0
    for size, header in product(range(_UNIT, _MAX_BLOCK + 1, _UNIT), headers):
        start = end = vaddr + header
        kind = _block(inside, start, size)
        while kind and _block(inside, end, size) == kind and not jumps.isdisjoint(range(end, end + size)):
            end += size
        if (end - start) // size > best_count:
            best_end, best_count = end, (end - start) // size
    return best_end


def _jumps(decoder: Decoder, inside: dict[int, StubInstruction], slots: set[int], first: int) -> Iterator[int]:
    """Yield the addresses of the instructions that jump through one of the slots, or to the first block."""
    state: State = {}
    for vaddr, instruction in inside.items():
        if instruction.effect is None:
            continue
        apply(state, [step for step in instruction.effect.steps if step.register != decoder.abi.arch.sp_register])
        if instruction.effect.target == first or word_of(state.get(JUMP)) in slots:
            yield vaddr
        if instruction.ends_flow:
            state = {}


def _block(inside: dict[int, StubInstruction], start: int, size: int) -> tuple[str, ...]:
    """Return the mnemonics of a block; none unless it consists of whole instructions, one of which ends the flow."""
    block: list[StubInstruction] = []
    vaddr = start
    while vaddr < start + size and vaddr in inside:
        block.append(inside[vaddr])
        vaddr += block[-1].size
    is_block = vaddr == start + size and any(instruction.ends_flow for instruction in block)
    return tuple([instruction.text.partition(" ")[0] for instruction in block]) if is_block else ()
