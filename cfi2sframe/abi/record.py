# SPDX-License-Identifier: Apache-2.0
"""The record of an ABI."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

#: Words of a record of the kernel that are no register: the PC, and words that a trace does not use.
SAVED_PC: Final = -1
UNUSED: Final = -2


class SignalReturn(NamedTuple):
    """Instructions that return from a signal handler, and the place of the kernel's record of registers there."""

    code: bytes
    """The bytes at the PC."""
    distance: int
    """The bytes from SP to the record."""
    is_pointer: bool = False
    """At the distance is the record's address."""


class Arch(NamedTuple):
    """Registers, offsets and code of one ABI."""

    name: str
    module: str
    """The name of its modules, here and in `instructions/`."""
    elf_machine: int
    """`e_machine` of the ELF header."""
    byte_order: Literal["<", ">"]
    """As `struct` spells it."""
    abi_id: int
    """`sfh_abi_arch` of the SFrame header."""
    first_version: int
    """The first SFrame version that defines this ABI."""

    sp_register: int
    fp_register: int
    ra_register: int
    """The return address column that the ABI prescribes; a CIE may name another."""
    registers: tuple[str, ...]
    """DWARF register names by number, as the assembler spells them without `register_prefix`."""
    register_prefix: str

    fixed_ra_offset: int
    """RA is always at CFA + this; 0 where RA is tracked row by row (`sfh_cfa_fixed_ra_offset`)."""
    sp_offset_from_cfa: int
    """SP of the caller is CFA + this."""
    entry_cfa_offset: int
    """At a function's entry, the CFA is SP + this."""
    cfa_offset_bias: int
    """SFrame stores the CFA's offset as (offset - bias) / scale."""
    cfa_offset_scale: int
    pads_ra: bool
    """An RA word of 0 means "not saved" where only FP is saved; in version 2, RA and FP words may hold a register."""
    ra_may_be_signed: bool
    """The RA may carry a pointer authentication code."""

    instruction_order: Literal["little", "big"]
    instruction_alignment: int
    """Bytes; Go counts code in units of this."""
    prologue_step: int
    """Bytes for which a row in a prologue or an epilogue is mostly in force: those of an instruction."""
    fill: bytes
    """A regular expression of bytes that fill the space before an aligned address: nops of compilers and assemblers,
    and what GNU ld, gold, lld and mold put between input sections. Instructions can be read in one way only, so the
    repetition is possessive: a match that can be undone takes 100 bytes of memory for each byte of code."""
    call: bytes
    """A regular expression of a call instruction."""
    skip: tuple[bytes, bytes] | None
    """The opcode of the jump over the rest (a distance of 32 bits) by which gold begins long padding, and its nops."""

    pc32_relocation: int
    """Type of the relocation for a 32-bit distance from the field to the symbol."""
    pc64_relocation: int
    """The same for 64 bits, which version 3 needs in objects."""
    absolute_relocation: int
    """Type of the relocation for a 64-bit address."""
    relative_relocation: int
    """The dynamic linker's, for the file's own address plus the addend."""
    hash_word: Literal["I", "Q"]
    """A word of DT_HASH's table, as `struct` spells it."""
    program_vaddr: int
    """The address at which GNU ld places programs at fixed addresses."""
    cfi_relocations: Mapping[int, tuple[int, bool]]
    """Relocations used in CFI, by type: the size of the field, and whether its value is relative to the field."""
    branch_relocations: Mapping[int, tuple[int, int, int]]
    """Relocations of calls and jumps, by type: the low bits of the field that are written, the low bits that the
    distance loses, and the field's size in bytes."""
    distance_bias: int
    """The number that assemblers add to a distance's addend in code, where distances do not count from the field."""

    thread_words: tuple[int, ...]
    """The kernel's record of a stopped thread (NT_PRSTATUS) by words: DWARF register, `SAVED_PC` or `UNUSED`."""
    float_words: tuple[int, ...]
    """The same for NT_PRFPREG, where functions may keep RA and FP in floating-point registers."""
    signal_words: tuple[int, ...]
    """The same for the record to which a signal handler returns."""
    signal_returns: tuple[SignalReturn, ...]
    perf_words: tuple[int, ...]
    """The same for perf's numbers of a sample's registers (asm/perf_regs.h)."""
    has_signal_rows: bool
    """True if rows can describe signal returns: elsewhere, they lack the RA's register, or give a wrong SP."""

    def __hash__(self) -> int:
        return self.abi_id

    def __repr__(self) -> str:
        return f"<Arch {self.name}>"

    def register_name(self, number: int) -> str:
        """Return the assembler's name of a DWARF register, or `rN` for one without a name here."""
        return self.registers[number] if number < len(self.registers) else f"r{number}"
