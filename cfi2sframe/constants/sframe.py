# SPDX-License-Identifier: Apache-2.0
"""Numbers of the SFrame format, versions 1 to 3, spelled as in its specification."""

from typing import Final

SFRAME_MAGIC: Final = 0xDEE2

SFRAME_VERSION_1: Final = 1
SFRAME_VERSION_2: Final = 2
SFRAME_VERSION_3: Final = 3
VERSIONS: Final = (SFRAME_VERSION_1, SFRAME_VERSION_2, SFRAME_VERSION_3)

#: The errata of version 2, and what they introduced; no field of a section tells which of them it follows.
ERRATA: Final = {0: "", 1: "PC-relative starts", 2: "undefined RA"}
ERRATA_OF_PCREL_STARTS: Final = 1
ERRATA_OF_OUTERMOST_ROWS: Final = 2
#: glibc's backtrace() treats a row without data words as an error, and then uses DWARF for the whole trace.
DEFAULT_ERRATA: Final = 1

#: The function table is sorted by start address.
SFRAME_F_FDE_SORTED: Final = 0x1
#: Every function keeps a frame pointer (versions 1 and 2).
SFRAME_F_FRAME_POINTER: Final = 0x2
#: A start field counts from itself, not from the section (version 2 errata 1, version 3).
SFRAME_F_FDE_FUNC_START_PCREL: Final = 0x4
#: The flags that a version defines.
FLAGS_BY_VERSION: Final = {
    SFRAME_VERSION_1: SFRAME_F_FDE_SORTED | SFRAME_F_FRAME_POINTER,
    SFRAME_VERSION_2: SFRAME_F_FDE_SORTED | SFRAME_F_FRAME_POINTER | SFRAME_F_FDE_FUNC_START_PCREL,
    SFRAME_VERSION_3: SFRAME_F_FDE_SORTED | SFRAME_F_FDE_FUNC_START_PCREL,
}

SFRAME_ABI_AARCH64_ENDIAN_BIG: Final = 1
SFRAME_ABI_AARCH64_ENDIAN_LITTLE: Final = 2
SFRAME_ABI_AMD64_ENDIAN_LITTLE: Final = 3
SFRAME_ABI_S390X_ENDIAN_BIG: Final = 4

HEADER_SIZE: Final = 28
#: Bytes of a function record in the function table.
FDE_SIZE: Final = {SFRAME_VERSION_1: 17, SFRAME_VERSION_2: 20, SFRAME_VERSION_3: 16}
#: Bytes of version 3's attribute, which precedes a function's rows.
FDE_ATTRIBUTE_SIZE: Final = 5

#: Bytes of a row's start field by FRE type: SFRAME_FRE_TYPE_ADDR1, 2 and 4.
FRE_START_SIZE: Final = (1, 2, 4)

SFRAME_FDE_PCTYPE_MASK: Final = 1

SFRAME_FDE_TYPE_DEFAULT: Final = 0
SFRAME_FDE_TYPE_FLEX: Final = 1

# The function's info byte.
FDE_INFO_FRE_TYPE_MASK: Final = 0x0F
FDE_INFO_PCTYPE_SHIFT: Final = 4
FDE_INFO_PAUTH_KEY_B: Final = 0x20
FDE_INFO_SIGNAL: Final = 0x80
#: The function's second info byte (version 3): the FDE type.
FDE_INFO2_TYPE_MASK: Final = 0x1F

# The row's info byte.
FRE_INFO_CFA_BASE_SP: Final = 0x01
FRE_INFO_COUNT_SHIFT: Final = 1
FRE_INFO_COUNT_MASK: Final = 0x0F
FRE_INFO_SIZE_SHIFT: Final = 5
FRE_INFO_SIZE_MASK: Final = 0x03
FRE_INFO_MANGLED_RA: Final = 0x80

# A flexible row's control word: reg << 3 | deref << 1 | reg_p; 0 is the padding word.
FLEX_REG_P: Final = 0x1
FLEX_DEREF_P: Final = 0x2
FLEX_REG_SHIFT: Final = 3

#: Version 3 stores the number of a function's rows in 16 bits.
V3_MAX_FRES: Final = 0xFFFF
#: Bytes of a row's data words by its info byte.
FRE_WORDS_SIZES: Final = tuple(
    (info >> FRE_INFO_COUNT_SHIFT & FRE_INFO_COUNT_MASK) << (info >> FRE_INFO_SIZE_SHIFT & FRE_INFO_SIZE_MASK)
    for info in range(256)
)
