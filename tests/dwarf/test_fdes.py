# SPDX-License-Identifier: Apache-2.0
"""The FDEs of an image and their distinct programs: records on demand, damage, ends, indirect pointers."""

from pathlib import Path

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.abi import AARCH64_BE, AMD64, Arch
from cfi2sframe.conversion.sources import Cfi, find_cfi, read_programs
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.elf.image import ElfImage
from tests.golden.expected import objects
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, FRAME_VADDR, TEXT_VADDR, cie_of, debug_frame, linked

UNKNOWN = b"\x3f"


def cfi_of(image: ElfImage) -> Cfi:
    return read_programs(image, *find_cfi(image))


def fde(start: int, *instructions: asm.Instruction | bytes, size: int = 16) -> asm.Fde:
    return asm.Fde(cie_of(AMD64), TEXT_VADDR + start, size, instructions)


@pytest.mark.parametrize("path", objects(), ids=lambda path: path.stem)
def test_entries_are_what_the_columns_say(path: Path) -> None:
    entries = cfi_of(load(path)).entries
    in_turn = list(entries)
    assert [entry.fde for entry in in_turn] == list(range(len(entries)))
    assert [entry.start_vaddr for entry in in_turn] == list(entries.starts)
    assert [entry.program for entry in in_turn] == [entries.programs[index] for index in entries.program_of]
    for number in (-1, len(entries)):
        with pytest.raises(IndexError):
            entries[number]


def test_damaged_fdes_have_no_number() -> None:
    """The first FDE, one between others, and the last."""
    broken = (0, 0x20, 0x40)
    cfi = cfi_of(
        linked(AMD64, *(fde(start, UNKNOWN) if start in broken else fde(start) for start in range(0, 0x50, 16)))
    )
    assert [entry.start_vaddr - TEXT_VADDR for entry in cfi.entries] == [0x10, 0x30]
    assert [damaged.start_vaddr for damaged in cfi.damaged] == [TEXT_VADDR + start for start in broken]


@pytest.mark.parametrize("before", [0, 1, 5])
def test_damage_has_the_offset_of_its_instruction(before: int) -> None:
    """The byte `3e` is the unknown instruction, and the only such byte."""
    image = linked(AMD64, fde(0), fde(0x10, bytes(before) + b"\x3e"))
    cfi = cfi_of(image)
    (section,) = cfi.sections
    assert isinstance(section, CfiSection)
    (damaged,) = cfi.damaged
    error = damaged.error
    assert (error.where, error.offset) == (".eh_frame", bytes(section.data).index(b"\x3e"))


def test_functions_of_one_program_that_end_alike_share_a_shorter_one() -> None:
    steps = (asm.advance(4), asm.def_cfa_offset(16), asm.advance(4), asm.def_cfa_offset(24))
    sizes = (9, 8, 4, 8, 5, 1, 9)
    entries = cfi_of(linked(AMD64, *(fde(16 * n, *steps, size=size) for n, size in enumerate(sizes)))).entries
    rows = [entry.program.table.starts for entry in entries]
    assert rows == [(0, 4, 8), (0, 4), (0,), (0, 4), (0, 4), (0,), (0, 4, 8)]
    # A program for each size, although those of 8 and 5 bytes have the same rows.
    assert list(entries.program_of) == [0, 1, 2, 1, 3, 4, 0]


