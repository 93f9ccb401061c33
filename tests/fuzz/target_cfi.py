# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as `.eh_frame` or `.debug_frame`, through the parser of entries and the row machine."""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import islice, pairwise

from cfi2sframe.dwarf.entries import DwarfFde
from cfi2sframe.dwarf.numbers import Location, PointerBases
from cfi2sframe.dwarf.row_machine import RowMachine
from cfi2sframe.elf.cfi import CfiKind, CfiSection
from cfi2sframe.errors import CfiError
from tests.fuzz import seeds as make
from tests.fuzz.harness import expect
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.entries import parse_entries
from tests.support.elf.samples import cie_of

_VADDR = 0x400000


def _load_word(vaddr: int) -> int | None:
    return vaddr ^ 0x1000 if vaddr % 3 else None


def run(data: bytes) -> None:
    """Parse a section and interpret its FDEs. The first byte chooses the ABI and the kind of section."""
    if not data:
        return
    arch = make.ARCHES[data[0] % len(make.ARCHES)]
    kind: CfiKind = "debug_frame" if data[0] & 0x10 else "eh_frame"
    must_find = data[0] if data[0] & 0x20 else None
    section = CfiSection("." + kind, kind, data[1:], _VADDR, {}, frozenset(), 0x500000, must_find)
    bases = PointerBases(arch.byte_order, section.table_vaddr, _load_word)
    try:
        table = parse_entries(section, bases)
    except CfiError:
        return
    machine_of = cache(partial(RowMachine, arch=arch))
    for fde in table.fdes:
        expect(0 <= fde.pc_begin_vaddr < 1 << 64, f"pc_begin 0x{fde.pc_begin_vaddr:x}")
        expect(0 <= fde.pc_range < 1 << 64, f"pc_range {fde.pc_range}")
        location = Location(fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases)
        interpreted = _answer(partial(RowMachine, fde.cie, arch), fde, location)
        looked_up = _answer(partial(machine_of, fde.cie), fde, location)
        both = f"{interpreted}, {looked_up}"
        expect(interpreted == looked_up, f"the two ways differ for {fde.instructions.hex()}: {both}")


def _answer(machine: Callable[[], RowMachine], fde: DwarfFde, location: Location) -> object:
    try:
        table = machine().run(fde.instructions, location)
    except CfiError as error:
        return error.reason
    expect(table.starts[0] == 0, "the first row starts late")
    for before, after in islice(pairwise(zip(table.starts, table.states, strict=True)), 1000):
        expect(before[0] < after[0], f"row starts {before[0]}, {after[0]}")
        expect(before[1] != after[1], "two equal rows, one after the other")
    return table


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield sections of both kinds with every instruction, and CIEs of several shapes."""
    for number, arch in enumerate(make.ARCHES[:3]):
        little = arch.byte_order == "<"
        for name, code in make.instruction_lists(arch):
            fde = asm.Fde(cie_of(arch), 0x401000, 0x40, code)
            frame = asm.EhFrame((fde, asm.Terminator()), _VADDR, little_endian=little)
            yield f"{arch.name.lower()}-{name}", bytes([number]) + frame.assemble()
    arch = make.ARCHES[0]
    code = (asm.advance(1), asm.def_cfa_offset(16))
    cies = {
        "personality": cie_of(arch, augmentation="zPLRS")._replace(lsda_encoding=0x1B),
        "absolute": cie_of(arch)._replace(fde_encoding=0),
        "leb128": cie_of(arch)._replace(fde_encoding=0x11),
        "aligned": cie_of(arch)._replace(fde_encoding=0x50),
        "indirect": cie_of(arch)._replace(fde_encoding=0x9B),
        "version-4": cie_of(arch, augmentation="")._replace(version=4),
    }
    for name, cie in cies.items():
        debug = name == "version-4"
        if name == "indirect":
            # The assembler knows no memory to point through: the encoding goes in by hand.
            entries = asm.EhFrame((asm.Fde(cie_of(arch), 0x401000, 0x40, code),), _VADDR).assemble()
            yield name, b"\0" + entries.replace(b"zR\0\x01\x78\x10\x01\x1b", b"zR\0\x01\x78\x10\x01\x9b")
            continue
        frame = asm.EhFrame((asm.Fde(cie, 0x401000, 0x40, code),), _VADDR, debug_frame=debug, dwarf64=debug)
        yield name, bytes([0x10 if debug else 0]) + frame.assemble()
