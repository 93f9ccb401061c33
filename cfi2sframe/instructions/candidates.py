# SPDX-License-Identifier: Apache-2.0
"""Where functions may begin in some code: what symbols, data and code say.

Nothing here is certain: whatever may be an entry is one candidate more.
"""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.references import dynamic_entries, initializer_vaddrs, referred_addresses
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.effects import PAGE_BITS, Flow, Op, Reference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.instructions.decoder import Decoder

_MAX_INSTRUCTION_SIZE: Final = 15
_FUNCTIONS: Final = (c.STT_FUNC, c.STT_GNU_IFUNC, c.STT_NOTYPE)


def find_candidates(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> set[int]:
    """Return the addresses that may be entries of functions, without that of the process, in a decoder's code.

    `covered` are the ranges that have CFI, ascending.
    """
    found: set[int] = set()
    # A damaged table refers to nothing.
    with suppress(ElfError):
        # The linker's relocations also fill fields within instructions, which begin nothing.
        found.update(referred_addresses(image, with_static=False))
    with suppress(ElfError):
        found.update(set() if image.is_relocatable else initializer_vaddrs(image))
    for table in image.symbol_tables:
        with suppress(ElfError):
            symbols = image.symbols(table)
            found.update(each.vaddr for each in symbols if each.vaddr is not None and each.type in _FUNCTIONS)
    found.update(_from_covered_code(image, decoder, covered))
    return {vaddr for vaddr in found if decoder.holds(vaddr)} - {process_entry(image, decoder)}


def process_entry(image: ElfImage, decoder: Decoder) -> int | None:
    """Return where a process begins, which nothing has called; None where that is not in a decoder's code.

    Linkers have given libraries an entry point, too: the first function of their code.
    """
    entry = image.header.entry_vaddr
    if not entry or not decoder.holds(entry):
        return None
    is_program = image.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in image.segments)
    return entry if is_program or dynamic_entries(image).get(c.DT_FLAGS_1, 0) & c.DF_1_PIE else None


def _from_covered_code(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Iterator[int]:
    """Yield what covered code refers to in the code that a decoder reads.

    Where instructions have several sizes, they are searched at every address, which is quick. Of what is found, little
    leads to code without CFI; the function around it is then decoded from its start on, and only instructions count.
    """
    if not covered:
        return
    starts = [span.start for span in covered]
    by_function: dict[int, set[Reference]] = {}
    pages = {page for start, end in decoder.spans for page in range(start >> PAGE_BITS, (end - 1 >> PAGE_BITS) + 1)}
    is_fixed = image.header.type == c.ET_EXEC
    for code in image.code_ranges:
        data = decoder.read(code.start_vaddr, code.end_vaddr)
        for reference in decoder.abi.references(data, code.start_vaddr, pages, is_fixed):
            index = bisect_right(starts, reference.vaddr) - 1
            if index < 0 or reference.vaddr >= covered[index].end or not decoder.holds(reference.target):
                continue
            if image.arch.instruction_alignment == image.arch.prologue_step:
                # Every instruction has this size.
                yield reference.target
            else:
                by_function.setdefault(index, set()).add(reference)
    for index, found in by_function.items():
        wanted = {each.vaddr for each in found}
        yield from [each.target for each in _references(decoder, covered[index], wanted) if each in found]


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
                yield Reference(address, step.offset & (1 << 64) - 1, is_call=False)
