# SPDX-License-Identifier: Apache-2.0
"""Numbers of the ELF format, spelled as in the System V ABI and its supplements."""

from typing import Final

ELF_MAGIC: Final = b"\x7fELF"
ELFCLASS64: Final = 2
ELFDATA2LSB: Final = 1
ELFDATA2MSB: Final = 2

ET_REL: Final = 1
ET_EXEC: Final = 2
ET_DYN: Final = 3
ET_CORE: Final = 4

EM_S390: Final = 22
EM_X86_64: Final = 62
EM_AARCH64: Final = 183

SHN_UNDEF: Final = 0
SHN_LORESERVE: Final = 0xFF00
SHN_ABS: Final = 0xFFF1
SHN_COMMON: Final = 0xFFF2
SHN_XINDEX: Final = 0xFFFF

SHT_NULL: Final = 0
SHT_PROGBITS: Final = 1
SHT_SYMTAB: Final = 2
SHT_STRTAB: Final = 3
SHT_RELA: Final = 4
SHT_DYNAMIC: Final = 6
SHT_NOTE: Final = 7
SHT_NOBITS: Final = 8
SHT_REL: Final = 9
SHT_DYNSYM: Final = 11
SHT_INIT_ARRAY: Final = 14
SHT_FINI_ARRAY: Final = 15
SHT_PREINIT_ARRAY: Final = 16
SHT_GROUP: Final = 17
SHT_SYMTAB_SHNDX: Final = 18
SHT_RELR: Final = 19
SHT_ANDROID_RELA: Final = 0x60000002
SHT_ANDROID_RELR: Final = 0x6FFFFF00
SHT_GNU_SFRAME: Final = 0x6FFFFFF4
SHT_X86_64_UNWIND: Final = 0x70000001

SHF_WRITE: Final = 0x1
SHF_ALLOC: Final = 0x2
SHF_EXECINSTR: Final = 0x4
SHF_INFO_LINK: Final = 0x40
SHF_TLS: Final = 0x400
SHF_COMPRESSED: Final = 0x800

ELFCOMPRESS_ZLIB: Final = 1
ELFCOMPRESS_ZSTD: Final = 2

PT_NULL: Final = 0
PT_LOAD: Final = 1
PT_DYNAMIC: Final = 2
PT_INTERP: Final = 3
PT_NOTE: Final = 4
PT_PHDR: Final = 6
PT_TLS: Final = 7
PT_GNU_EH_FRAME: Final = 0x6474E550
PT_GNU_STACK: Final = 0x6474E551
PT_GNU_RELRO: Final = 0x6474E552
PT_GNU_PROPERTY: Final = 0x6474E553
PT_GNU_SFRAME: Final = 0x6474E554

# e_phnum when the count does not fit.
PN_XNUM: Final = 0xFFFF

PF_X: Final = 1
PF_W: Final = 2
PF_R: Final = 4

STB_LOCAL: Final = 0

STT_NOTYPE: Final = 0
STT_FUNC: Final = 2
STT_SECTION: Final = 3
STT_TLS: Final = 6
STT_GNU_IFUNC: Final = 10

DT_NULL: Final = 0
DT_NEEDED: Final = 1
DT_PLTRELSZ: Final = 2
DT_PLTGOT: Final = 3
DT_HASH: Final = 4
DT_STRTAB: Final = 5
DT_SYMTAB: Final = 6
DT_RELA: Final = 7
DT_RELASZ: Final = 8
DT_STRSZ: Final = 10
DT_INIT: Final = 12
DT_FINI: Final = 13
DT_REL: Final = 17
DT_INIT_ARRAY: Final = 25
DT_FINI_ARRAY: Final = 26
DT_INIT_ARRAYSZ: Final = 27
DT_FINI_ARRAYSZ: Final = 28
DT_PREINIT_ARRAY: Final = 32
DT_PREINIT_ARRAYSZ: Final = 33
DT_JMPREL: Final = 23
DT_RELRSZ: Final = 35
DT_RELR: Final = 36
DT_ANDROID_RELA: Final = 0x60000011
DT_ANDROID_RELR: Final = 0x6FFFE000
DT_ANDROID_RELRSZ: Final = 0x6FFFE001
DT_GNU_HASH: Final = 0x6FFFFEF5
DT_VERSYM: Final = 0x6FFFFFF0
DT_FLAGS_1: Final = 0x6FFFFFFB
DT_VERDEF: Final = 0x6FFFFFFC
DT_VERDEFNUM: Final = 0x6FFFFFFD
DT_VERNEED: Final = 0x6FFFFFFE
DT_VERNEEDNUM: Final = 0x6FFFFFFF

DF_1_PIE: Final = 0x08000000
