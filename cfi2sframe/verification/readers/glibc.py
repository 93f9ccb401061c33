# SPDX-License-Identifier: Apache-2.0
"""glibc's `backtrace()`, where glibc was configured with `--enable-sframe`: AMD64 and AArch64.

It trusts what it reads: no bounds of rows are checked. Whatever it cannot do, it leaves the whole trace to DWARF; so it
does where one module of a trace has no section.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s
from cfi2sframe.verification.readers import rules as r
from cfi2sframe.verification.readers.records import Demand, Edition, Reader, Remark
from cfi2sframe.verification.readers.subject import uncovered_ends

if TYPE_CHECKING:
    from cfi2sframe.verification.readers.subject import StoredFunction, StoredRows, Subject

_ABIS: Final = (s.SFRAME_ABI_AMD64_ENDIAN_LITTLE, s.SFRAME_ABI_AARCH64_ENDIAN_LITTLE, s.SFRAME_ABI_AARCH64_ENDIAN_BIG)


def _flags(subject: Subject) -> str | None:
    flags = subject.stored.header.flags
    unknown = flags & ~s.FLAGS_BY_VERSION[s.SFRAME_VERSION_2]
    return f"flags 0x{flags:x}" if unknown else None


def _sorted(subject: Subject) -> str | None:
    return None if subject.section.is_sorted else "SFRAME_F_FDE_SORTED is not set: nothing is looked up"


def _abi(subject: Subject) -> str | None:
    section = subject.section
    return None if section.abi_id in _ABIS else f"it is not written for {section.arch.name}"


def _offsets(subject: Subject) -> str | None:
    header = subject.stored.header
    return "sfh_fdeoff is past sfh_freoff" if header.fde_offset > header.fre_offset else None


def _layout(subject: Subject) -> str | None:
    header = subject.stored.header
    if header.fde_offset:
        return f"sfh_fdeoff is {header.fde_offset}, and the functions are read right after the header"
    if header.fre_offset != subject.table_size:
        return f"sfh_freoff is {header.fre_offset}, and the rows are read right after the functions"
    return None


def _outermost(rows: StoredRows) -> str | None:
    found = any(not tail.words for tail in rows.tails)
    return "a row without data words (errata 2) is an error to it" if found else None


def _no_block(function: StoredFunction) -> str | None:
    is_zero = function.is_pcmask and not function.repeat_size
    return "it divides by the block size, which is 0" if is_zero else None


def _leaf_rows(subject: Subject) -> int:
    """Return how many rows say that RA is in its register, where the ABI tracks RA."""
    if subject.stored.header.fixed_ra_offset:
        return 0
    return r.count_rows(subject, lambda tail: len(tail.words) == 1)


_RULES: Final = (
    r.LINKED_FILE,
    r.SEGMENT,
    r.versions(s.SFRAME_VERSION_2),
    Demand("flags", r.whole(_flags), is_decisive=True),
    r.BYTE_ORDER,
    Demand("ABI", r.whole(_abi), is_decisive=True),
    Demand("offsets", r.whole(_offsets), is_decisive=True),
    Demand("layout", r.whole(_layout), "reads it wrongly", is_decisive=True),
    Demand("SFRAME_F_FDE_SORTED", r.whole(_sorted), "leaves traces to DWARF", is_decisive=True),
    r.starts_ascend("reads it wrongly"),
    r.disjoint("reads it wrongly"),
    Demand("block size", r.each(_no_block), "crashes"),
    r.rows_ascend("reads it wrongly"),
    r.rows_inside("reads it wrongly"),
    Demand("rows without data words", r.each_row_list(_outermost), "leaves traces to DWARF"),
)
_REMARKS: Final = (
    Remark(_leaf_rows, "rows have RA in its register: a trace through one is left to DWARF"),
    Remark(
        uncovered_ends,
        "functions may end in a call and have no function at their end: a trace through the return address, which it "
        "looks up, is left to DWARF",
    ),
    r.LATE,
)
GLIBC: Final = Reader("glibc", (Edition("2.42 to 2.44", _RULES, _REMARKS),))
