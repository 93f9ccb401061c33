# SPDX-License-Identifier: Apache-2.0
"""What is known of code and data around the code that is followed: functions that do not return, tables of jumps."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import JUMP_TARGET, Flow
from cfi2sframe.code.flow import Surroundings
from cfi2sframe.code.never_return import never_returns
from cfi2sframe.code.steps import Machine
from cfi2sframe.code.values import LOADED
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.dynamic import dynamic_words
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.code.effects import CodeArch
    from cfi2sframe.code.values import TableWord
    from cfi2sframe.elf.image import ElfImage

#: Instructions of a stub up to its jump.
_MAX_STUB_SIZE: Final = 32
#: Words of a table of jumps.
_MAX_WORDS: Final = 4096
#: Words that are read where no comparison limits the index.
_UNLIMITED_WORDS: Final = 512
#: Limits of numbers by their size alone.
_NATURAL_LIMITS: Final = (0xFF, 0xFFFF)
#: Of these, the first one of the table is among so many.
_MAX_SKIPPED: Final = 5
_WORD: Final = 8
#: The size of all instructions, where it is one.
_INSTRUCTION_SIZE: Final = 4
#: The size of words that are too short for distances to most code.
_SHORT_WORD: Final = 2
#: Where all addresses end.
_END: Final = 1 << 64


class ImageSurroundings:
    """Answers the questions of the data flow (`flow.Surroundings`) from an image.

    `starts` are those of functions that other sources describe, ascending. `certain` are addresses where functions
    begin, and `possible` others where they may begin, for all that is known.
    """

    def __init__(
        self,
        image: ElfImage,
        decoder: Decoder,
        starts: Sequence[int],
        certain: Collection[int],
        possible: Collection[int],
        arch: CodeArch,
    ) -> None:
        self.image = image
        self.decoder = decoder
        self.arch = arch
        self._starts = starts
        self._entries = {*certain, *possible}
        self._functions = sorted({*starts, *certain, *decoder.call_targets})
        self._never_return: set[int] = {v for v, name in decoder.code.imports.items() if never_returns(name)}
        #: By name, where the file itself defines a function that it may call as if it were imported.
        self._definitions: dict[str, int] = {}
        self._read_symbols()
        self._words: tuple[dict[int, str], dict[int, int]] | None = None
        self._relros = [segment for segment in image.segments if segment.type == c.PT_GNU_RELRO]
        self._constants = sorted(decoder.constants)
        self._tables: dict[TableWord, tuple[int, ...] | None] = {}
        self._slots: dict[int, int | None] = {}
        self._are_starts: dict[int, bool] = {}

    def _read_symbols(self) -> None:
        """Take from the symbols which functions never return, and which ones the file defines under one name.

        Of versions of a name that are defined apart, it cannot be told which one is called.
        """
        found: dict[str, set[int]] = {}
        for table in self.image.symbol_tables:
            with suppress(ElfError):
                for symbol in self.image.symbols(table):
                    if symbol.vaddr is None:
                        continue
                    if never_returns(symbol.name):
                        self._never_return.add(symbol.vaddr)
                    if table.type == c.SHT_DYNSYM and symbol.type == c.STT_FUNC:
                        found.setdefault(symbol.name, set()).add(symbol.vaddr)
        self._definitions = {name: min(vaddrs) for name, vaddrs in found.items() if len(vaddrs) == 1}

    def answers(self) -> Surroundings:
        """Return what the data flow asks, without landing pads."""
        return Surroundings(
            self.is_entry,
            self.returns,
            self.import_returns,
            self.table_targets,
            self.is_start,
            self.definition,
            self.import_definition,
        )

    def is_entry(self, vaddr: int) -> bool:
        """Whether a function that another source describes starts at an address, a stub, or what an object imports."""
        index = bisect_left(self._starts, vaddr)
        if (index < len(self._starts) and self._starts[index] == vaddr) or vaddr in self.decoder.code.imports:
            return True
        return self._slot_of(vaddr) is not None

    def returns(self, vaddr: int) -> bool:
        """Whether a function outside of the code may come back to its caller."""
        if vaddr in self._never_return:
            return False
        slot = self._slot_of(vaddr)
        return slot is None or self.import_returns(slot)

    def import_returns(self, slot_vaddr: int) -> bool:
        """Whether the function whose address the dynamic loader writes to a word may come back to its caller."""
        return not never_returns(self._dynamic_words[0].get(slot_vaddr, ""))

    def definition(self, vaddr: int) -> int | None:
        """Return where the file itself defines the function that a stub at an address calls; None where it does not."""
        slot = self._slot_of(vaddr)
        return None if slot is None else self.import_definition(slot)

    def import_definition(self, slot_vaddr: int) -> int | None:
        """Return the same of the function whose address the dynamic loader writes to a word.

        A word without a name counts where nothing writes to it later, as in `.got` and `.data.rel.ro`.
        """
        names, addends = self._dynamic_words
        if slot_vaddr in addends and any(relro.vaddr <= slot_vaddr < relro.end_vaddr for relro in self._relros):
            return addends[slot_vaddr]
        return self._definitions.get(names.get(slot_vaddr, ""))

    def is_start(self, vaddr: int) -> bool:
        """Whether only a jump or a call leads to an address: padding is there, or a function begins."""
        known = self._are_starts.get(vaddr)
        if known is None:
            known = self._are_starts[vaddr] = self._is_start(vaddr)
        return known

    def _is_start(self, vaddr: int) -> bool:
        if self.decoder.span_of(vaddr) is None or vaddr in self._entries:
            return True
        first = vaddr
        while True:
            decoded = self.decoder.at(vaddr)
            if decoded is None or decoded.effect is None or not decoded.effect.is_padding:
                break
            vaddr += decoded.size
            if self.decoder.span_of(vaddr) is None:
                return True
        if vaddr != first and (vaddr in self._entries or vaddr in self.decoder.constants):
            return True
        # Of instructions of several sizes, the mark may be that of a second return from a call.
        return (vaddr != first or self.arch.alignment > 1) and self.decoder.is_marked(vaddr, self.arch.entry_marks)

    @property
    def _dynamic_words(self) -> tuple[dict[int, str], dict[int, int]]:
        """What the dynamic loader writes to words; nothing where that cannot be read."""
        if self._words is None:
            try:
                self._words = dynamic_words(self.image)
            except ElfError:
                self._words = ({}, {})
        return self._words

    def table_targets(self, table: TableWord) -> tuple[int, ...] | None:
        """Return where the words of a table lead; None where one of them leads to no instruction."""
        if table not in self._tables:
            self._tables[table] = self._read_table(table)
        return self._tables[table]

    def _read_table(self, table: TableWord) -> tuple[int, ...] | None:
        if table.size not in (1, 2, 4, 8) or table.scale < table.size:
            return None
        # A byte or a halfword was loaded; nothing says that all of its values are indices.
        is_limited = table.limit is not None and table.limit not in _NATURAL_LIMITS
        count = table.limit + 1 if table.limit is not None and is_limited else _UNLIMITED_WORDS
        if count > _MAX_WORDS:
            return None
        words = [self._word(table, table.vaddr + number * table.scale) for number in range(count)]
        # A compiler may begin a case with a filler. Where nothing limits the index, that is rather padding.
        is_target = self.decoder.__contains__ if is_limited else self._is_target
        targets = [word if word is not None and is_target(word) else None for word in words]
        if not is_limited:
            choose = self._of_label if self._counts_from_label(table) else self._probable
            targets = choose(table, targets)
        found = tuple(dict.fromkeys(target for target in targets if target is not None))
        return found if found and None not in targets else None

    def _is_target(self, vaddr: int) -> bool:
        """Whether the first pass has an instruction at an address, which does more than fill space."""
        if vaddr not in self.decoder:
            return False
        decoded = self.decoder.at(vaddr)
        return decoded is not None and (decoded.effect is None or not decoded.effect.is_padding)

    def _counts_from_label(self, table: TableWord) -> bool:
        """Whether the words of a table are short and count forward from a label, as compilers for AArch64 make them.

        Assembly for AMD64 has short words, too, which count from anywhere.
        """
        if self.arch.alignment != _INSTRUCTION_SIZE or table.size > _SHORT_WORD or table.factor < 0:
            return False
        return table.added != table.vaddr and self.decoder.span_of(table.added) is not None

    def _of_label(self, table: TableWord, targets: list[int | None]) -> list[int | None]:
        """Return which words are those of such a table, where nothing limits the index.

        Whatever follows the table, a text for instance, leads to some instruction. The table ends where a word leads
        out of the label's function, or where the next table starts whose address some instruction loads.
        """
        index = bisect_right(self._functions, table.added)
        start = self._functions[index - 1] if index else 0
        end = self._functions[index] if index < len(self._functions) else _END
        within = [target if target is not None and start <= target < end else None for target in targets]
        return self._up_to_next_table(table, _row_from(within, 0))

    def _probable(self, table: TableWord, targets: list[int | None]) -> list[int | None]:
        """Return which words are those of a table, where nothing limits the index.

        They are the longest row of words that lead to instructions, and they end where the next table starts whose
        address some instruction loads. Assembly may load an address some words before the table, for indices that begin
        with another number than 0: then other tables are as many words before the addresses that are loaded for them.
        """
        rows = [_row_from(targets, first) for first in range(_MAX_SKIPPED)]
        first = max(range(_MAX_SKIPPED), key=lambda place: (len(rows[place]), -place))
        return self._up_to_next_table(table, rows[first])

    def _up_to_next_table(self, table: TableWord, row: list[int | None]) -> list[int | None]:
        index = bisect_right(self._constants, table.vaddr)
        if index < len(self._constants):
            row = row[: -(-(self._constants[index] - table.vaddr) // table.scale)]
        return row

    def _word(self, table: TableWord, vaddr: int) -> int | None:
        data = self.image.bytes_at(vaddr, table.size)
        if data is None:
            return None
        word = int.from_bytes(data, "little" if self.image.byte_order == "<" else "big", signed=table.is_signed)
        if table.size == _WORD:
            word = self._dynamic_words[1].get(vaddr, word)
        is_limited = table.limit is not None and table.limit not in _NATURAL_LIMITS
        if not word and not is_limited and not self._counts_from_label(table):
            # What fills the space after a table.
            return None
        return (word * table.factor + table.added) & 0xFFFFFFFFFFFFFFFF

    def _slot_of(self, vaddr: int) -> int | None:
        """Return the address of the word whose value a stub at an address jumps to; None where there is no stub."""
        if vaddr not in self._slots:
            self._slots[vaddr] = self._read_stub(vaddr)
        return self._slots[vaddr]

    def _read_stub(self, vaddr: int) -> int | None:
        code = self.image.code_range_of(vaddr)
        if code is None:
            return None
        data = self.decoder.code.read(code, vaddr, min(code.end_vaddr, vaddr + _MAX_STUB_SIZE))
        machine = Machine(self.arch, range(0))
        state = machine.entry_state()
        for address, size, mnemonic, operands in self.decoder.disassemble(data, vaddr):
            effect = self.arch.effect_of(address, size, mnemonic, operands)
            if effect is None:
                return None
            for step in effect.steps:
                machine.apply(state, step, address)
            if effect.flow == Flow.JUMP_INDIRECT:
                value = state.registers.get(JUMP_TARGET)
                return value.offset if value is not None and value.base == LOADED else None
            if effect.flow != Flow.NEXT:
                return None
        return None


def _row_from(targets: list[int | None], first: int) -> list[int | None]:
    """Return the targets from a place on, up to the first that is none."""
    row = targets[first:]
    return row[: row.index(None)] if None in row else row
