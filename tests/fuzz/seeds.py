# SPDX-License-Identifier: Apache-2.0
"""Inputs to start from, made by the tests' own assemblers: small files with a bit of everything in them."""

from collections.abc import Iterator
from functools import cache
from typing import Final

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, cie_of, object_file, push_fp
from tests.support.sframe.raw_sframe import RawFunction, RawSection

ARCHES: Final = (AMD64, AARCH64_LE, S390X, AARCH64_BE)
#: Addresses as a linker gives them to a small file: one page of headers and CFI, one of code.
BASE_VADDR: Final = 0x400000
CODE_SIZE: Final = 0x140
PT_NULL: Final = 0
PT_LOAD: Final = 1
PT_GNU_EH_FRAME: Final = 0x6474E550
ET_DYN: Final = 3
#: After the file header and five program headers.
_FRAME_VADDR: Final = BASE_VADDR + 64 + 56 * 5
SHF_ALLOC: Final = 2
#: `endbr64; push; jmp` and `jmp *; push; jmp`, as in `.plt`.
_STUBS: Final = {
    AMD64.name: bytes.fromhex("ff35e22f0000ff25e42f00000f1f4000" + "ff25e22f00006800000000e9e0ffffff" * 2),
    AARCH64_LE.name: bytes.fromhex("f07bbfa9900000b0110247f91082389120021fd61f2003d51f2003d51f2003d5")
    + bytes.fromhex("900000b0110647f910a2389120021fd6") * 2,
}


def _in_rows(*instructions: asm.Instruction) -> tuple[asm.Instruction, ...]:
    """Return instructions with a byte of code after each."""
    return tuple(each for instruction in instructions for each in (instruction, asm.advance(1)))


