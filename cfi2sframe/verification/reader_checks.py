# SPDX-License-Identifier: Apache-2.0
"""A section as readers meet it, and the checks of the table in `readers` that take more than a line."""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import PF_X, PT_LOAD, PT_PHDR, SHT_RELA
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.headers import ProgramHeader
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FunctionBody, Section
    from cfi2sframe.sframe.read import DecodedSection, Header, Record, Words

#: Bits of a control word: the one that must be 0, and how many registers Linux tells apart.
_RESERVED: Final = 0x4
_REGISTER_COUNT: Final = 32
#: The bytes before a return address that are looked at: no call is longer.
_CALL_SIZE: Final = 7


class Edition(NamedTuple):
    """Releases of a reader that read alike, those that the rules were seen in; the versions and flags that they know.

    `flags` 0: those of the version. `machines` are those of the ABIs that it is written for, where these are not all.
    """

    reader: str
    releases: str
    versions: tuple[int, ...]
    flags: int = 0
    machines: tuple[int, ...] = ()


class RowFacts(NamedTuple):
    """What a reader may find wrong with a function's rows, and how many rows are of a kind."""

    descends: str | None
    other_base: str | None
    has_outermost: bool
    reserved_bit: str | None
    left_over: str | None
    large_register: str | None
    topmost_only: int
    single_words: int


class StoredFunction(NamedTuple):
    """A function with what is stored of it, and where the one before it starts and ends (-1: there is none)."""

    previous_start: int
    previous_end: int
    start: int
    size: int
    body: FunctionBody
    record: Record
    rows: RowFacts


class Subject(NamedTuple):
    """A section that was read, the file it describes, and who looks. `is_in_file`: it is the one that the file has."""

    edition: Edition
    section: DecodedSection
    image: ElfImage
    is_in_file: bool
    functions: tuple[StoredFunction, ...]

    @property
    def header(self) -> Header:
        """The header as stored."""
        return self.section.header

    @property
    def table_size(self) -> int:
        """Bytes of the function table."""
        return self.header.fde_count * s.FDE_SIZE[self.section.version]


def stored_functions(section: DecodedSection) -> Iterator[StoredFunction]:
    """Yield the functions of a section. Rows that several of them share are looked at once."""
    known: dict[tuple[int, int, int, int], RowFacts] = {}
    previous_start = previous_end = -1
    for start, size, body, record in zip(section.starts, section.sizes, section.bodies, section.records, strict=True):
        key = (record.rows_offset, record.row_count, record.fre_type, record.fde_type)
        if key not in known:
            known[key] = _facts_of(body, section.words_of(record), section.arch)
        yield StoredFunction(previous_start, previous_end, start, size, body, record, known[key])
        previous_start, previous_end = start, start + size


def _facts_of(body: FunctionBody, rows: Iterable[Words], arch: Arch) -> RowFacts:
    own = (arch.sp_register, arch.fp_register)
    bases = {state.cfa.register for state in body.states if state.cfa is not None}
    others = [arch.register_name(base) for base in bases.difference(own) if base is not None]
    descent = next(((first, second) for first, second in pairwise(body.starts) if second <= first), None)
    reserved = left_over = None
    topmost_only = single = 0
    for word_size, words in rows:
        single += len(words) == 1
        is_topmost_only = False
        position = entity = last_end = 0
        while body.is_flexible and position < len(words):
            control = words[position] & ((1 << 8 * word_size) - 1)
            register = control >> s.FLEX_REG_SHIFT if control & s.FLEX_REG_P else None
            if control & _RESERVED:
                reserved = reserved or f"control word 0x{control:x} has the reserved bit"
            if register is not None:
                is_topmost_only |= entity > 0 or register not in own
            position += 2 if control else 1
            entity += 1
            last_end = position if control else last_end
        # A padding word is read only where a rule with its two words follows.
        if 0 < last_end < len(words):
            left_over = left_over or f"the last of {len(words)} data words is left over"
        topmost_only += is_topmost_only
    return RowFacts(
        None if descent is None else f"a row starts at {descent[1]} after one at {descent[0]}",
        f"the CFA counts from {min(others)}" if others else None,
        any(state.cfa is None for state in body.states),
        *(reserved, left_over, large_register(body), topmost_only, single),
    )


