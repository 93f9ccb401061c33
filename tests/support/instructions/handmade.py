# SPDX-License-Identifier: Apache-2.0
"""Files of plain code bytes, with symbols and some data, and what has to hold of whatever is derived from them."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.conversion.sources import read_programs
from cfi2sframe.conversion.uncovered import as_cfi
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import Derived
from cfi2sframe.range_map import Span, without
from tests.support.elf import elf_asm
from tests.support.elf.samples import CODE, SHF_ALLOC, TEXT_VADDR, loaded_file

STT_FUNC: Final = 0x12
STT_NOTYPE: Final = 0x10
#: Where the data of a file are that has some.
DATA_VADDR: Final = 0x10000


def code_file(
    arch: Arch,
    text: bytes,
    *,
    functions: Iterable[int] = (0,),
    labels: Iterable[int] = (),
    data: bytes = b"",
    more: tuple[elf_asm.Section, ...] = (),
    entry: int | None = None,
) -> bytes:
    """Return a library whose `.text` at `TEXT_VADDR` has these bytes, and `.rodata` at `DATA_VADDR` some others.

    `functions` are offsets in the code with symbols of functions, `labels` those of symbols without a type; `entry` is
    the offset of the process's entry.
    """
    symbols = [elf_asm.Symbol(f"f{offset:x}", TEXT_VADDR + offset, 0, STT_FUNC) for offset in functions]
    symbols += [elf_asm.Symbol(f"l{offset:x}", TEXT_VADDR + offset, 0, STT_NOTYPE) for offset in labels]
    rodata = (elf_asm.Section(".rodata", data, 1, SHF_ALLOC, DATA_VADDR, align=16),) if data else ()
    return loaded_file(
        arch,
        (elf_asm.Section(".text", text, 1, CODE, TEXT_VADDR, align=16), *rodata, *more),
        symbols=tuple(symbols),
        entry_vaddr=0 if entry is None else TEXT_VADDR + entry,
    )


def problems_of(image: ElfImage, covered: Sequence[Span], derived: Derived) -> list[str]:
    """Return what is wrong with the records of a derivation, whatever the code is."""
    wanted = without([(code.start_vaddr, code.end_vaddr) for code in image.code_ranges], covered)
    functions = [(each.start_vaddr, each.start_vaddr + each.size) for each in derived.functions]
    left_out = [(each.start_vaddr, each.end_vaddr) for each in derived.left_out]
    found = [f"0x{start:x} is empty" for start, end in functions + left_out if start >= end]
    for name, spans in (("functions", functions), ("rests", left_out), ("all", sorted(functions + left_out))):
        found += [f"{name}: 0x{b:x} comes before 0x{a_end:x}" for (_, a_end), (b, _) in pairwise(spans) if a_end > b]
    outside = without(functions + left_out, wanted)
    found += [f"0x{start:x}..0x{end:x} is no code that was asked for" for start, end in outside]
    for each in derived.functions:
        starts, states = each.table.starts, each.table.states
        if starts[0] != 0 or list(starts) != sorted(set(starts)) or starts[-1] >= each.size:
            found.append(f"0x{each.start_vaddr:x}: rows at {starts}")
        if any(state.cfa is None and state.ra is not NoRule.UNDEFINED for state in states):
            found.append(f"0x{each.start_vaddr:x}: a row without a CFA")
    if not found and not image.is_relocatable:
        found += _problems_of_cfi(image, derived)
    return found


def _problems_of_cfi(image: ElfImage, derived: Derived) -> list[str]:
    """Return which functions do not read back as they are."""
    cfi = read_programs(image, (as_cfi(image, derived.functions),))
    read = [(entry.start_vaddr, entry.size, entry.program.table) for entry in cfi.entries]
    made = [(each.start_vaddr, each.size, each.table) for each in derived.functions]
    return [f"written {made}, read {read}"] if read != made else []
