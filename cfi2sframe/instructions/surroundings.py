# SPDX-License-Identifier: Apache-2.0
"""Where functions may begin in some code, and where the words of tables lead: what symbols, data and code say.

Nothing here is certain: whatever may be an entry is one candidate more.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.dynamic import dynamic_entries, dynamic_words, initializer_vaddrs
from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import JUMP, Flow, Op
from cfi2sframe.instructions.never_return import never_returns
from cfi2sframe.instructions.references import Reference, references_in, references_to, wanted_in
from cfi2sframe.instructions.states import apply, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.states import State, TableWord

_MAX_INSTRUCTION_SIZE: Final = 15
#: Instructions of a stub up to its jump.
_STUB_LENGTH: Final = 6
_WHAT: Final = "code without CFI is read"
#: Words of a table that are tried at most.
_MAX_WORDS: Final = 512
#: Words at a table's start that no index leads to: what counts bits, or sizes, does not begin with 0.
_MAX_UNUSED: Final = 8
_ADDRESS_MASK: Final = (1 << 64) - 1


class Candidates(NamedTuple):
    """Addresses that may be entries of functions, and that of the process."""

    all: set[int]
    process_entry: int | None


def find_candidates(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Candidates:
    """Return the candidates in the code that a decoder reads; `covered` are the ranges that have CFI."""
    found: set[int] = set()
    # A damaged table refers to nothing.
    with suppress(ElfError):
        # The linker's relocations also fill fields within instructions, which begin nothing.
        found.update(referred_addresses(image, with_static=False))
    with suppress(ElfError):
        found.update(set() if image.is_relocatable else initializer_vaddrs(image))
    for table in image.sections:
        if table.type in (c.SHT_SYMTAB, c.SHT_DYNSYM):
            with suppress(ElfError):
                found.update(
                    symbol.vaddr
                    for symbol in image.symbols(table)
                    if symbol.vaddr is not None and symbol.type in (c.STT_FUNC, c.STT_GNU_IFUNC, c.STT_NOTYPE)
                )
    found.update(reference.target for reference in _from_covered_code(image, decoder, covered))
    entry = _process_entry(image, decoder)
    candidates = {vaddr for vaddr in found if decoder.holds(vaddr)} - {entry}
    return Candidates(candidates, entry)


def _process_entry(image: ElfImage, decoder: Decoder) -> int | None:
    """Return where a process begins, which nothing has called; None where that is not in the code.

    Linkers have given libraries an entry point, too: the first function of their code.
    """
    entry = image.header.entry_vaddr
    if not entry or not decoder.holds(entry):
        return None
    is_program = image.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in image.segments)
    return entry if is_program or dynamic_entries(image).get(c.DT_FLAGS_1, 0) & c.DF_1_PIE else None


def _from_covered_code(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Iterator[Reference]:
    """Yield what covered code refers to in the code that a decoder reads.

    Where instructions have several sizes, they are searched at every address, which is quick. Of what is found, little
    leads to code without CFI; the function around it is then decoded from its start on, and only instructions count.
    """
    starts = [span.start for span in covered]
    by_function: dict[int, set[Reference]] = {}
    wanted = wanted_in(decoder.spans)
    machine, is_fixed = image.arch.elf_machine, image.header.type == c.ET_EXEC
    for code in image.code_ranges:
        data = decoder.read(code.start_vaddr, code.end_vaddr)
        for reference in references_to(machine, data, code.start_vaddr, wanted, is_fixed=is_fixed):
            index = bisect_right(starts, reference.vaddr) - 1
            if index < 0 or reference.vaddr >= covered[index].end or not decoder.holds(reference.target):
                continue
            if decoder.abi.alignment == image.arch.prologue_step:
                # Every instruction has this size.
                yield reference
            else:
                by_function.setdefault(index, set()).add(reference)
    for index, found in by_function.items():
        yield from found.intersection(_references(decoder, covered[index], {each.vaddr for each in found}))


def _references(decoder: Decoder, span: Span, wanted: set[int]) -> Iterator[Reference]:
    """Yield what the instructions of a function at the addresses `wanted` call, jump to or load."""
    end = min(span.end, max(wanted) + _MAX_INSTRUCTION_SIZE)
    for address, size, mnemonic, operands in decoder.disassemble(span.start, end):
        effect = decoder.effect_of(address, size, mnemonic, operands) if address in wanted else None
        if effect is None:
            continue
        if effect.flow in (Flow.CALL, Flow.JUMP) and effect.target is not None:
            yield Reference(address, effect.target, effect.flow is Flow.CALL)
        for step in effect.steps:
            if step.op is Op.NUMBER:
                yield Reference(address, step.offset & _ADDRESS_MASK, is_call=False)


class NeverReturning:
    """Functions outside of the code that never come back, by the names that they are imported under."""

    def __init__(self, image: ElfImage, decoder: Decoder) -> None:
        self.image = image
        self._abi = decoder.abi
        self._outside = Decoder(image, [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges], _WHAT)
        self._known = {vaddr: never_returns(name) for vaddr, name in decoder.code.imports.items()}
        self._names: dict[int, str] | None = None
        for table in image.sections:
            if table.type in (c.SHT_SYMTAB, c.SHT_DYNSYM):
                with suppress(ElfError):
                    self._known |= {s.vaddr: True for s in image.symbols(table) if s.vaddr and never_returns(s.name)}

    def at(self, vaddr: int) -> bool:
        """Whether the function at an address never returns, or the one that a stub there jumps to."""
        found = self._known.get(vaddr)
        if found is None:
            slot = self._slot_of(vaddr)
            found = self._known[vaddr] = slot is not None and self.by_word(slot)
        return found

    def by_word(self, vaddr: int) -> bool:
        """Whether the function whose address the dynamic loader writes to a word never returns."""
        if self._names is None:
            self._names = {}
            with suppress(ElfError):
                self._names = {} if self.image.is_relocatable else dynamic_words(self.image)[0]
        return never_returns(self._names.get(vaddr, ""))

    def _slot_of(self, vaddr: int) -> int | None:
        """Return the address of the word whose value a stub jumps to; None where there is no stub."""
        state: State = {}
        for _ in range(_STUB_LENGTH):
            found = self._outside.at(vaddr)
            if found is None or found.effect is None or found.effect.flow not in (Flow.NEXT, Flow.JUMP_INDIRECT):
                return None
            if any(step.register == self._abi.sp for step in found.effect.steps):
                return None
            apply(state, found.effect.steps)
            if found.effect.flow is Flow.JUMP_INDIRECT:
                return word_of(state.get(JUMP))
            vaddr += found.size
        return None


class JumpTables:
    """Reads tables of jumps: up to the next address that code loads, or to a word that leads nowhere after others."""

    def __init__(self, image: ElfImage, decoder: Decoder) -> None:
        self.image = image
        self.decoder = decoder
        self._loaded: list[int] | None = None
        self._words: dict[int, int] = {}
        self._known: dict[TableWord, tuple[int, ...]] = {}

    def targets(self, table: TableWord) -> tuple[int, ...]:
        """Return where the words of a table lead."""
        found = self._known.get(table)
        if found is None:
            found = self._known[table] = tuple(dict.fromkeys(self._read(table)))
        return found

    def _read(self, table: TableWord) -> Iterator[int]:
        if self._loaded is None:
            self._prepare()
        loaded = self._loaded or []
        index = bisect_right(loaded, table.vaddr)
        end = loaded[index] if index < len(loaded) else _ADDRESS_MASK
        order: Final = "little" if self.image.byte_order == "<" else "big"
        is_begun = False
        for place in range(table.vaddr, min(end, table.vaddr + _MAX_WORDS * table.size), table.size):
            data = self.decoder.code.data_at(place, table.size)
            if data is None:
                return
            word = int.from_bytes(data, order, signed=table.is_signed)
            if table.size == 8:
                word = self._words.get(place, word)
            target = word * table.factor + table.added & _ADDRESS_MASK
            if self.decoder.holds(target):
                is_begun = True
                yield target
            elif is_begun or place >= table.vaddr + _MAX_UNUSED * table.size:
                return

    def _prepare(self) -> None:
        """Find the addresses that code loads, and the words that the dynamic loader writes."""
        machine, is_fixed = self.image.arch.elf_machine, self.image.header.type == c.ET_EXEC
        self._loaded = sorted(
            {
                reference.target
                for start, end in self.decoder.spans
                for reference in references_in(machine, self.decoder.read(start, end), start, is_fixed=is_fixed)
                if not reference.is_call
            }
        )
        with suppress(ElfError):
            self._words = {} if self.image.is_relocatable else dynamic_words(self.image)[1]