def large_register(body: FunctionBody) -> str | None:
    """Say that a flexible row has a register for which Linux, which reads 5 bits of its number, takes another one."""
    rules = [rule for state in set(body.states) for rule in (state.cfa, state.ra, state.fp) if rule is not None]
    number = max([rule.register or 0 for rule in rules], default=0) if body.is_flexible else 0
    return f"register {number} is taken for {number % _REGISTER_COUNT}" if number >= _REGISTER_COUNT else None


# Checks: what is wrong with the section as a whole, or which functions (by start) are wrong, and how; else anything.

Breaches = list[tuple[int | None, str]]
Check = Callable[[Subject], str | Breaches | int | None]


def each(check: Callable[[StoredFunction], object]) -> Check:
    """Return a check of each function, from a function that says what is wrong with one."""
    return lambda it: [(f.start, message) for f in it.functions if isinstance(message := check(f), str)]


def segment(it: Subject) -> str | None:
    """Say that PT_GNU_SFRAME does not lead to the section of the file."""
    image, size = it.image, len(it.section.data)
    segment = image.sframe_segment
    if not it.is_in_file or image.is_relocatable:
        return None
    if segment is None:
        return "the file has no PT_GNU_SFRAME segment"
    if segment.vaddr != it.section.vaddr or segment.memory_size < size:
        return "PT_GNU_SFRAME does not lead to the section"
    is_mapped = image.bytes_at(segment.vaddr, size) is not None
    return None if is_mapped else "PT_GNU_SFRAME is in no PT_LOAD segment, so nothing maps it"


def byte_order(it: Subject) -> str | None:
    """Say that a section is not in the byte order of its ABI, or is of another ABI than its file."""
    arch = it.section.arch
    if arch != it.image.arch:
        return f"it is for {arch.name}, the file for {it.image.arch.name}"
    is_own = it.header.byte_order == arch.byte_order
    return None if is_own else f"not the byte order of {arch.name}"


def gaps(it: Subject) -> str | None:
    """Say that something lies between header, functions and rows."""
    header = it.header
    if header.fde_offset:
        return f"sfh_fdeoff is {header.fde_offset}, and the functions are read right after the header"
    if header.fre_offset != it.table_size:
        return f"sfh_freoff is {header.fre_offset}, and the rows are read right after the functions"
    return None


def segments(section: Section, image: ElfImage) -> Iterator[str]:
    """Yield what Linux has against the functions' segments. Of code in several of them, no section can satisfy it."""
    loads = [segment for segment in image.segments if segment.type == PT_LOAD and segment.flags & PF_X]
    loads.sort(key=lambda load: load.vaddr)
    if not loads:
        return
    starts = sorted(section.starts)
    counts = [bisect_left(starts, load.end_vaddr) - bisect_left(starts, load.vaddr) for load in loads]
    holder_count = sum(map(bool, counts))
    if holder_count > 1:
        yield (
            f"functions are in {holder_count} of {len(loads)} executable segments; it registers the section for each "
            "of them by itself, and wants all functions there"
        )
    last_end = max(map(add, section.starts, section.sizes), default=0)
    is_in_one = any(
        count == len(starts) and last_end <= load.end_vaddr for load, count in zip(loads, counts, strict=True)
    )
    if not is_in_one and any(not _is_inside(loads, *each) for each in zip(section.starts, section.sizes, strict=True)):
        yield "a function is in no executable segment, or reaches past its end"


def _is_inside(loads: list[ProgramHeader], start: int, size: int) -> bool:
    index = bisect_right(loads, start, key=lambda load: load.vaddr) - 1
    return index >= 0 and start + size <= loads[index].end_vaddr


