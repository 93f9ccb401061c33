# SPDX-License-Identifier: Apache-2.0
"""Where functions may begin in code that no CFI covers: what symbols, relocations and covered code say.

Addresses that a call leads to, or that the symbol of a function has, are entries. Any other address that something
refers to may be one: whether it is shows when control is followed from there.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import Flow, Op
from cfi2sframe.code.references import Reference, references_to, wanted_in
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.dynamic import dynamic_entries, initializer_vaddrs
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span

_MAX_INSTRUCTION_SIZE: Final = 15
_MASK: Final = (1 << 64) - 1


class Entries(NamedTuple):
    """Addresses of entries: those that are certain, and those that may be entries; `process_entry` is the file's.

    Of those that may be, `labels` have only a symbol, which may be that of anything.
    """

    certain: frozenset[int]
    possible: frozenset[int]
    labels: frozenset[int]
    process_entry: int | None


def find_entries(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Entries:
    """Return the entries in the code that a decoder reads.

    `covered` are the ranges of the functions that other sources describe, ascending.
    """
    certain, labels = _symbols(image, decoder)
    possible: set[int] = set()
    # A damaged table refers to nothing.
    with suppress(ElfError):
        # The linker's relocations also fill fields within instructions, which begin nothing.
        referred = referred_addresses(image, with_static=False) - labels
        possible.update(vaddr for vaddr in referred if decoder.span_of(vaddr) is not None)
    with suppress(ElfError):
        initializers = set() if image.is_relocatable else initializer_vaddrs(image)
        certain.update(vaddr for vaddr in initializers if decoder.span_of(vaddr) is not None)
    for reference in _from_covered_code(image, decoder, covered):
        (certain if reference.is_call else possible).add(reference.target)
    entry = _process_entry(image, decoder)
    if entry is not None:
        certain.discard(entry)
        possible.discard(entry)
    possible -= certain
    return Entries(frozenset(certain), frozenset(possible), frozenset(labels - certain - possible), entry)


def _process_entry(image: ElfImage, decoder: Decoder) -> int | None:
    """Return where a process begins, which nothing has called; None where that is not in the code.

    Linkers have given libraries an entry point, too: the first function of their code.
    """
    entry = image.header.entry_vaddr
    if not entry or decoder.span_of(entry) is None:
        return None
    is_program = image.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in image.segments)
    return entry if is_program or dynamic_entries(image).get(c.DT_FLAGS_1, 0) & c.DF_1_PIE else None


def _symbols(image: ElfImage, decoder: Decoder) -> tuple[set[int], set[int]]:
    """Return the addresses of functions' symbols, and of symbols of other things."""
    functions: set[int] = set()
    others: set[int] = set()
    for table in image.symbol_tables:
        with suppress(ElfError):
            for symbol in image.symbols(table):
                if symbol.vaddr is None or decoder.span_of(symbol.vaddr) is None:
                    continue
                if symbol.type in (c.STT_FUNC, c.STT_GNU_IFUNC):
                    functions.add(symbol.vaddr)
                elif symbol.type == c.STT_NOTYPE:
                    others.add(symbol.vaddr)
    return functions, others


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
        data = decoder.code.read(code, code.start_vaddr, code.end_vaddr)
        for reference in references_to(machine, data, code.start_vaddr, wanted, is_fixed=is_fixed):
            if decoder.span_of(reference.target) is None:
                continue
            index = bisect_right(starts, reference.vaddr) - 1
            if index < 0 or reference.vaddr >= covered[index].end:
                continue
            if decoder.arch.alignment == image.arch.prologue_step:
                # Every instruction has this size.
                yield reference
                continue
            by_function.setdefault(index, set()).add(reference)
    for index, found in by_function.items():
        yield from found.intersection(_references(image, decoder, covered[index], {each.vaddr for each in found}))


def _references(image: ElfImage, decoder: Decoder, span: Span, wanted: set[int]) -> Iterator[Reference]:
    """Yield what the instructions of a function at the addresses `wanted` call, jump to or load."""
    code = image.code_range_of(span.start)
    if code is None:
        return
    data = decoder.code.read(code, span.start, min(span.end, max(wanted) + _MAX_INSTRUCTION_SIZE))
    for address, size, mnemonic, operands in decoder.disassemble(data, span.start):
        effect = decoder.arch.effect_of(address, size, mnemonic, operands) if address in wanted else None
        if effect is None:
            continue
        if effect.flow in (Flow.CALL, Flow.JUMP) and effect.target is not None:
            yield Reference(address, effect.target, effect.flow == Flow.CALL)
        for step in effect.steps:
            if step.op in (Op.CONSTANT, Op.ABSOLUTE):
                yield Reference(address, step.offset & _MASK, is_call=False)