@pytest.mark.parametrize("arch", [AMD64, AARCH64_BE], ids=lambda arch: arch.name)
def test_an_indirect_pointer_is_loaded_from_the_image(arch: Arch) -> None:
    """The word is the operand of an instruction of the CIE that changes no row."""
    word = TEXT_VADDR.to_bytes(8, "little" if arch.byte_order == "<" else "big")
    cie = cie_of(arch)._replace(
        fde_encoding=asm.DW_EH_PE_INDIRECT | asm.DW_EH_PE_UDATA4,
        instructions=(*cie_of(arch).instructions, b"\x16\x03\x08" + word),
    )

    def cfi_through(vaddr: int) -> Cfi:
        return cfi_of(linked(arch, asm.Fde(cie, vaddr, 16)))

    (section,) = cfi_through(0).sections
    assert isinstance(section, CfiSection)
    cfi = cfi_through(FRAME_VADDR + bytes(section.data).index(word))
    assert list(cfi.entries.starts) == [TEXT_VADDR]
    (damaged,) = cfi_through(0x7FFF_0000).damaged
    assert "indirect pointer through 0x7fff0000" in damaged.error.reason


#: Ranges of FDEs as start and size, by the offset of the CFA that tells them apart: a dead function, two live ones.
DEAD, LIVE, NEXT = (0, 0x3A, 24), (0, 0x1B, 16), (0x20, 0x1D, 32)


@pytest.mark.parametrize(
    ("ranges", "symbol_size", "kept"),
    [
        # As GNU ld --gc-sections leaves them, in either order.
        ((DEAD, LIVE, NEXT), 0x1B, (16, 32)),
        ((LIVE, DEAD, NEXT), 0x1B, (16, 32)),
        # Without symbols: a function does not reach into the next one.
        ((DEAD, LIVE, NEXT), 0, (16, 32)),
        ((DEAD, LIVE, (0, 8, 40), NEXT), 0, (32,)),
        ((DEAD, LIVE), 0, ()),
        ((LIVE,), 0, (16,)),
        ((DEAD,), 0, (24,)),
        ((DEAD, NEXT), 0, (32,)),
        # The symbol's function has no FDE, or two: one is dead.
        ((DEAD, NEXT), 0x1B, (32,)),
        ((LIVE, (0, 0x1B, 40), NEXT), 0x1B, (32,)),
        ((LIVE, LIVE, NEXT), 0x1B, (16, 16, 32)),
        ((LIVE, (0, 8, 40), NEXT), 0x1B, (16, 32)),
        ((LIVE, (0, 8, 40), NEXT), 0x1A, (32,)),
        ((LIVE, (0, 8, 16), NEXT), 0, (32,)),
        (((0, 0, 40), LIVE, NEXT), 0, (16, 32)),
        # The other mark.
        (((1, 0x3A, 24), LIVE, NEXT), 0x1B, (16, 32)),
        (((1, 0x1A, 24), LIVE, NEXT), 0, (16, 32)),
        (((1, 0x3A, 24), NEXT), 0, (32,)),
    ],
)
def test_fdes_of_discarded_functions_where_there_is_code(
    ranges: tuple[tuple[int, int, int], ...], symbol_size: int, kept: tuple[int, ...]
) -> None:
    cie = cie_of(AMD64, augmentation="")
    fdes = tuple(asm.Fde(cie, start, size, (asm.def_cfa_offset(offset),)) for start, size, offset in ranges)
    frame, symbols = debug_frame(AMD64, *fdes), (asm.Symbol("first", 0, symbol_size),) if symbol_size else ()
    text = asm.Section(".text", bytes(0x100), 1, CODE, 0)
    segments = (asm.Segment(1, 5, (".text",)),)
    data = asm.elf_file(AMD64.elf_machine, (text, frame), file_type=2, segments=segments, symbols=symbols)
    conversion = convert(load(data, "p"))
    entries = conversion.cfi.entries
    offsets = [entry.program.table.states[0].cfa for entry in entries if entry.size]
    assert [rule and getattr(rule, "offset", None) for rule in offsets] == list(kept)
    assert not kept or verify(conversion).is_clean
    # Where no code is at these addresses, nothing is decided by them.
    above = asm.elf_file(
        AMD64.elf_machine, (text._replace(addr=0x20), frame), file_type=2, segments=segments, symbols=symbols
    )
    assert list(cfi_of(load(above)).entries.sizes) == [size for _, size, _ in ranges]