def other_header(it: Subject) -> str | None:
    """Say that a program header with PF_X, no PT_LOAD, precedes the segment of the functions, and overlaps it.

    Linux takes it for an executable segment. Where sections are not validated, the section is registered for it, and
    then not for the segment, because ranges must not overlap.
    """
    first = min(it.section.starts, default=0)
    executable = [segment for segment in it.image.segments if segment.flags & PF_X]
    holds = [load.type == PT_LOAD and load.vaddr <= first < load.end_vaddr for load in executable]
    if it.image.is_relocatable or True not in holds:
        return None
    load, others = executable[holds.index(True)], executable[: holds.index(True)]
    touching = (s for s in others if s.type != PT_LOAD and s.vaddr < load.end_vaddr and load.vaddr < s.end_vaddr)
    found = next(touching, None)
    # Putting the section into the file clears PF_X of PT_PHDR.
    if found is None or (found.type == PT_PHDR and not it.is_in_file):
        return None
    name = "PT_PHDR" if found.type == PT_PHDR else f"a program header of type 0x{found.type:x}"
    return f"{name} has PF_X: the section is registered for it, and then not for the code's segment, which overlaps it"


def outside_the_text(it: Subject) -> Breaches:
    """Return functions outside the sections that are the text of a kernel or of a module for good."""
    found: Breaches = []
    for function in it.functions:
        section = it.image.section_at(function.start)
        if section is None or not section.is_code or function.start + function.size > section.end_vaddr:
            found.append((function.start, "it is in no executable section, or reaches past its end"))
        elif section.name.startswith(".init"):
            found.append((function.start, f"it is in {section.name}, which is no part of the text"))
    return found


def row_count(function: StoredFunction) -> str | None:
    """Say that a function has no rows, or more of them than bytes."""
    count = len(function.body.starts)
    if count > function.size:
        return f"{count} rows for {function.size} bytes"
    return None if count else "no rows"


def row_outside(function: StoredFunction) -> str | None:
    """Say that the last row starts past the function's end, or past the end of its block."""
    limit = function.record.repeat_size if function.body.is_pcmask else function.size
    last = function.body.starts[-1] if function.body.starts else -1
    return f"a row starts at {last} of {limit} bytes" if last >= limit else None


def own_rows(it: Subject) -> Breaches:
    """Return functions whose rows are another one's, too."""
    users = row_list_users(it)
    message = "its rows are another function's too: it copies them for each, past the bytes that it reserves"
    return [(function.start, message) for function in it.functions if users[function.record.fre_offset] > 1]


def row_list_users(it: Subject) -> Counter[int]:
    """Return how many functions use the rows at each offset."""
    return Counter(function.record.fre_offset for function in it.functions if function.body.starts)


def relocated(it: Subject) -> str | None:
    """Say that not every function's start has a relocation of its own, in the order of the functions."""
    image, section, header = it.image, it.image.sframe_section, it.header
    if not it.is_in_file or section is None or not image.is_relocatable:
        return None
    record_size = s.FDE_SIZE[header.version]
    first = s.HEADER_SIZE + header.auxhdr_size + header.fde_offset
    expected = [first + record_size * number for number in range(header.fde_count)]
    tables = [table for table in image.sections if table.type == SHT_RELA and table.info == section.index]
    found: list[int] = []
    for data in map(image.section_bytes, tables):
        found += [offset for (offset,) in struct.iter_unpack(image.byte_order + "Q16x", data[: len(data) // 24 * 24])]
    return None if found == expected else "its relocations are not one for each function's start, in order"


def uncovered_ends(it: Subject) -> int:
    """Return how many functions end in what may be a call, at an address that no function holds.

    A reader that looks the return address itself up, and not the byte before it, finds no row there.
    """
    found = 0
    for function in it.functions:
        end, size = function.start + function.size, min(function.size, _CALL_SIZE)
        if not function.body.is_pcmask and it.section.holder_of(end) is None:
            code = it.image.bytes_at(end - size, size)
            found += code is not None and it.image.arch.ends_in_call(bytes(_CALL_SIZE - size) + code)
    return found
