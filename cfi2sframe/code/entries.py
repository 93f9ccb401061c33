# SPDX-License-Identifier: Apache-2.0
"""Where functions may begin in code that no CFI covers: what symbols, relocations and covered code say.

Addresses that a call leads to, or that the symbol of a function has, are entries. Any other address that something
refers to may be one: whether it is shows when control is followed from there.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import Flow, Op
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span

#: Bytes of covered code that a step of the budget, about a microsecond, can search.
_BYTES_PER_STEP: Final = 16
_WHAT: Final = "references to code without CFI"
#: call, jmp; `lea r64, [rip + distance]`; `mov r32, number`: each with four bytes at its end.
_AMD64_REFERENCES: Final = re.compile(rb"(?=([\xe8\xe9]|[\x48\x4c]\x8d[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]|[\xb8-\xbf])(.{4}))", re.DOTALL)


class Entries(NamedTuple):
    """Addresses of entries: those that are certain, and those that may be entries; `process_entry` is the file's."""

    certain: frozenset[int]
    possible: frozenset[int]
    process_entry: int | None


def find_entries(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Entries:
    """Return the entries in the code that a decoder reads.

    `covered` are the ranges of the functions that other sources describe, ascending. Raises `BudgetError` when the
    symbols, relocations and covered code are out of proportion to the file.
    """
    certain, possible = _symbols(image, decoder)
    try:
        possible.update(vaddr for vaddr in referred_addresses(image) if decoder.span_of(vaddr) is not None)
    except ElfError:
        # A damaged table refers to nothing.
        pass
    for vaddr, is_call in _from_covered_code(image, decoder, covered):
        (certain if is_call else possible).add(vaddr)
    entry = image.header.entry_vaddr
    process_entry = entry if not image.is_relocatable and entry and decoder.span_of(entry) is not None else None
    return Entries(frozenset(certain), frozenset(possible - certain), process_entry)


def _symbols(image: ElfImage, decoder: Decoder) -> tuple[set[int], set[int]]:
    """Return the addresses of functions' symbols, and of symbols of other things."""
    functions: set[int] = set()
    others: set[int] = set()
    for table in image.sections:
        if table.type not in (c.SHT_SYMTAB, c.SHT_DYNSYM):
            continue
        try:
            for symbol in image.symbols(table):
                if symbol.vaddr is None or decoder.span_of(symbol.vaddr) is None:
                    continue
                if symbol.type in (c.STT_FUNC, c.STT_GNU_IFUNC):
                    functions.add(symbol.vaddr)
                elif symbol.type == c.STT_NOTYPE:
                    others.add(symbol.vaddr)
        except ElfError:
            continue
    return functions, others


def _from_covered_code(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Iterator[tuple[int, bool]]:
    """Yield the addresses that covered code calls (True) or loads (False).

    The bytes of such an instruction are searched at every address, which is quick, and what is found leads to code
    without CFI by chance one time in thousands. The function around it is then decoded from its start on: only
    instructions count.
    """
    starts = [span.start for span in covered]
    seen: dict[int, dict[int, tuple[int, bool]]] = {}
    for code in image.code_ranges:
        data = image.code_bytes(code, code.start_vaddr, code.end_vaddr)
        image.budget.spend(len(data) // _BYTES_PER_STEP, _WHAT)
        for place, target in _candidates(data, code.start_vaddr):
            if decoder.span_of(target) is None:
                continue
            index = bisect_right(starts, place) - 1
            if index < 0 or place >= covered[index].end:
                continue
            if index not in seen:
                seen[index] = _references(image, decoder, covered[index])
            found = seen[index].get(place)
            if found is not None and found[0] == target:
                yield found


def _candidates(data: bytes, vaddr: int) -> Iterator[tuple[int, int]]:
    """Yield the addresses of what may be an instruction, with what it refers to."""
    for match in _AMD64_REFERENCES.finditer(data):
        start = match.start()
        number = struct.unpack("<i", match.group(2))[0]
        yield vaddr + start, number if match.end(1) == start + 1 and data[start] < 0xE0 else vaddr + match.end(2) + number


def _references(image: ElfImage, decoder: Decoder, span: Span) -> dict[int, tuple[int, bool]]:
    """Return the instructions of a function that call or load addresses of code without CFI."""
    code = image.code_range_of(span.start)
    if code is None:
        return {}
    arch = decoder.arch
    found: dict[int, tuple[int, bool]] = {}
    data = image.code_bytes(code, span.start, span.end)
    for address, size, mnemonic, operands in decoder.disassemble(data, span.start):
        image.budget.spend(2, _WHAT)
        effect = arch.effect_of(address, size, mnemonic, operands)
        if effect is None:
            continue
        if effect.flow == Flow.CALL and effect.target is not None:
            found[address] = (effect.target, True)
        for step in effect.steps:
            if step.op == Op.CONSTANT:
                found[address] = (step.offset & 0xFFFFFFFFFFFFFFFF, False)
    return found
