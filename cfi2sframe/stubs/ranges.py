# SPDX-License-Identifier: Apache-2.0
"""Where stubs are in a linked file: sections of certain names or, without sections, what dynamic relocations lead to.

GOT slots of lazy binding hold an address among the stubs: of the second half of a stub, which jumps to the first block,
or of the first block itself. From the first block on, rows of blocks are stubs as long as each block reads a slot that
the dynamic loader fills, or jumps to the first block.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.references import dynamic_entries
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import Flow
from cfi2sframe.instructions.states import apply, word_of
from cfi2sframe.stubs.frames import understand
from cfi2sframe.stubs.records import StubReason, StubSkip

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from cfi2sframe.elf.headers import ElfSection
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.states import State

#: .plt, .plt.sec, .plt.got, .plt.bnd, .iplt and the like.
_NAME_PREFIXES: Final = (".plt", ".iplt")
_RELA: Final = 24
#: Linkers align each row of stubs; no block is larger than `_MAX_BLOCK`.
_ALIGNMENT: Final = 16
_MAX_BLOCK: Final = 64
_ADDRESS_END: Final = 1 << 64
#: Sizes that blocks have: all are multiples of this.
_UNIT: Final = 8


class StubRange(NamedTuple):
    """Stubs at `[start_vaddr, end_vaddr)`."""

    name: str
    start_vaddr: int
    end_vaddr: int


def find_stubs(image: ElfImage) -> tuple[tuple[StubRange, ...], tuple[StubSkip, ...]]:
    """Return the ranges of stubs in ascending order without overlap, and those that cannot be read."""
    if image.is_relocatable:
        return (), ()
    if not image.sections:
        return tuple(_Rows(image).find()), ()
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
            reason = StubReason.OVERLAP if overlaps else StubReason.NOT_IN_FILE
            left_out.append(StubSkip(section.vaddr, section.size, section.name, reason, ""))
        else:
            ranges.append(StubRange(section.name, section.vaddr, section.end_vaddr))
    return tuple(ranges), tuple(left_out)


def _is_in_file(image: ElfImage, section: ElfSection) -> bool:
    # Nothing is at addresses past 2^64.
    if section.type == c.SHT_NOBITS or section.end_vaddr > _ADDRESS_END:
        return False
    try:
        return bool(image.section_bytes(section))
    except ElfError:
        return False


class _Block(NamedTuple):
    """The mnemonics of a block, where it jumps to by its first jump if that is direct, and the words that it reads."""

    names: tuple[str, ...]
    target: int | None
    read: Collection[int]


_NO_BLOCK: Final = _Block((), None, ())


class _Rows:
    """Rows of equal blocks in a file without section headers."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        #: GOT words that relocations fill, and the addresses of code that words of lazy binding hold.
        self.slots: set[int] = set()
        self.lazy: set[int] = set()
        dynamic = dynamic_entries(image)
        for table, size in ((c.DT_RELA, c.DT_RELASZ), (c.DT_JMPREL, c.DT_PLTRELSZ)):
            data = image.bytes_at(dynamic.get(table, 0), dynamic.get(size, 0)) or b""
            usable = data[: len(data) // _RELA * _RELA]
            for vaddr, _info, _addend in struct.iter_unpack(image.byte_order + "QQq", usable):
                self.slots.add(vaddr)
                word = image.bytes_at(vaddr, 8) if table == c.DT_JMPREL else None
                value = 0 if word is None else struct.unpack(image.byte_order + "Q", word)[0]
                if value and image.code_range_of(value) is not None:
                    self.lazy.add(value)

    def find(self) -> Iterator[StubRange]:
        """Yield the rows, each of which starts at the next aligned address after the one before."""
        if not self.lazy:
            return
        spans = [Span(code.start_vaddr, code.end_vaddr) for code in self.image.code_ranges]
        self.decoder = Decoder(self.image, spans, "PLT stubs are described")
        lowest = min(self.lazy)
        # A second half of a stub leads back to the first block.
        target = self._block(lowest, lowest + _MAX_BLOCK, is_whole=False).target
        first = target if target is not None and target <= lowest else lowest
        vaddr = first
        while (end := self._end_of_row(vaddr, first)) > vaddr:
            code = self.image.code_range_of(vaddr)
            yield StubRange("" if code is None else code.name, vaddr, end)
            vaddr = -(-end // _ALIGNMENT) * _ALIGNMENT

    def _end_of_row(self, vaddr: int, first: int) -> int:
        """Return where the row of stubs at an address ends, cut into the most blocks; its own address without any."""
        headers = range(0, _MAX_BLOCK + 1, _ALIGNMENT) if vaddr == first else (0,)
        best_end, best_count = vaddr, 0
        for size in range(_UNIT, _MAX_BLOCK + 1, _UNIT):
            for header in headers:
                start = end = vaddr + header
                kind = self._block(start, start + size).names
                while kind and self._is_stub(self._block(end, end + size), kind, first):
                    end += size
                if (end - start) // size > best_count:
                    best_end, best_count = end, (end - start) // size
        return best_end

    def _is_stub(self, block: _Block, kind: tuple[str, ...], first: int) -> bool:
        """Whether a block is of a kind, and reads a slot or jumps to the first block."""
        return block.names == kind and (block.target == first or not self.slots.isdisjoint(block.read))

    def _block(self, vaddr: int, end: int, *, is_whole: bool = True) -> _Block:
        """Return what the instructions of a stub do up to their first jump; nothing where these are none's."""
        state: State = {}
        read: set[int] = set()
        names: list[str] = []
        target, has_ended = None, False
        for at, size, name, operands in self.decoder.disassemble(vaddr, end):
            found = understand(self.decoder, at, size, name, operands)
            if found.effect is None or (has_ended and not is_whole):
                # A number may follow the last jump.
                break
            names.append(name)
            if not has_ended:
                apply(state, [step for step in found.effect.steps if step.register != self.image.arch.sp_register])
                read.update(word for word in map(word_of, state.values()) if word is not None)
                target = found.effect.target if found.effect.flow is Flow.JUMP else None
            has_ended |= found.ends_flow
            vaddr = at + size
        is_all = end - vaddr in (0, self.decoder.abi.stubs.literal_size)
        return _Block(tuple(names), target, read) if has_ended and (is_all or not is_whole) else _NO_BLOCK
