# SPDX-License-Identifier: Apache-2.0
"""One frozen record per ABI: everything that differs between AMD64, AArch64 and s390x as data.

Register numbers are DWARF's; offsets are bytes from the CFA.
"""

from __future__ import annotations

from typing import Final, Literal, NamedTuple

from cfi2sframe.elf.constants import (
    EM_AARCH64,
    EM_S390,
    EM_X86_64,
    R_390_PC32,
    R_390_PC64,
    R_AARCH64_PREL32,
    R_AARCH64_PREL64,
    R_X86_64_PC32,
    R_X86_64_PC64,
)
from cfi2sframe.sframe.constants import (
    SFRAME_ABI_AARCH64_ENDIAN_BIG,
    SFRAME_ABI_AARCH64_ENDIAN_LITTLE,
    SFRAME_ABI_AMD64_ENDIAN_LITTLE,
    SFRAME_ABI_S390X_ENDIAN_BIG,
)


class Arch(NamedTuple):
    """What the program has to know of one ABI."""

    name: str
    elf_machine: int
    """`e_machine` of the ELF header."""
    byte_order: Literal["<", ">"]
    """As `struct` spells it."""
    abi_id: int
    """`sfh_abi_arch` of the SFrame header."""
    sp_register: int
    fp_register: int
    ra_register: int
    """The return address column that the ABI prescribes; a CIE may name another."""
    fixed_ra_offset: int
    """RA is always at CFA + this; 0 where RA is tracked row by row (`sfh_cfa_fixed_ra_offset`)."""
    sp_offset_from_cfa: int
    """SP of the caller is CFA + this."""
    cfa_offset_bias: int
    """SFrame stores the CFA's offset as (offset - bias) / scale."""
    cfa_offset_scale: int
    pads_ra: bool
    """An RA word of 0 means "not saved" where only FP is saved; in version 2, RA and FP words may hold a register."""
    ra_may_be_signed: bool
    """The RA may carry a pointer authentication code."""
    prologue_step: int
    """Bytes that a row in the midst of a prologue or an epilogue is mostly in force for: those of an instruction."""
    first_version: int
    """The first SFrame version that defines this ABI."""
    pc32_relocation: int
    """Type of the relocation for a 32-bit distance from the field to the symbol."""
    pc64_relocation: int
    """The same for 64 bits."""
    registers: tuple[str, ...]
    """DWARF register names by number, as the assembler spells them."""

    def __repr__(self) -> str:
        return f"<Arch {self.name}>"

    def register_name(self, number: int) -> str:
        """Return the assembler's name of a DWARF register, or `rN` beyond those that have one here."""
        return self.registers[number] if number < len(self.registers) else f"r{number}"


_AMD64_REGISTERS: Final = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *(f"r{n}" for n in range(8, 16)),
    "rip",
    *(f"xmm{n}" for n in range(16)),
)
_AARCH64_REGISTERS: Final = (*(f"x{n}" for n in range(31)), "sp")
_S390X_REGISTERS: Final = (
    *(f"r{n}" for n in range(16)),
    *("f0", "f2", "f4", "f6", "f1", "f3", "f5", "f7", "f8", "f10", "f12", "f14", "f9", "f11", "f13", "f15"),
)

AMD64: Final = Arch(
    name="AMD64",
    elf_machine=EM_X86_64,
    byte_order="<",
    abi_id=SFRAME_ABI_AMD64_ENDIAN_LITTLE,
    sp_register=7,
    fp_register=6,
    ra_register=16,
    fixed_ra_offset=-8,
    sp_offset_from_cfa=0,
    cfa_offset_bias=0,
    cfa_offset_scale=1,
    pads_ra=False,
    ra_may_be_signed=False,
    prologue_step=2,
    first_version=1,
    pc32_relocation=R_X86_64_PC32,
    pc64_relocation=R_X86_64_PC64,
    registers=_AMD64_REGISTERS,
)
AARCH64_LE: Final = Arch(
    name="AArch64",
    elf_machine=EM_AARCH64,
    byte_order="<",
    abi_id=SFRAME_ABI_AARCH64_ENDIAN_LITTLE,
    sp_register=31,
    fp_register=29,
    ra_register=30,
    fixed_ra_offset=0,
    sp_offset_from_cfa=0,
    cfa_offset_bias=0,
    cfa_offset_scale=1,
    pads_ra=False,
    ra_may_be_signed=True,
    prologue_step=4,
    first_version=1,
    pc32_relocation=R_AARCH64_PREL32,
    pc64_relocation=R_AARCH64_PREL64,
    registers=_AARCH64_REGISTERS,
)
AARCH64_BE: Final = AARCH64_LE._replace(name="AArch64 BE", byte_order=">", abi_id=SFRAME_ABI_AARCH64_ENDIAN_BIG)
S390X: Final = Arch(
    name="s390x",
    elf_machine=EM_S390,
    byte_order=">",
    abi_id=SFRAME_ABI_S390X_ENDIAN_BIG,
    sp_register=15,
    fp_register=11,
    ra_register=14,
    fixed_ra_offset=0,
    sp_offset_from_cfa=-160,
    cfa_offset_bias=160,
    cfa_offset_scale=8,
    pads_ra=True,
    ra_may_be_signed=False,
    prologue_step=6,
    first_version=2,
    pc32_relocation=R_390_PC32,
    pc64_relocation=R_390_PC64,
    registers=_S390X_REGISTERS,
)

ARCHES: Final = (AMD64, AARCH64_LE, AARCH64_BE, S390X)


def arch_of_elf(machine: int, byte_order: str) -> Arch | None:
    """Return the ABI of an ELF machine and byte order, or None when SFrame has none for it."""
    for arch in ARCHES:
        if arch.elf_machine == machine and arch.byte_order == byte_order:
            return arch
    return None


def arch_of_abi(abi_id: int) -> Arch | None:
    """Return the ABI that `sfh_abi_arch` names, or None for an unknown one."""
    for arch in ARCHES:
        if arch.abi_id == abi_id:
            return arch
    return None
