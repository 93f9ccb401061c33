# SPDX-License-Identifier: Apache-2.0
"""Small ELF files around assembled CFI, for every ABI: linked ones and relocatable ones.

Code is SHT_NOBITS where its size matters and its bytes do not, so a function of a megabyte costs nothing.
"""

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.elf.image import ElfImage
from tests.support.dwarf import cfi_asm as asm

ET_DYN: Final = 3
PT_LOAD: Final = 1
SHT_NOBITS: Final = 8
SHF_ALLOC: Final = 0x2
SHF_EXECINSTR: Final = 0x4
CODE: Final = SHF_ALLOC | SHF_EXECINSTR

FRAME_VADDR: Final = 0x1000
TEXT_VADDR: Final = 0x20000

#: Relocation types for a PC-relative word of 32 bits.
_PC32: Final = {AMD64.elf_machine: 2, AARCH64_LE.elf_machine: 261, S390X.elf_machine: 5}
_INITIAL_CFA_OFFSETS: Final = {AMD64.name: 8, AARCH64_LE.name: 0, AARCH64_BE.name: 0, S390X.name: 160}


def cie_of(arch: Arch, *more: asm.Instruction, augmentation: str = "zR") -> asm.Cie:
    """Return the CIE that compilers write for an ABI, with more initial instructions."""
    usual = [asm.def_cfa(arch.sp_register, _INITIAL_CFA_OFFSETS[arch.name])]
    if arch.fixed_ra_offset:
        usual.append(asm.offset(arch.ra_register, -arch.fixed_ra_offset // 8))
    return asm.Cie(augmentation=augmentation, ra_register=arch.ra_register, instructions=(*usual, *more))


def parsed_cie(arch: Arch, *, ra_register: int | None = None, is_signal_frame: bool = False) -> DwarfCie:
    """Return a CIE as the package's reader makes it."""
    column = arch.ra_register if ra_register is None else ra_register
    return DwarfCie(1, "zR", 1, -8, column, 0x1B, 0xFF, is_signal_frame, uses_b_key=False, instructions=b"")


class Code(NamedTuple):
    """An executable section of a linked file: `size` bytes that do not matter, or `data`."""

    vaddr: int = TEXT_VADDR
    size: int = 0x1000
    name: str = ".text"
    data: bytes = b""


def eh_frame(arch: Arch, *entries: asm.Entry) -> asm.Section:
    """Return a linked file's .eh_frame."""
    frame = asm.EhFrame((*entries, asm.Terminator()), FRAME_VADDR, little_endian=arch.byte_order == "<")
    return asm.Section(".eh_frame", frame.assemble(), 1, SHF_ALLOC, FRAME_VADDR, align=8)


def debug_frame(arch: Arch, *entries: asm.Entry) -> asm.Section:
    """Return a linked file's .debug_frame."""
    frame = asm.EhFrame(entries, little_endian=arch.byte_order == "<", debug_frame=True)
    return asm.Section(".debug_frame", frame.assemble())


def loaded_file(
    arch: Arch,
    sections: Iterable[asm.Section],
    segments: Iterable[asm.Segment] = (),
    *,
    file_type: int = ET_DYN,
    symbols: tuple[asm.Symbol, ...] = (),
    entry_vaddr: int = 0,
    section_headers: bool = True,
) -> bytes:
    """Return a linked file in which each section with an address has a PT_LOAD of its own, before other segments."""
    sections = tuple(sections)
    loads = [asm.Segment(PT_LOAD, 5 if s.flags & SHF_EXECINSTR else 4, (s.name,)) for s in sections if s.addr]
    return asm.elf_file(
        arch.elf_machine,
        sections,
        file_type=file_type,
        little_endian=arch.byte_order == "<",
        segments=(*loads, *segments),
        symbols=symbols,
        entry_vaddr=entry_vaddr,
        section_headers=section_headers,
    )


def linked_file(
    arch: Arch,
    entries: Iterable[asm.Entry],
    *,
    codes: tuple[Code, ...] = (Code(),),
    symbols: tuple[asm.Symbol, ...] = (),
    more: tuple[asm.Section, ...] = (),
    segments: tuple[asm.Segment, ...] = (),
    entry_vaddr: int = 0,
    section_headers: bool = True,
    file_type: int = ET_DYN,
) -> bytes:
    """Return a shared library whose .eh_frame has these entries; it has `more` sections and `segments` than these."""
    texts = tuple(
        asm.Section(c.name, c.data, 1 if c.data else SHT_NOBITS, CODE, c.vaddr, nobits_size=c.size) for c in codes
    )
    return loaded_file(
        arch,
        (eh_frame(arch, *entries), *texts, *more),
        segments,
        file_type=file_type,
        symbols=symbols,
        entry_vaddr=entry_vaddr,
        section_headers=section_headers,
    )


def object_file(
    arch: Arch,
    fdes: Mapping[str, tuple[asm.Fde, ...]],
    *,
    code_size: int = 0x100,
    text: bytes = b"",
    symbols: tuple[asm.Symbol, ...] = (),
    more: tuple[asm.Section, ...] = (),
    relocations: tuple[asm.Relocation, ...] = (),
) -> bytes:
    """Return a relocatable object; `fdes` by executable section, their `pc_begin` counted from its start.

    Executable sections have `code_size` bytes that do not matter, or `text`; `NAME.start` is the symbol of each.
    """
    ordered = [(name, fde) for name, group in fdes.items() for fde in group]
    frame = asm.EhFrame(tuple(fde for _, fde in ordered), little_endian=arch.byte_order == "<")
    of_frame = tuple(
        asm.Relocation(".eh_frame", start + 8, f"{name}.start", _PC32[arch.elf_machine], fde.pc_begin)
        for start, (name, fde) in zip(frame.fde_offsets(), ordered, strict=True)
    )
    code = asm.Section("", text, 1 if text else SHT_NOBITS, CODE, align=16, nobits_size=0 if text else code_size)
    return asm.elf_file(
        arch.elf_machine,
        (
            *(code._replace(name=name) for name in fdes),
            *more,
            asm.Section(".eh_frame", frame.assemble(), 1, SHF_ALLOC, align=8),
        ),
        little_endian=arch.byte_order == "<",
        symbols=(*symbols, *(asm.Symbol(f"{name}.start", info=3, section=name) for name in fdes)),
        relocations=(*of_frame, *relocations),
    )


def linked(arch: Arch, *fdes: asm.Entry, code_size: int = 0x1000) -> ElfImage:
    """Return the image of a linked file with these entries."""
    return load(linked_file(arch, fdes, codes=(Code(size=code_size),)), "sample")


def push_fp(arch: Arch, start: int = TEXT_VADDR, size: int = 32) -> asm.Fde:
    """Return an FDE of three rows: entry, a frame with FP and RA saved, and the CFA by FP."""
    frame_size = 8 if arch.fixed_ra_offset else 16
    instructions = (
        asm.advance(4),
        asm.def_cfa_offset(_INITIAL_CFA_OFFSETS[arch.name] + frame_size),
        asm.offset(arch.fp_register, 2),
        *(() if arch.fixed_ra_offset else (asm.offset(arch.ra_register, 1),)),
        asm.advance(4),
        asm.def_cfa_register(arch.fp_register),
    )
    return asm.Fde(cie_of(arch), start, size, instructions)
