# SPDX-License-Identifier: Apache-2.0
"""An assembler of call frame information for tests: records in, bytes of .eh_frame or .debug_frame out.

It shares nothing with the package under test, and so does not repeat its errors.  The
instruction functions and the ELF writer live in modules of their own and are offered here too.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple, TypeAlias

from tests.support.cfi_instructions import (
    Instruction,
    Operand,
    aarch64_negate_ra_state,
    aarch64_negate_ra_state_with_pc,
    aarch64_set_ra_state,
    advance,
    advance0,
    advance1,
    advance2,
    advance4,
    advance8,
    def_cfa,
    def_cfa_expression,
    def_cfa_offset,
    def_cfa_offset_sf,
    def_cfa_register,
    def_cfa_sf,
    expression,
    gnu_args_size,
    gnu_negative_offset_extended,
    nop,
    offset,
    offset_extended,
    offset_extended_sf,
    register,
    remember_state,
    restore,
    restore_extended,
    restore_state,
    same_value,
    set_loc,
    sleb128,
    uleb128,
    undefined,
    val_expression,
    val_offset,
    val_offset_sf,
)
from tests.support.elf_asm import Relocation, Section, Segment, Symbol, eh_frame_hdr, elf_file

__all__ = [
    "Cie",
    "EhFrame",
    "Entry",
    "Fde",
    "Instruction",
    "Operand",
    "Raw",
    "Relocation",
    "Section",
    "Segment",
    "Symbol",
    "Terminator",
    "aarch64_negate_ra_state",
    "aarch64_negate_ra_state_with_pc",
    "aarch64_set_ra_state",
    "advance",
    "advance0",
    "advance1",
    "advance2",
    "advance4",
    "advance8",
    "def_cfa",
    "def_cfa_expression",
    "def_cfa_offset",
    "def_cfa_offset_sf",
    "def_cfa_register",
    "def_cfa_sf",
    "eh_frame_hdr",
    "elf_file",
    "encode_pointer",
    "expression",
    "gnu_args_size",
    "gnu_negative_offset_extended",
    "nop",
    "offset",
    "offset_extended",
    "offset_extended_sf",
    "register",
    "remember_state",
    "restore",
    "restore_extended",
    "restore_state",
    "same_value",
    "set_loc",
    "sleb128",
    "uleb128",
    "undefined",
    "val_expression",
    "val_offset",
    "val_offset_sf",
]

DW_EH_PE_ABSPTR = 0x00
DW_EH_PE_ULEB128 = 0x01
DW_EH_PE_UDATA4 = 0x03
DW_EH_PE_SLEB128 = 0x09
DW_EH_PE_ALIGNED = 0x50
DW_EH_PE_INDIRECT = 0x80
DW_EH_PE_OMIT = 0xFF
POINTER_SIZES = {0x00: 8, 0x02: 2, 0x03: 4, 0x04: 8, 0x08: 8, 0x0A: 2, 0x0B: 4, 0x0C: 8}


class Cie(NamedTuple):
    """A common information entry.  Raw bytes of `instructions` are written as they are, one after the other."""

    version: int = 1
    augmentation: str = "zR"
    code_align: int = 1
    data_align: int = -8
    ra_register: int = 16
    fde_encoding: int = 0x1B
    instructions: tuple[Instruction | bytes, ...] = ()
    personality_encoding: int = 0x00
    personality_vaddr: int = 0
    lsda_encoding: int = DW_EH_PE_OMIT
    eh_data: int = 0
    address_size: int = 8
    segment_selector_size: int = 0
    tag: Literal["cie"] = "cie"


class Fde(NamedTuple):
    """A frame description entry of the function at [pc_begin, pc_begin + size)."""

    cie: Cie
    pc_begin: int
    size: int
    instructions: tuple[Instruction | bytes, ...] = ()
    lsda_vaddr: int = 0
    tag: Literal["fde"] = "fde"


class Terminator(NamedTuple):
    """A zero length, as the one at the end of .eh_frame; GNU ld leaves some in the middle."""

    tag: Literal["terminator"] = "terminator"


class Raw(NamedTuple):
    """Bytes that are written unchanged."""

    data: bytes
    tag: Literal["raw"] = "raw"


Entry: TypeAlias = Cie | Fde | Terminator | Raw


class EhFrame(NamedTuple):
    """A section to assemble.

    A CIE is written where `entries` has it; one that is not listed, before its first FDE.  An FDE
    belongs to the very object it names, else to the first equal one.  `cie_pointer_size` matters in
    64-bit DWARF within .eh_frame alone: the LSB and LLVM have 4 bytes, elfutils reads 8.
    """

    entries: tuple[Entry, ...]
    address: int = 0
    dwarf64: bool = False
    little_endian: bool = True
    debug_frame: bool = False
    data_base: int = 0
    text_base: int = 0
    function_base: int = 0
    cie_pointer_size: int = 4

    def assemble(self) -> bytes:
        """Return the bytes of the section."""
        return b"".join(self._chunks())

    def offsets(self) -> tuple[int, ...]:
        """Return where each entry of `all_entries` starts, as offsets in the section."""
        starts, position = [], 0
        for chunk in self._chunks():
            starts.append(position)
            position += len(chunk)
        return tuple(starts)

    def all_entries(self) -> tuple[Entry, ...]:
        """Return the entries together with the CIEs that are not listed."""
        complete: list[Entry] = []
        known: list[Entry] = [entry for entry in self.entries if entry.tag == "cie"]
        for entry in self.entries:
            if isinstance(entry, Fde) and entry.cie not in known:
                known.append(entry.cie)
                complete.append(entry.cie)
            complete.append(entry)
        return tuple(complete)

    def _chunks(self) -> list[bytes]:
        entries = self.all_entries()
        # No width depends on where a CIE is, so one round with made-up places finds the real ones.
        starts = [0] * len(entries)
        chunks: list[bytes] = []
        for _ in range(2):
            chunks, position = [], 0
            for index, entry in enumerate(entries):
                cie_offset = starts[_cie_index(entries, entry.cie)] if isinstance(entry, Fde) else 0
                starts[index] = position
                chunks.append(self._chunk(entry, position, cie_offset))
                position += len(chunks[-1])
        return chunks

    def _chunk(self, entry: Entry, position: int, cie_offset: int) -> bytes:
        if isinstance(entry, Raw):
            return entry.data
        if isinstance(entry, Terminator):
            return bytes(4)
        header_size = 12 if self.dwarf64 else 4
        body = _Body(self, position + header_size)
        body.number(self._cie_field(entry, position + header_size, cie_offset), self._id_size())
        if isinstance(entry, Cie):
            body.cie(entry)
        else:
            body.fde(entry)
        body.pad(8 if self.debug_frame or self.dwarf64 else 4, header_size)
        length = len(body.out)
        if self.dwarf64:
            return b"\xff" * 4 + self.fixed(length, 8) + bytes(body.out)
        return self.fixed(length, 4) + bytes(body.out)

    def _id_size(self) -> int:
        if not self.dwarf64:
            return 4
        return 8 if self.debug_frame else self.cie_pointer_size

    def _cie_field(self, entry: Cie | Fde, field_offset: int, cie_offset: int) -> int:
        if isinstance(entry, Cie):
            return -1 if self.debug_frame else 0
        return cie_offset if self.debug_frame else field_offset - cie_offset

    def fixed(self, value: int, size: int) -> bytes:
        """Return the low `size` bytes of a number in the section's byte order."""
        order: Literal["little", "big"] = "little" if self.little_endian else "big"
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, order)


