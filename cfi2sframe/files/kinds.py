# SPDX-License-Identifier: Apache-2.0
"""What a system's directories have that is not for this program: the kinds that are counted, and how they are told."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.constants.elf import PT_LOAD

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage

#: Sections that only a kernel module has.
_MODULE_SECTIONS: Final = frozenset({".modinfo", ".gnu.linkonce.this_module"})
#: From here on, addresses are the kernel's on all machines that SFrame is defined for.
_KERNEL_VADDR: Final = 1 << 63


class SkipKind(Enum):
    """Why a file of a directory is left alone. The values are what reports have."""

    NOT_ELF = "no ELF file"
    FOREIGN = "other machine"
    NO_CFI = "no CFI"
    READER = "not for the reader"
    OBJECT = "relocatable object"
    MODULE = "kernel module"
    DEBUG_FILE = "separate debug file"
    KERNEL = "kernel image"
    SECTION = "another section"


class LeftAlone(NamedTuple):
    """A kind, and a sentence about it."""

    kind: SkipKind
    reason: str


def skip_of(image: ElfImage, *, takes_objects: bool) -> LeftAlone | None:
    """Return why a directory's file is left alone, None if it is not: what linkers or kernels read, or without code.

    `takes_objects`: relocatable objects and kernel modules are not left alone. Linkers read the sections of objects,
    and those before binutils 2.46 fail on version 3.
    """
    if image.is_relocatable:
        if takes_objects:
            return None
        is_module = any(section.name in _MODULE_SECTIONS for section in image.sections)
        kind = SkipKind.MODULE if is_module else SkipKind.OBJECT
        return LeftAlone(kind, f"a {kind.value}; --for ld or kernel-arm64 takes those in directories, too")
    if image.is_debug_file:
        return LeftAlone(SkipKind.DEBUG_FILE, "a separate debug file: its code is in another file")
    if any(segment.type == PT_LOAD and segment.vaddr >= _KERNEL_VADDR for segment in image.segments):
        return LeftAlone(SkipKind.KERNEL, "a kernel image")
    return None
