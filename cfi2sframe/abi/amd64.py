# SPDX-License-Identifier: Apache-2.0
"""System V ABI for AMD64."""

from typing import Final

from cfi2sframe.abi.record import SAVED_PC, UNUSED, Arch, SignalReturn
from cfi2sframe.constants.elf import EM_X86_64
from cfi2sframe.constants.sframe import SFRAME_ABI_AMD64_ENDIAN_LITTLE

R_X86_64_64: Final = 1
R_X86_64_PC32: Final = 2
R_X86_64_PLT32: Final = 4
R_X86_64_RELATIVE: Final = 8
R_X86_64_32: Final = 10
R_X86_64_32S: Final = 11
R_X86_64_PC64: Final = 24

#: ModRM of `nop`, whose register field is 0, with what it is followed by: SIB byte, displacement.
_NOP_OPERAND: Final = (
    rb"(?:[\x00-\x03\x06\x07\xc0-\xc7]|\x04(?:[^\x05\x0d\x15\x1d\x25\x2d\x35\x3d]|[\x05\x0d\x15\x1d\x25\x2d\x35\x3d].{4})"
    rb"|\x05.{4}|[\x40-\x43\x45-\x47].|\x44..|[\x80-\x83\x85-\x87].{4}|\x84.{5})"
)
#: The same of `call`, whose register field is 2.
_CALL_OPERAND: Final = (
    rb"(?:[\x10-\x13\x16\x17]|\x14.(?:.{4})?|\x15.{4}|[\x50-\x53\x55-\x57].|\x54..|[\x90-\x93\x95-\x97].{4}|\x94.{5})"
)


AMD64: Final = Arch(
    name="AMD64",
    module="amd64",
    elf_machine=EM_X86_64,
    byte_order="<",
    abi_id=SFRAME_ABI_AMD64_ENDIAN_LITTLE,
    first_version=1,
    sp_register=7,
    fp_register=6,
    ra_register=16,
    registers=(
        *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
        *(f"r{n}" for n in range(8, 16)),
        "rip",
        *(f"xmm{n}" for n in range(16)),
    ),
    register_prefix="%",
    fixed_ra_offset=-8,
    sp_offset_from_cfa=0,
    entry_cfa_offset=8,
    cfa_offset_bias=0,
    cfa_offset_scale=1,
    pads_ra=False,
    ra_may_be_signed=False,
    instruction_order="little",
    instruction_alignment=1,
    prologue_step=2,
    # nop of 1 to 15 bytes, with prefixes of operand size and of CS; int3; zeros.
    fill=rb"(?:[\x66\x2e]{0,13}(?:\x90|\x0f\x1f" + _NOP_OPERAND + rb")|\xcc|\x00)++",
    # call rel32; call *register; call *memory; with a REX prefix.
    call=rb"\xe8.{4}|\x41?\xff[\xd0-\xd7]|[\x40-\x43]?\xff" + _CALL_OPERAND,
    skip=(b"\xe9", b"\x90"),
    pc32_relocation=R_X86_64_PC32,
    pc64_relocation=R_X86_64_PC64,
    absolute_relocation=R_X86_64_64,
    relative_relocation=R_X86_64_RELATIVE,
    hash_word="I",
    program_vaddr=0x400000,
    cfi_relocations={
        R_X86_64_64: (8, False),
        R_X86_64_PC32: (4, True),
        R_X86_64_PLT32: (4, True),
        R_X86_64_32: (4, False),
        R_X86_64_32S: (4, False),
        R_X86_64_PC64: (8, True),
    },
    branch_relocations={R_X86_64_PC32: (32, 0, 4), R_X86_64_PLT32: (32, 0, 4)},
    # Distances count from the instruction's end.
    distance_bias=-4,
    # struct user_regs_struct
    thread_words=(15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5, UNUSED, SAVED_PC, UNUSED, UNUSED, 7),
    float_words=(),
    # struct sigcontext, after the ucontext's head and stack (40)
    signal_words=(8, 9, 10, 11, 12, 13, 14, 15, 5, 4, 6, 3, 1, 0, 2, 7, SAVED_PC),
    signal_returns=(
        SignalReturn(bytes.fromhex("48c7c00f0000000f05"), 40),  # mov $15, %rax; syscall
        SignalReturn(bytes.fromhex("b80f0000000f05"), 40),  # mov $15, %eax; syscall
    ),
    # enum perf_event_x86_regs
    perf_words=(0, 3, 2, 1, 4, 5, 6, 7, SAVED_PC, *(UNUSED,) * 7, *range(8, 16)),
    has_signal_rows=True,
)