def _cie_index(entries: tuple[Entry, ...], cie: Cie) -> int:
    for index, entry in enumerate(entries):
        if entry is cie:
            return index
    return entries.index(cie)


def encode_pointer(frame: EhFrame, value: int, encoding: int, field_vaddr: int) -> bytes:
    """Return `value` as a DW_EH_PE-encoded field that will lie at `field_vaddr`."""
    if encoding == DW_EH_PE_OMIT:
        return b""
    if encoding & 0x70 == DW_EH_PE_ALIGNED:
        return bytes(-field_vaddr % 8) + frame.fixed(value, 8)
    bases = {0x00: 0, 0x10: field_vaddr, 0x20: frame.text_base, 0x30: frame.data_base}
    bases[0x40] = frame.function_base
    value -= bases[encoding & 0x70]
    form = encoding & 0x0F
    if form == DW_EH_PE_ULEB128:
        return uleb128(value)
    return sleb128(value) if form == DW_EH_PE_SLEB128 else frame.fixed(value, POINTER_SIZES[form])


class _Body:
    """The bytes of one entry after its length field, while they grow."""

    def __init__(self, frame: EhFrame, section_offset: int) -> None:
        self.frame = frame
        self.section_offset = section_offset
        self.out = bytearray()

    def number(self, value: int, size: int) -> None:
        self.out += self.frame.fixed(value, size)

    def pointer(self, value: int, encoding: int) -> None:
        field_vaddr = self.frame.address + self.section_offset + len(self.out)
        self.out += encode_pointer(self.frame, value, encoding, field_vaddr)

    def fde_encoding(self, cie: Cie) -> int:
        if "R" in cie.augmentation:
            return cie.fde_encoding
        return DW_EH_PE_UDATA4 if cie.version >= 4 and cie.address_size == 4 else DW_EH_PE_ABSPTR

    def cie(self, cie: Cie) -> None:
        self.number(cie.version, 1)
        self.out += cie.augmentation.encode() + b"\0"
        if cie.augmentation == "eh":
            self.number(cie.eh_data, 8)
        if cie.version >= 4:
            self.out += bytes((cie.address_size, cie.segment_selector_size))
        self.out += uleb128(cie.code_align) + sleb128(cie.data_align)
        self.out += bytes((cie.ra_register,)) if cie.version == 1 else uleb128(cie.ra_register)
        if cie.augmentation.startswith("z"):
            self.sized(lambda body: body.cie_augmentation(cie))
        self.instructions(cie.instructions, cie)

    def cie_augmentation(self, cie: Cie) -> None:
        for letter in cie.augmentation[1:]:
            if letter == "R":
                self.number(cie.fde_encoding, 1)
            elif letter == "L":
                self.number(cie.lsda_encoding, 1)
            elif letter == "P":
                self.number(cie.personality_encoding, 1)
                self.pointer(cie.personality_vaddr, cie.personality_encoding)

    def sized(self, write: Callable[["_Body"], None]) -> None:
        """Append what `write` writes after its ULEB128 size; fields know where they will be."""
        size_width = 1
        while True:
            inner = _Body(self.frame, self.section_offset + len(self.out) + size_width)
            write(inner)
            if len(uleb128(len(inner.out))) == size_width:
                self.out += uleb128(len(inner.out)) + inner.out
                return
            size_width += 1

    def fde(self, fde: Fde) -> None:
        encoding = self.fde_encoding(fde.cie)
        self.number(0, fde.cie.segment_selector_size if fde.cie.version >= 4 else 0)
        self.pointer(fde.pc_begin, encoding & ~DW_EH_PE_INDIRECT)
        is_aligned = encoding & 0x70 == DW_EH_PE_ALIGNED
        self.pointer(fde.size, DW_EH_PE_ABSPTR if is_aligned else encoding & 0x0F)
        if fde.cie.augmentation.startswith("z"):
            self.sized(lambda body: body.pointer(fde.lsda_vaddr, body.lsda_encoding(fde.cie)))
        self.instructions(fde.instructions, fde.cie)

    def lsda_encoding(self, cie: Cie) -> int:
        return cie.lsda_encoding if "L" in cie.augmentation else DW_EH_PE_OMIT

    def instructions(self, instructions: tuple[Instruction | bytes, ...], cie: Cie) -> None:
        for instruction in instructions:
            if isinstance(instruction, bytes):
                self.out += instruction
                continue
            self.out.append(instruction.opcode)
            for operand in instruction.operands:
                self.operand(operand, cie)
            self.out += instruction.tail

    def operand(self, operand: Operand, cie: Cie) -> None:
        if operand.kind == "uleb":
            self.out += uleb128(operand.value)
        elif operand.kind == "sleb":
            self.out += sleb128(operand.value)
        elif operand.kind == "address":
            self.pointer(operand.value, self.fde_encoding(cie) & ~DW_EH_PE_INDIRECT)
        else:
            size = int(operand.kind[1:]) // 8
            self.out += operand.value.to_bytes(size, "little" if self.frame.little_endian else "big")

    def pad(self, alignment: int, header_size: int) -> None:
        """Fill with DW_CFA_nop until the entry, length field included, is a multiple of `alignment`."""
        self.out += bytes(-(header_size + len(self.out)) % alignment)
