# SPDX-License-Identifier: Apache-2.0
"""AAPCS64, for both byte orders of data."""

from typing import Final

from cfi2sframe.abi.record import SAVED_PC, Arch, SignalReturn
from cfi2sframe.constants.elf import EM_AARCH64
from cfi2sframe.constants.sframe import SFRAME_ABI_AARCH64_ENDIAN_BIG, SFRAME_ABI_AARCH64_ENDIAN_LITTLE

R_AARCH64_ABS64: Final = 257
R_AARCH64_ABS32: Final = 258
R_AARCH64_PREL64: Final = 260
R_AARCH64_PREL32: Final = 261
R_AARCH64_JUMP26: Final = 282
R_AARCH64_CALL26: Final = 283
R_AARCH64_RELATIVE: Final = 1027


#: struct user_pt_regs, which struct sigcontext has, too.
_SAVED_WORDS: Final = (*range(32), SAVED_PC)

AARCH64_LE: Final = Arch(
    name="AArch64",
    module="aarch64",
    elf_machine=EM_AARCH64,
    byte_order="<",
    abi_id=SFRAME_ABI_AARCH64_ENDIAN_LITTLE,
    first_version=1,
    sp_register=31,
    fp_register=29,
    ra_register=30,
    registers=(*(f"x{n}" for n in range(31)), "sp"),
    register_prefix="",
    fixed_ra_offset=0,
    sp_offset_from_cfa=0,
    entry_cfa_offset=0,
    cfa_offset_bias=0,
    cfa_offset_scale=1,
    pads_ra=False,
    ra_may_be_signed=True,
    # Whatever the order of data is.
    instruction_order="little",
    instruction_alignment=4,
    prologue_step=4,
    # nop; udf 0; brk 0 and 1.
    fill=rb"(?:\x1f\x20\x03\xd5|\x00{4}|[\x00\x20]\x00\x20\xd4)++",
    # bl; blr and, with authentication, blraa and others.
    call=rb"...[\x94-\x97]|..\x3f[\xd6\xd7]",
    skip=None,
    pc32_relocation=R_AARCH64_PREL32,
    pc64_relocation=R_AARCH64_PREL64,
    absolute_relocation=R_AARCH64_ABS64,
    relative_relocation=R_AARCH64_RELATIVE,
    hash_word="I",
    program_vaddr=0x400000,
    cfi_relocations={
        R_AARCH64_ABS64: (8, False),
        R_AARCH64_ABS32: (4, False),
        R_AARCH64_PREL64: (8, True),
        R_AARCH64_PREL32: (4, True),
    },
    branch_relocations={R_AARCH64_CALL26: (26, 2, 4), R_AARCH64_JUMP26: (26, 2, 4)},
    distance_bias=0,
    thread_words=_SAVED_WORDS,
    float_words=(),
    signal_words=_SAVED_WORDS,
    # mov x8, #139; svc #0. siginfo (128), the ucontext up to its mcontext (176), the fault's address.
    signal_returns=(SignalReturn(bytes.fromhex("681180d2010000d4"), 128 + 176 + 8),),
    # enum perf_event_arm_regs
    perf_words=_SAVED_WORDS,
    has_signal_rows=False,
)
AARCH64_BE: Final = AARCH64_LE._replace(name="AArch64 BE", byte_order=">", abi_id=SFRAME_ABI_AARCH64_ENDIAN_BIG)