def instruction_lists(arch: Arch) -> Iterator[tuple[str, tuple[asm.Instruction, ...]]]:
    """Yield named lists of instructions, which together use every opcode."""
    fp, sp, ra = arch.fp_register, arch.sp_register, arch.ra_register
    yield "plain", push_fp(arch).instructions  # type: ignore[misc]  # its instructions are records here
    first = (asm.advance(1), asm.def_cfa(fp, 16), asm.advance1(70), asm.def_cfa_sf(sp, -2), asm.advance2(1))
    second = (asm.def_cfa_offset_sf(-4), asm.advance4(1), asm.def_cfa_register(3), asm.advance8(1))
    yield "defs", (*first, *second, asm.gnu_args_size(16), asm.nop())
    saved = (asm.offset_extended(fp, 3), asm.offset_extended_sf(fp, -2), asm.gnu_negative_offset_extended(fp, 2))
    values = (asm.val_offset(sp, 0), asm.val_offset_sf(fp, 1), asm.register(ra, 3))
    none = (asm.same_value(fp), asm.undefined(ra))
    yield "rules", (*_in_rows(*saved, *values, *none), asm.restore(min(ra, 63)), asm.restore_extended(fp))
    loaded = (asm.def_cfa_expression(b"\x77\x28\x06"), asm.expression(fp, b"\x76\x00"), asm.advance(2))
    summed = (asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"), asm.val_expression(fp, b"\x77\x08"), asm.advance(2))
    yield "expressions", (*loaded, *summed, asm.def_cfa(sp, 16))
    remembered = (asm.remember_state(), asm.advance(1), asm.def_cfa_offset(32))
    again = (asm.remember_state(), asm.advance(1), asm.def_cfa_offset(48), asm.aarch64_negate_ra_state())
    restored = (asm.restore_state(), asm.advance(1), asm.restore_state(), asm.set_loc(BASE_VADDR + 0x1010))
    yield "states", (*remembered, *again, *restored)


def _functions(arch: Arch, code_vaddr: int) -> list[asm.Fde]:
    return [
        asm.Fde(cie_of(arch), code_vaddr + 0x40 * number, 0x40, tuple(i for i in instructions if i.opcode != 1))
        for number, (_, instructions) in enumerate(instruction_lists(arch))
    ]


def _unwind_tables(arch: Arch, code_vaddr: int, *, debug_frame: bool) -> tuple[bytes, bytes]:
    """Return the CFI of functions at an address, and its search table."""
    little = arch.byte_order == "<"
    entries: tuple[asm.Entry, ...] = (*_functions(arch, code_vaddr), asm.Terminator())
    section = asm.EhFrame(entries, _FRAME_VADDR, little_endian=little, debug_frame=debug_frame)
    frame = section.assemble()
    starts = [fde.pc_begin for fde in _functions(arch, code_vaddr)]
    table = tuple(zip(starts, (_FRAME_VADDR + offset for offset in section.fde_offsets()), strict=True))
    return frame, asm.eh_frame_hdr(_FRAME_VADDR + len(frame), _FRAME_VADDR, table, little_endian=little)


@cache
def linked_file(arch: Arch, *, section_headers: bool = True, debug_frame: bool = False) -> bytes:
    """Return a small library with several functions, stubs, symbols and a search table."""
    little = arch.byte_order == "<"
    kind = ".debug_frame" if debug_frame else ".eh_frame"
    stubs = _STUBS.get(arch.name, bytes(16))
    # The sizes of the tables are needed for the address of the code, and do not depend on it.
    frame, search_table = _unwind_tables(arch, BASE_VADDR, debug_frame=debug_frame)
    hdr_vaddr = _FRAME_VADDR + len(frame)
    stubs_vaddr = hdr_vaddr + len(search_table) + 0x1000
    code_vaddr = stubs_vaddr + len(stubs)
    frame, search_table = _unwind_tables(arch, code_vaddr, debug_frame=debug_frame)
    sections = (
        asm.Section(kind, frame, 1, SHF_ALLOC, _FRAME_VADDR, align=1),
        asm.Section(".eh_frame_hdr", search_table, 1, SHF_ALLOC, hdr_vaddr, align=1),
        asm.Section(".plt", stubs, 1, CODE, stubs_vaddr, entsize=16),
        asm.Section(".text", bytes(CODE_SIZE), 1, CODE, code_vaddr),
    )
    return asm.elf_file(
        arch.elf_machine,
        sections,
        file_type=ET_DYN,
        little_endian=little,
        segments=(
            asm.Segment(PT_LOAD, 4, (kind, ".eh_frame_hdr"), headers=True),
            asm.Segment(PT_LOAD, 5, (".plt", ".text")),
            asm.Segment(PT_GNU_EH_FRAME, 4, (".eh_frame_hdr",), align=4),
            # Free entries, which an added segment can use.
            *[asm.Segment(PT_NULL, 0, (kind,))] * 2,
        ),
        symbols=(asm.Symbol("f", code_vaddr, 0x40), asm.Symbol("g", code_vaddr + 0x40, 0x40)),
        section_headers=section_headers,
    )


@cache
def small_object(arch: Arch) -> bytes:
    """Return an object with two text sections and relocations."""
    lists = [tuple(i for i in instructions if i.opcode != 1) for _, instructions in instruction_lists(arch)]
    fdes = [asm.Fde(cie_of(arch), 0x40 * number, 0x40, code) for number, code in enumerate(lists)]
    return object_file(arch, {".text": tuple(fdes[:3]), ".text.cold": tuple(fdes[:2])}, symbols=(asm.Symbol("f"),))


def sframe_sections() -> Iterator[tuple[str, bytes]]:
    """Yield raw sections of all versions: several functions, PCMASK, signal frames, flexible rows, outermost ones."""
    three = b"\x00\x03\x08\x01\x05\x10\xf0\x04\x04\x10\xf0"
    for version in (1, 2, 3):
        functions = [RawFunction(0x20000, 0x20, three, 3), RawFunction(0x20020, 0x10)]
        functions.append(RawFunction(0x20040, 0x40, b"\x00\x03\x08\x0b\x03\x10", 2, 0x10, 0, 16))
        functions.append(RawFunction(0x20100, 0x400, b"\x00\x00\x03\x08\x00\x02\x23\x00\x01", 2, 1))
        if version > 1:
            functions.append(RawFunction(0x20500, 4, b"\x00\x00"))
        if version > 2:
            functions.append(RawFunction(0x20600, 4, b"\x00\x0c\x3b\x10\x02\xf8\x02\xf0", 1, 0x80, 1))
        yield f"amd64-{version}", RawSection(tuple(functions), version).assemble()
        rows = b"\x00\x03\x00\x04\x87\x10\xf8\xf0"
        aarch64 = RawSection((RawFunction(0x20000, 0x20, rows, 2, 0x20),), version, abi=2, fixed_ra=0)
        yield f"aarch64-{version}", aarch64.assemble()
        rows = b"\x00\x03\x00\x04\x07\x14\x00\xf0\x08\x05\x14\x21"
        s390x = RawSection((RawFunction(0x20000, 0x20, rows, 3),), version, ">", abi=4, fixed_ra=0)
        yield f"s390x-{version}", s390x.assemble()
