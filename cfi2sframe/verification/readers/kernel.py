# SPDX-License-Identifier: Apache-2.0
"""Linux's unwinder of user-space stacks: a series of patches of 2026, which no release has.

With CONFIG_SFRAME_VALIDATION it reads the whole section when it registers it; without, it drops a section at the first
look-up that meets an error. Only the rules of validation are here: a section that they accept has no other errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import PT_PHDR
from cfi2sframe.elf.executable import before_the_code, spread_of
from cfi2sframe.sframe import constants as s
from cfi2sframe.verification.readers import rules as r
from cfi2sframe.verification.readers.records import Demand, Edition, Reader, Remark
from cfi2sframe.verification.readers.subject import controls_of, uncovered_ends

if TYPE_CHECKING:
    from cfi2sframe.verification.readers.subject import Control, StoredFunction, StoredRows, Subject

#: Bits of a control word: the one that must be 0, and how many a register number has.
_RESERVED: Final = 0x4
_REGISTER_COUNT: Final = 32


def _auxiliary(subject: Subject) -> str | None:
    size = subject.stored.header.auxhdr_size
    return f"an auxiliary header of {size} bytes" if size else None


def _empty(subject: Subject) -> str | None:
    header = subject.stored.header
    if not header.fde_count:
        return "sfh_num_fdes is 0"
    return None if header.fre_count else "sfh_num_fres is 0"


def _layout(subject: Subject) -> str | None:
    header = subject.stored.header
    if header.fre_offset < header.fde_offset + subject.table_size:
        return "the rows begin before the function table ends"
    return None


def _row_count(function: StoredFunction) -> str | None:
    if not function.row_count:
        return "no rows"
    if function.row_count > function.size:
        return f"{function.row_count} rows for {function.size} bytes"
    return None


def _reserved_bit(rows: StoredRows) -> str | None:
    for tail in rows.tails:
        for control in controls_of(tail):
            if control.word & _RESERVED:
                return f"control word 0x{control.word:x} has the reserved bit"
    return None


def _left_over(rows: StoredRows) -> str | None:
    for tail in rows.tails:
        controls = list(controls_of(tail))
        # A padding word is read only where a rule with its two words follows.
        if controls and len(tail.words) != 2 * len(controls) + controls[-1].entity + 1 - len(controls):
            return f"the last of {len(tail.words)} data words is left over"
    return None


def _large_register(rows: StoredRows) -> str | None:
    for tail in rows.tails:
        for control in controls_of(tail):
            if (control.register or 0) >= _REGISTER_COUNT:
                return f"register {control.register} is taken for {(control.register or 0) % _REGISTER_COUNT}"
    return None


def _segments(subject: Subject) -> str | None:
    spread = spread_of(subject.image.segments, subject.section.starts, subject.section.sizes)
    if spread.is_in_one or not subject.image.segments:
        return None
    if spread.holder_count > 1:
        return (
            f"functions are in {spread.holder_count} of {spread.segment_count} executable segments; it registers the "
            "section for each of them by itself, and wants all functions there"
        )
    return "a function is in no executable segment, or reaches past its end"


def _other_header(subject: Subject) -> str | None:
    if subject.image.is_relocatable:
        return None
    found = before_the_code(subject.image.segments, subject.section.starts)
    # Putting the section into the file clears PF_X of PT_PHDR.
    if found is None or (found.type == PT_PHDR and not subject.is_in_file):
        return None
    name = "PT_PHDR" if found.type == PT_PHDR else f"a program header of type 0x{found.type:x}"
    return f"{name} has PF_X: the section is registered for it, and then not for the code's segment, which overlaps it"


def _is_flexible(function: StoredFunction) -> bool:
    return function.is_flexible


def _topmost_only(subject: Subject) -> int:
    """Return how many rows have a rule that holds in the topmost frame only."""
    own = (subject.section.arch.sp_register, subject.section.arch.fp_register)

    def is_concerned(control: Control) -> bool:
        return control.register is not None and (control.entity > 0 or control.register not in own)

    return r.count_rows(subject, lambda tail: any(map(is_concerned, controls_of(tail))), _is_flexible)


def _flexible(subject: Subject) -> int:
    return sum(function.is_flexible for function in subject.functions)


_RULES: Final = (
    r.LINKED_FILE,
    r.SEGMENT,
    r.versions(s.SFRAME_VERSION_3),
    r.flags((s.SFRAME_F_FDE_SORTED | s.SFRAME_F_FDE_FUNC_START_PCREL,)),
    r.BYTE_ORDER,
    Demand("auxiliary header", r.whole(_auxiliary), is_decisive=True),
    Demand("functions and rows", r.whole(_empty), is_decisive=True),
    Demand("layout", r.whole(_layout), is_decisive=True),
    Demand("executable segments", r.whole(_segments)),
    Demand("headers with PF_X", r.whole(_other_header), "does not find it"),
    r.starts_ascend(),
    Demand("number of rows", r.each(_row_count)),
    r.rows_ascend(),
    r.rows_inside(),
    Demand("control words", r.each_row_list(_reserved_bit, _is_flexible)),
    Demand("data words", r.each_row_list(_left_over, _is_flexible)),
    Demand("register numbers", r.each_row_list(_large_register, _is_flexible), "reads it wrongly"),
)
_REMARKS: Final = (
    Remark(
        _topmost_only,
        "rows start from a register that it knows in the topmost frame only: elsewhere a walk ends there",
    ),
    Remark(_flexible, "functions have flexible rows: an early version of the series refuses the section for them"),
    Remark(
        uncovered_ends,
        "functions may end in a call and have no function at their end: the return address, which it looks up, "
        "finds no row",
    ),
    r.LATE,
)
KERNEL: Final = Reader("kernel", (Edition("patches of 2026, in no release", _RULES, _REMARKS),))
