# SPDX-License-Identifier: Apache-2.0
"""An assembler of call frame information for tests: records in, bytes of .eh_frame or .debug_frame out.

It shares nothing with the package under test, and so does not repeat its errors. The ELF writer lives in a module of
its own and is offered here too.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, TypeAlias

from tests.support.elf.elf_asm import Relocation, Section, Segment, Symbol, eh_frame_hdr, elf_file

__all__ = ["Relocation", "Section", "Segment", "Symbol", "eh_frame_hdr", "elf_file"]


def uleb128(value: int) -> bytes:
    """Return the shortest ULEB128 of a number that is not negative."""
    if value < 0:
        message = f"ULEB128 of the negative number {value}"
        raise ValueError(message)
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def sleb128(value: int) -> bytes:
    """Return the shortest SLEB128 of a number."""
    out = bytearray()
    while not -0x40 <= value < 0x40:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value & 0x7F)
    return bytes(out)


# --- Every call frame instruction of DWARF 5, GNU and AArch64, as a function that returns a record of it
#
# Operands are given as they are encoded: "factored" ones are multiplied by the CIE's code or data alignment factor.

OperandKind: TypeAlias = Literal["uleb", "sleb", "u8", "u16", "u32", "u64", "address"]


class Operand(NamedTuple):
    """One number of an instruction and the way it is written; "address" uses the CIE's FDE encoding."""

    kind: OperandKind
    value: int


class Instruction(NamedTuple):
    """One call frame instruction: the opcode byte, its numbers, and the bytes after them (expressions)."""

    opcode: int
    operands: tuple[Operand, ...] = ()
    tail: bytes = b""


_Form: TypeAlias = Callable[..., Instruction]


def _plain(opcode: int, *kinds: OperandKind) -> _Form:
    def made(*values: int) -> Instruction:
        return Instruction(opcode, tuple(Operand(kind, value) for kind, value in zip(kinds, values, strict=True)))

    return made


def _primary(opcode: int, *kinds: OperandKind) -> _Form:
    """An opcode with an operand in its low six bits."""

    def made(low_bits: int, *values: int) -> Instruction:
        if not 0 <= low_bits < 0x40:
            message = f"{low_bits} does not fit in the six bits of opcode {opcode:#x}"
            raise ValueError(message)
        return _plain(opcode | low_bits, *kinds)(*values)

    return made


def _with_expression(opcode: int, *kinds: OperandKind) -> _Form:
    def made(*values: int | bytes) -> Instruction:
        *numbers, expression = values
        assert isinstance(expression, bytes)
        return _plain(opcode, *kinds, "uleb")(*numbers, len(expression))._replace(tail=expression)

    return made


nop: Final = _plain(0x00)
#: To an absolute address.
set_loc: Final = _plain(0x01, "address")
advance0: Final = _primary(0x40)
advance1: Final = _plain(0x02, "u8")
advance2: Final = _plain(0x03, "u16")
advance4: Final = _plain(0x04, "u32")
#: DW_CFA_MIPS_advance_loc8.
advance8: Final = _plain(0x1D, "u64")
#: A register, and a factored offset.
offset: Final = _primary(0x80, "uleb")
offset_extended: Final = _plain(0x05, "uleb", "uleb")
offset_extended_sf: Final = _plain(0x11, "uleb", "sleb")
#: The operand is subtracted.
gnu_negative_offset_extended: Final = _plain(0x2F, "uleb", "uleb")
val_offset: Final = _plain(0x14, "uleb", "uleb")
val_offset_sf: Final = _plain(0x15, "uleb", "sleb")
restore: Final = _primary(0xC0)
restore_extended: Final = _plain(0x06, "uleb")
undefined: Final = _plain(0x07, "uleb")
same_value: Final = _plain(0x08, "uleb")
#: The caller's first register is in the second.
register: Final = _plain(0x09, "uleb", "uleb")
remember_state: Final = _plain(0x0A)
restore_state: Final = _plain(0x0B)
#: A register, and an offset in bytes.
def_cfa: Final = _plain(0x0C, "uleb", "uleb")
def_cfa_sf: Final = _plain(0x12, "uleb", "sleb")
def_cfa_register: Final = _plain(0x0D, "uleb")
def_cfa_offset: Final = _plain(0x0E, "uleb")
def_cfa_offset_sf: Final = _plain(0x13, "sleb")
def_cfa_expression: Final = _with_expression(0x0F)
#: A register, and an expression.
expression: Final = _with_expression(0x10, "uleb")
val_expression: Final = _with_expression(0x16, "uleb")
aarch64_negate_ra_state_with_pc: Final = _plain(0x2C)
#: The opcode that SPARC calls DW_CFA_GNU_window_save.
aarch64_negate_ra_state: Final = _plain(0x2D)
gnu_args_size: Final = _plain(0x2E, "uleb")


def aarch64_set_ra_state(state: int, pc_offset: int = 0) -> Instruction:
    """AADWARF64, 4.4: 0 not signed, 1 signed with SP, 2 with SP and PC."""
    return _plain(0x2B, "uleb", "sleb")(state, pc_offset)


def advance(factored: int) -> Instruction:
    """Advance by a number of code units in the smallest form that holds it."""
    for limit, form in ((0x40, advance0), (0x100, advance1), (0x10000, advance2), (1 << 32, advance4)):
        if factored < limit:
            return form(factored)
    return advance8(factored)


# --- Entries and sections

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
    belongs to the very object it names, else to the first equal one.
    """

    entries: tuple[Entry, ...]
    address: int = 0
    dwarf64: bool = False
    little_endian: bool = True
    debug_frame: bool = False
    data_base: int = 0

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

    def fde_offsets(self) -> tuple[int, ...]:
        """Return where each FDE starts."""
        places = zip(self.offsets(), self.all_entries(), strict=True)
        return tuple(start for start, entry in places if isinstance(entry, Fde))

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
        return 8 if self.dwarf64 and self.debug_frame else 4

    def _cie_field(self, entry: Cie | Fde, field_offset: int, cie_offset: int) -> int:
        if isinstance(entry, Cie):
            return -1 if self.debug_frame else 0
        return cie_offset if self.debug_frame else field_offset - cie_offset

    def fixed(self, value: int, size: int) -> bytes:
        """Return the low `size` bytes of a number in the section's byte order."""
        order: Literal["little", "big"] = "little" if self.little_endian else "big"
        return (value & ((1 << 8 * size) - 1)).to_bytes(size, order)


def code_of(*instructions: Instruction, little_endian: bool = True) -> bytes:
    """Return the bytes of instructions alone, with absolute addresses of 8 bytes."""
    body = _Body(EhFrame((), little_endian=little_endian), 0)
    body.instructions(instructions, Cie(fde_encoding=DW_EH_PE_ABSPTR))
    return bytes(body.out)


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
    # The base of any other is 0 here.
    value -= {0x10: field_vaddr, 0x30: frame.data_base}.get(encoding & 0x70, 0)
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
