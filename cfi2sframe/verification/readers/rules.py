# SPDX-License-Identifier: Apache-2.0
"""Rules that several readers share, and the makers of those that differ in a number."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from cfi2sframe.intern import IdentityMap
from cfi2sframe.verification.readers.records import Breach, Demand, Remark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

    from cfi2sframe.sframe.read import Words
    from cfi2sframe.verification.readers.records import Consequence
    from cfi2sframe.verification.readers.subject import StoredFunction, StoredRows, Subject


def whole(message: Callable[[Subject], str | None]) -> Callable[[Subject], Iterator[Breach]]:
    """Return a check of the section as a whole, from a function that says what is wrong with it, or None."""

    def breaches(subject: Subject) -> Iterator[Breach]:
        found = message(subject)
        if found is not None:
            yield Breach(None, found)

    return breaches


def each(message: Callable[[StoredFunction], str | None]) -> Callable[[Subject], Iterator[Breach]]:
    """Return a check of each function, from a function that says what is wrong with one, or None."""

    def breaches(subject: Subject) -> Iterator[Breach]:
        for function in subject.functions:
            found = message(function)
            if found is not None:
                yield Breach(function.start_vaddr, found)

    return breaches


def each_row_list(
    message: Callable[[StoredRows], str | None],
    is_concerned: Callable[[StoredFunction], bool] = lambda _function: True,
) -> Callable[[Subject], Iterator[Breach]]:
    """Return a check of the rows of the functions that are concerned; lists that are shared are checked once."""

    def breaches(subject: Subject) -> Iterator[Breach]:
        known = IdentityMap(message)
        for function in subject.functions:
            found = known[function.row_list] if is_concerned(function) else None
            if found is not None:
                yield Breach(function.start_vaddr, found)

    return breaches


def count_rows(
    subject: Subject,
    is_counted: Callable[[Words], bool],
    is_concerned: Callable[[StoredFunction], bool] = lambda _function: True,
) -> int:
    """Return how many rows of the functions that are concerned are counted; lists that are shared are read once."""
    known = IdentityMap["StoredRows", int](lambda row_list: sum(map(is_counted, row_list.tails)))
    return sum(known[function.row_list] for function in subject.functions if is_concerned(function))


def versions(*numbers: int) -> Demand:
    """Return the rule that only these versions are read."""
    known = " and ".join(map(str, numbers))

    def message(subject: Subject) -> str | None:
        version = subject.stored.header.version
        return None if version in numbers else f"version {version}; it reads version {known}"

    return Demand("version", whole(message), is_decisive=True)


def flags(allowed: Collection[int]) -> Demand:
    """Return the rule that the header's flags are one of these values."""

    def message(subject: Subject) -> str | None:
        found = subject.stored.header.flags
        return None if found in allowed else f"flags 0x{found:x}"

    return Demand("flags", whole(message), is_decisive=True)


def linked_file(subject: Subject) -> str | None:
    """Say that an object is not what a reader of running programs meets."""
    return "it reads sections of linked files, and this is an object" if subject.image.is_relocatable else None


def found_by_segment(subject: Subject) -> str | None:
    """Say that PT_GNU_SFRAME does not lead to the section of the file."""
    segment = subject.image.sframe_segment
    if not subject.is_in_file or subject.image.is_relocatable:
        return None
    if segment is None:
        return "the file has no PT_GNU_SFRAME segment"
    if segment.vaddr != subject.stored.vaddr or segment.memory_size < len(subject.stored.data):
        return "PT_GNU_SFRAME does not lead to the section"
    if subject.image.bytes_at(segment.vaddr, len(subject.stored.data)) is None:
        return "PT_GNU_SFRAME is in no PT_LOAD segment, so nothing maps it"
    return None


def own_byte_order(subject: Subject) -> str | None:
    """Say that a section is not in the byte order of its ABI, or is of another ABI than its file."""
    section = subject.section
    if section.arch != subject.image.arch:
        return f"it is for {section.arch.name}, the file for {subject.image.arch.name}"
    return (
        None
        if subject.stored.header.byte_order == section.arch.byte_order
        else f"not the byte order of {section.arch.name}"
    )


LINKED_FILE = Demand("linked file", whole(linked_file), is_decisive=True)
SEGMENT = Demand("PT_GNU_SFRAME", whole(found_by_segment), "does not find it")
BYTE_ORDER = Demand("byte order", whole(own_byte_order), is_decisive=True)


def _descending(subject: Subject) -> Iterable[Breach]:
    for before, after in pairwise(subject.functions):
        if after.start_vaddr <= before.start_vaddr:
            yield Breach(after.start_vaddr, f"it starts at or before 0x{before.start_vaddr:x}, the one before it")


def _overlapping(subject: Subject) -> Iterable[Breach]:
    for before, after in pairwise(subject.functions):
        if after.start_vaddr < before.start_vaddr + before.size:
            yield Breach(after.start_vaddr, "it starts before the end of the one before it")


def row_starts_ascend(rows: StoredRows) -> str | None:
    """Say that row starts do not ascend."""
    for before, after in pairwise(rows.starts):
        if after <= before:
            return f"a row starts at {after} after one at {before}"
    return None


def row_outside(function: StoredFunction) -> str | None:
    """Say that the last row starts past the function's end, or past the end of its block."""
    limit = function.repeat_size if function.is_pcmask else function.size
    last = function.row_list.starts[-1] if function.row_count else -1
    return f"a row starts at {last} of {limit} bytes" if last >= limit else None


def starts_ascend(consequence: Consequence = "refuses it") -> Demand:
    """Return the rule that each function starts after the one before it."""
    return Demand("order of functions", _descending, consequence)


def disjoint(consequence: Consequence) -> Demand:
    """Return the rule that each function starts at or after the end of the one before it."""
    return Demand("overlap", _overlapping, consequence)


def rows_ascend(consequence: Consequence = "refuses it") -> Demand:
    """Return the rule that each row starts after the one before it."""
    return Demand("order of rows", each_row_list(row_starts_ascend), consequence)


def rows_inside(consequence: Consequence = "refuses it") -> Demand:
    """Return the rule that rows start inside their function or, PCMASK, inside its block."""
    return Demand("rows outside", each(row_outside), consequence)


def late_functions(subject: Subject) -> int:
    """Return how many functions have code before their first row."""
    return sum(f.row_count > 0 and f.row_list.starts[0] > 0 for f in subject.functions)


LATE = Remark(late_functions, "functions have code before their first row: no row is found there")
