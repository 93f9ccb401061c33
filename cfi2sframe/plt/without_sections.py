# SPDX-License-Identifier: Apache-2.0
"""Find the stubs of a file without section headers.

GOT slots of lazy binding hold an address among the stubs: of the second half of a stub, which jumps to the first block,
or of the first block itself. Without such slots, CFI whose CFA depends on the PC leads there. From the first block on,
rows of equal blocks are stubs as long as each block reads a slot that the dynamic loader fills, or jumps to the first
block.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import Flow
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.plt.stub_model import StubBlock, StubRange

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.block_decoder import BlockDecoder
    from cfi2sframe.plt.scan_records import CfiAt
    from cfi2sframe.plt.sp_distance import SpDistances

_RELA: Final = 24
#: More than any block: the bytes that are decoded to find the first jump.
_LOOK_AHEAD: Final = 64
#: Linkers align each row of stubs.
_ALIGNMENT: Final = 16


class _Slots(NamedTuple):
    """The addresses of GOT words that relocations fill, and the code addresses that words of lazy binding hold.

    The dynamic loader's own words at the start of the GOT, which the first block reads, have no relocation.
    """

    vaddrs: frozenset[int]
    code_vaddrs: tuple[int, ...]


def find_in_segments(
    image: ElfImage, cfi_at: CfiAt, decoder: BlockDecoder, evaluator: SpDistances
) -> tuple[StubRange, ...]:
    """Return the rows of stubs of a file without section headers, in ascending order."""
    slots = _read_slots(image)
    first = _first_block(image, slots, cfi_at, decoder, evaluator)
    if first is None:
        return ()
    return tuple(_Rows(image, slots, first, decoder).follow())


def _read_slots(image: ElfImage) -> _Slots:
    dynamic = dynamic_entries(image)
    vaddrs: set[int] = set()
    code: list[int] = []
    for table, size in ((c.DT_RELA, c.DT_RELASZ), (c.DT_JMPREL, c.DT_PLTRELSZ)):
        data = image.bytes_at(dynamic.get(table, 0), dynamic.get(size, 0)) or b""
        usable = data[: len(data) // _RELA * _RELA]
        for vaddr, _info, _addend in struct.iter_unpack(image.byte_order + "QQq", usable):
            vaddrs.add(vaddr)
            if table == c.DT_JMPREL:
                word = image.bytes_at(vaddr, 8)
                value = 0 if word is None else struct.unpack(image.byte_order + "Q", word)[0]
                if image.code_range_of(value) is not None:
                    code.append(value)
    return _Slots(frozenset(vaddrs), tuple(sorted(set(code))))


def _first_block(
    image: ElfImage, slots: _Slots, cfi_at: CfiAt, decoder: BlockDecoder, evaluator: SpDistances
) -> int | None:
    """Return the address of the first block, which other stubs jump to, or None when it is not found."""
    for vaddr in slots.code_vaddrs[:1] or _depends_on_pc(image, cfi_at, evaluator):
        first = _jump_target(image, vaddr, decoder)
        if first is None and slots.code_vaddrs:
            # This is not the second half of a stub, so the slots hold the first block's address.
            first = vaddr
        if first is not None and image.code_range_of(first) is not None:
            return first
    return None


def _jump_target(image: ElfImage, vaddr: int, decoder: BlockDecoder) -> int | None:
    """Return the target of the first direct jump from an address on, past indirect ones; None unless it leads back."""
    position = vaddr
    while position < vaddr + _LOOK_AHEAD:
        way = decoder.way_to_jump(_bytes_to_end(image, position, _LOOK_AHEAD))
        if way is None:
            return None
        last = way[-1]
        if last.effect.flow is Flow.JUMP and last.effect.target_delta is not None:
            target = position + last.effect.target_delta
            return target if target <= vaddr else None
        position += last.offset + last.size
        if len(way) > 1:
            # Pushes and an indirect jump: this is the first block itself.
            return None
    return None


def _depends_on_pc(image: ElfImage, cfi_at: CfiAt, evaluator: SpDistances) -> Iterator[int]:
    """Yield the addresses where CFI starts to give a CFA that depends on the PC."""
    for code in image.code_ranges:
        pc = code.start_vaddr
        while pc < code.end_vaddr:
            span = cfi_at(pc)
            if span.state is not None and isinstance(span.state.cfa, Expression):
                distance = evaluator.evaluate(span.state.cfa.code, pc)
                if distance is not None and distance.pc_modulus != 1:
                    yield pc
            pc = max(span.end_vaddr, pc + 1)


def _bytes_to_end(image: ElfImage, vaddr: int, size: int) -> bytes:
    """Return at most `size` bytes of code at an address."""
    code = image.code_range_of(vaddr)
    if code is None:
        return b""
    return image.bytes_at(vaddr, min(size, code.end_vaddr - vaddr)) or b""


class _Rows:
    """Rows of equal blocks from the first block on."""

    def __init__(self, image: ElfImage, slots: _Slots, first_vaddr: int, decoder: BlockDecoder) -> None:
        self.image = image
        self.slots = slots
        self.first_vaddr = first_vaddr
        self.decoder = decoder

    def follow(self) -> Iterator[StubRange]:
        """Yield the rows, each of which starts at the next aligned address after the one before."""
        vaddr = self.first_vaddr
        while True:
            size = self._row_size(vaddr, may_have_header=vaddr == self.first_vaddr)
            if not size:
                return
            code = self.image.code_range_of(vaddr)
            name = "" if code is None else code.name
            yield StubRange(name, vaddr, _bytes_to_end(self.image, vaddr, size))
            vaddr = -(-(vaddr + size) // _ALIGNMENT) * _ALIGNMENT

    def _row_size(self, vaddr: int, *, may_have_header: bool) -> int:
        """Return the size of the row at an address, cut into the most blocks; 0 when there is none."""
        stubs = self.decoder.stubs
        best_size = best_count = 0
        for block_size in stubs.block_sizes:
            for header_size in stubs.header_sizes if may_have_header else (0,):
                if header_size:
                    header = self.decoder.block(_bytes_to_end(self.image, vaddr, header_size))
                    if not isinstance(header, StubBlock) or not header.ends_flow or self._has_slot(header, vaddr):
                        continue
                count = self._count(vaddr + header_size, block_size)
                if count > best_count:
                    best_size, best_count = header_size + count * block_size, count
        return best_size

    def _has_slot(self, block: StubBlock, start_vaddr: int) -> bool:
        words = self.decoder.stubs.words_read(block, block.data, start_vaddr)
        return not self.slots.vaddrs.isdisjoint(words)

    def _count(self, vaddr: int, block_size: int) -> int:
        """Count the blocks at an address that are equal in their constant bits and belong to slots."""
        block: StubBlock | None = None
        count = 0
        while True:
            start = vaddr + count * block_size
            data = _bytes_to_end(self.image, start, block_size)
            if block is None:
                found = self.decoder.block(data)
                if not isinstance(found, StubBlock) or not found.ends_flow or len(data) < block_size:
                    return 0
                block = found
            if not (_equals(block, data) and self._belongs(block, data, start)):
                return count
            count += 1

    def _belongs(self, kind: StubBlock, data: bytes, start_vaddr: int) -> bool:
        """Whether a block reads a slot or jumps to the first block."""
        stubs = self.decoder.stubs
        if not self.slots.vaddrs.isdisjoint(stubs.words_read(kind, data, start_vaddr)):
            return True
        return any(
            start_vaddr + stubs.branch_delta(data, insn.offset, insn.size) == self.first_vaddr
            for insn in kind.instructions
            if insn.effect.flow is Flow.JUMP
        )


def _equals(kind: StubBlock, data: bytes) -> bool:
    if len(data) != len(kind.data):
        return False
    mask = int.from_bytes(kind.mask)
    return not (int.from_bytes(data) ^ int.from_bytes(kind.data)) & mask
