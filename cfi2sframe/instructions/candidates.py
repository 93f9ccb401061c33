# SPDX-License-Identifier: Apache-2.0
"""Addresses at which functions may begin in some code, from symbols, data and code.

None of them is certain: whatever may be an entry is a candidate.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.references import initializer_vaddrs, referred_addresses
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import Effect, Flow, Op
from cfi2sframe.range_map import ADDRESS_MASK, Span

_MAX_INSTRUCTION_SIZE: Final = 15
_FUNCTIONS: Final = (c.STT_FUNC, c.STT_GNU_IFUNC, c.STT_NOTYPE)


def find_candidates(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> set[int]:
    """Return the addresses in a decoder's code that may be entries of functions, without the entry of the process.

    `covered` are the ranges that have CFI, ascending.
    """
    addresses: set[int] = set()
    # A damaged table refers to nothing.
    with suppress(ElfError):
        # The linker's relocations also fill fields within instructions, which begin nothing.
        addresses.update(referred_addresses(image, with_static=False))
    with suppress(ElfError):
        addresses.update(() if image.is_relocatable else initializer_vaddrs(image))
    for table in image.symbol_tables:
        with suppress(ElfError):
            addresses.update(s.vaddr for s in image.symbols(table) if s.vaddr is not None and s.type in _FUNCTIONS)
    addresses.update(_from_covered_code(image, decoder, covered))
    return {vaddr for vaddr in addresses if decoder.holds(vaddr)} - {process_entry(image, decoder)}


def process_entry(image: ElfImage, decoder: Decoder) -> int | None:
    """Return the entry of the process, which nothing calls; None where it is not in a decoder's code.

    Linkers have given libraries an entry point, too, the first function of their code: it is none.
    """
    entry = image.header.entry_vaddr
    if not entry or not decoder.holds(entry):
        return None
    is_program = image.header.type == c.ET_EXEC or any(segment.type == c.PT_INTERP for segment in image.segments)
    return entry if is_program or dynamic_entries(image).get(c.DT_FLAGS_1, 0) & c.DF_1_PIE else None


def _from_covered_code(image: ElfImage, decoder: Decoder, covered: Sequence[Span]) -> Iterator[int]:
    """Yield the addresses in a decoder's code to which covered code refers.

    Where instructions have several sizes, references are searched at every address, which is quick. Few lead to code
    without CFI; the function around one is then decoded from its start, and only instructions count.
    """
    if not covered:
        return
    starts = [span.start for span in covered]
    targets_by_function: dict[int, dict[int, int]] = {}
    is_fixed = image.header.type == c.ET_EXEC
    for code in image.code_ranges:
        data = decoder.read(code.start_vaddr, code.end_vaddr)
        for vaddr, target in decoder.abi.references(data, code.start_vaddr, is_fixed):
            if not decoder.holds(target):
                continue
            index = bisect_right(starts, vaddr) - 1
            if index < 0 or vaddr >= covered[index].end:
                continue
            if image.arch.instruction_alignment == image.arch.prologue_step:
                # Every instruction has this size.
                yield target
            else:
                targets_by_function.setdefault(index, {})[vaddr] = target
    for index, targets in targets_by_function.items():
        end = min(covered[index].end, max(targets) + _MAX_INSTRUCTION_SIZE)
        for at, size, mnemonic, operands in decoder.disassemble(covered[index].start, end):
            effect = decoder.effect_of(at, size, mnemonic, operands) if at in targets else None
            if effect is not None and targets[at] in _referred(effect):
                yield targets[at]


def _referred(effect: Effect) -> list[int | None]:
    """Return the addresses that an instruction calls, jumps to or loads."""
    loaded = [step.offset & ADDRESS_MASK for step in effect.steps if step.op is Op.NUMBER]
    return [*loaded, effect.target if effect.flow in (Flow.CALL, Flow.JUMP) else None]
