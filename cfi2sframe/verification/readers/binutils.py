# SPDX-License-Identifier: Apache-2.0
"""GNU binutils: libsframe, by which readelf, objdump and gdb read sections, and GNU ld, which merges those of objects.

The releases named are those that were run. SFrame moved from version 1 to 2 with binutils 2.41, and to 3 with 2.46.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_RELA
from cfi2sframe.sframe import constants as s
from cfi2sframe.verification.readers import rules as r
from cfi2sframe.verification.readers.records import Breach, Demand, Edition, Reader, Remark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.verification.readers.subject import Subject

_SORTED, _FRAME_POINTER, _PCREL = s.SFRAME_F_FDE_SORTED, s.SFRAME_F_FRAME_POINTER, s.SFRAME_F_FDE_FUNC_START_PCREL
#: What releases before the flag for PC-relative starts know, in versions 1 and 2.
_OLD_FLAGS: Final = (0, _SORTED, _FRAME_POINTER, _SORTED | _FRAME_POINTER)


def _own_flags(subject: Subject) -> str | None:
    header = subject.stored.header
    unknown = header.flags & ~s.FLAGS_BY_VERSION[header.version]
    return f"flags 0x{header.flags:x}" if unknown else None


def _old_abi(subject: Subject) -> str | None:
    section = subject.section
    is_known = section.abi_id != s.SFRAME_ABI_S390X_ENDIAN_BIG
    return None if is_known else f"it does not know how {section.arch.name} stores the CFA's offset"


def _offsets(subject: Subject) -> str | None:
    header = subject.stored.header
    return "sfh_fdeoff is past sfh_freoff" if header.fde_offset > header.fre_offset else None


def _row_list_users(subject: Subject) -> Counter[int]:
    return Counter(function.fre_offset for function in subject.functions if function.row_count)


def _shared(subject: Subject) -> int:
    """Return how many functions have rows that another function has too."""
    return sum(count for count in _row_list_users(subject).values() if count > 1)


def _foreign_sum(subject: Subject) -> int:
    """Return the rows that the header does not count, or counts too many."""
    return abs(subject.stored.header.fre_count - subject.section.row_count)


def _misread(subject: Subject) -> int:
    header = subject.stored.header
    is_concerned = header.version == s.SFRAME_VERSION_2 and not header.start_is_pcrel
    return len(subject.functions) if is_concerned else 0


_FLAGS: Final = Demand("flags", r.whole(_own_flags), is_decisive=True)
_OLD_ABI: Final = Demand("ABI", r.whole(_old_abi), "reads it wrongly", is_decisive=True)
_OFFSETS: Final = Demand("offsets", r.whole(_offsets), is_decisive=True)
_FOREIGN: Final = (
    Remark(_shared, "functions share their rows: a host of the other byte order refuses the section"),
    Remark(_foreign_sum, "rows more or fewer than sfh_num_fres: a host of the other byte order refuses the section"),
)
_LIBSFRAME: Final = (
    Edition("2.40", (r.versions(1), r.flags(_OLD_FLAGS), _OFFSETS), _FOREIGN),
    Edition("2.44", (r.versions(2), r.flags(_OLD_FLAGS), _OLD_ABI, _OFFSETS), _FOREIGN),
    Edition(
        "2.47",
        (r.versions(2, 3), _FLAGS, _OFFSETS),
        (
            *_FOREIGN,
            Remark(_misread, "functions start relative to the section: sframe_find_fre, a function of the library, "
                   "looks for them elsewhere"),
        ),
    ),
)  # fmt: skip
LIBSFRAME: Final = Reader("libsframe", _LIBSFRAME)


def _is_object(subject: Subject) -> str | None:
    return None if subject.image.is_relocatable else "it reads sections of objects, and this is a linked file"


def _section_type(subject: Subject) -> str | None:
    section = subject.image.sframe_section
    if not subject.is_in_file or section is None or section.type == SHT_GNU_SFRAME:
        return None
    return f"the section's type is 0x{section.type:x}, not SHT_GNU_SFRAME"


def _own_rows(subject: Subject) -> Iterator[Breach]:
    users = _row_list_users(subject)
    for function in subject.functions:
        if users[function.fre_offset] > 1:
            message = "its rows are another function's too: it copies them for each, past the bytes that it reserves"
            yield Breach(function.start_vaddr, message)


def _relocated(subject: Subject) -> str | None:
    """Say that not every function's start has a relocation of its own, in the order of the functions."""
    section = subject.image.sframe_section
    if not subject.is_in_file or section is None or not subject.image.is_relocatable:
        return None
    header = subject.stored.header
    record_size = s.FDE_SIZE[header.version]
    first = s.HEADER_SIZE + header.auxhdr_size + header.fde_offset
    expected = [first + record_size * number for number in range(header.fde_count)]
    image = subject.image
    tables = [table for table in image.sections if table.type == SHT_RELA and table.info == section.index]
    entry = struct.Struct(image.byte_order + "Q16x")
    contents = (image.section_bytes(table) for table in tables)
    found = [
        offset for data in contents for (offset,) in entry.iter_unpack(data[: len(data) // entry.size * entry.size])
    ]
    return None if found == expected else "its relocations are not one for each function's start, in order"


_OBJECT: Final = Demand("object", r.whole(_is_object), is_decisive=True)
_MERGED: Final = (
    Demand("relocations", r.whole(_relocated), "reads it wrongly"),
    Demand("rows of its own", _own_rows, "reads it wrongly"),
)
GNU_LD: Final = Reader(
    "gnu-ld",
    (
        Edition("2.40", (_OBJECT, r.versions(1), r.flags(_OLD_FLAGS), _OFFSETS, *_MERGED)),
        Edition("2.44", (_OBJECT, r.versions(2), r.flags(_OLD_FLAGS), _OFFSETS, *_MERGED)),
        Edition(
            "2.47", (_OBJECT, Demand("section type", r.whole(_section_type)), r.versions(3), _FLAGS, _OFFSETS, *_MERGED)
        ),
    ),
)
