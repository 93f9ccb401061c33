# SPDX-License-Identifier: Apache-2.0
"""ELF ABI for s390x (z/Architecture)."""

from typing import Final

from cfi2sframe.abi.record import SAVED_PC, UNUSED, Arch, SignalReturn
from cfi2sframe.constants.elf import EM_S390
from cfi2sframe.constants.sframe import SFRAME_ABI_S390X_ENDIAN_BIG

R_390_32: Final = 4
R_390_PC32: Final = 5
R_390_RELATIVE: Final = 12
R_390_PC32DBL: Final = 19
R_390_PLT32DBL: Final = 20
R_390_64: Final = 22
R_390_PC64: Final = 23


_REGISTERS: Final = (
    *(f"r{n}" for n in range(16)),
    *("f0", "f2", "f4", "f6", "f1", "f3", "f5", "f7", "f8", "f10", "f12", "f14", "f9", "f11", "f13", "f15"),
)
#: s390_regs: the PSW's mask and address, r0 to r15.
_THREAD_WORDS: Final = (UNUSED, SAVED_PC, *range(16))
_FLOATS: Final = tuple(_REGISTERS.index(f"f{number}") for number in range(16))

S390X: Final = Arch(
    name="s390x",
    module="s390x",
    elf_machine=EM_S390,
    byte_order=">",
    abi_id=SFRAME_ABI_S390X_ENDIAN_BIG,
    first_version=2,
    sp_register=15,
    fp_register=11,
    ra_register=14,
    registers=_REGISTERS,
    register_prefix="%",
    fixed_ra_offset=0,
    # The register save area of 160 bytes is the caller's.
    sp_offset_from_cfa=-160,
    entry_cfa_offset=160,
    cfa_offset_bias=160,
    cfa_offset_scale=8,
    pads_ra=True,
    ra_may_be_signed=False,
    instruction_order="big",
    instruction_alignment=2,
    prologue_step=6,
    # Branches that are never taken (bcr 0, bc 0, brc 0, brcl 0); zeros.
    fill=rb"(?:\x07[\x00-\x0f]|\x47[\x00-\x0f]..|\xa7\x04..|\xc0\x04.{4}|\x00\x00)++",
    # basr, bas, bras and brasl, whose RA goes to r14.
    call=rb"\x0d[\xe0-\xef]|\x4d[\xe0-\xef]..|\xa7\xe5..|\xc0\xe5.{4}",
    skip=None,
    pc32_relocation=R_390_PC32,
    pc64_relocation=R_390_PC64,
    absolute_relocation=R_390_64,
    relative_relocation=R_390_RELATIVE,
    hash_word="Q",
    program_vaddr=0x1000000,
    cfi_relocations={
        R_390_32: (4, False),
        R_390_PC32: (4, True),
        R_390_64: (8, False),
        R_390_PC64: (8, True),
    },
    branch_relocations={R_390_PC32DBL: (32, 1, 4), R_390_PLT32DBL: (32, 1, 4)},
    # Distances count from the instruction's start.
    distance_bias=2,
    thread_words=_THREAD_WORDS,
    # struct s390_fp_regs: the control register comes first.
    float_words=(UNUSED, *_FLOATS),
    # _sigregs: access registers and the control register before f0 to f15.
    signal_words=(*_THREAD_WORDS, *(UNUSED,) * 9, *_FLOATS),
    signal_returns=(
        # svc 173. Save area (160), instruction and padding (8), siginfo (128), the ucontext's head (40).
        SignalReturn(b"\x0a\xad", 160 + 8 + 128 + 40),
        # svc 119, of a handler without SA_SIGINFO. Save area (160), old mask (8).
        SignalReturn(b"\x0a\x77", 160 + 8, is_pointer=True),
    ),
    # enum perf_event_s390_regs
    perf_words=(*range(16), *_FLOATS, UNUSED, SAVED_PC),
    has_signal_rows=False,
)
