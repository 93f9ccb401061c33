# SPDX-License-Identifier: Apache-2.0
"""Verification of a section against the CFI it was made from, and what readers require; start at `verify_section`.

Each address has a row from two independent sources: the DWARF row table, and the section's bytes, decoded again.
Nothing here knows how the section was encoded.

`READERS` has the readers of SFrame sections by name, and the form of section that is written for each: options need no
more. Their demands on a section are in `readers`, under the same names.
"""

from typing import Final, NamedTuple

from cfi2sframe.constants.elf import SHT_GNU_SFRAME, SHT_PROGBITS


class Reader(NamedTuple):
    """The SFrame version and errata that a reader knows, the sh_type that it expects, and whether it reads objects."""

    releases: str
    version: int
    errata: int | None = None
    section_type: int = SHT_GNU_SFRAME
    reads_objects: bool = False


READERS: Final = {
    "ld-2.40": Reader("GNU ld 2.40", 1, None, SHT_PROGBITS, reads_objects=True),
    "ld-2.41": Reader("GNU ld 2.41 to 2.44", 2, 0, SHT_PROGBITS, reads_objects=True),
    "ld-2.45": Reader("GNU ld 2.45", 2, 1, reads_objects=True),
    "ld": Reader("GNU ld 2.46 and later", 3, reads_objects=True),
    "libsframe": Reader("readelf, objdump and gdb 2.46 and later", 3),
    "glibc": Reader("backtrace() of glibc 2.42 to 2.44", 2, 1),
    "kernel": Reader("Linux, stacks of programs", 3),
    "kernel-arm64": Reader("Linux on AArch64, its own stacks", 3, reads_objects=True),
}
