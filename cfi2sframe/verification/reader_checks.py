# SPDX-License-Identifier: Apache-2.0
"""Checks of sections, one for each demand; the table in `readers` says which reader makes it."""

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from operator import add, gt
from typing import Final, NamedTuple, cast

from cfi2sframe.constants import sframe as s
from cfi2sframe.constants.elf import PF_X, PT_LOAD
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import NO_BLOCK_SIZE, FunctionBody, Section
from cfi2sframe.sframe.read import DecodedSection, Header

#: How many registers Linux tells apart.
_REGISTER_COUNT: Final = 32


class Edition(NamedTuple):
    """Releases of a reader that read alike, those that the rules were seen in; the versions and flags that they know.

    `flags` 0: those of the version. `machines` are those of the ABIs that it is written for, where these are not all.
    """

    reader: str
    releases: str
    versions: tuple[int, ...]
    flags: int = 0
    machines: tuple[int, ...] = ()


class Subject(NamedTuple):
    """A section that was read, the file it describes, and the edition that reads it.

    `bodies` are the distinct ones of the section. `late_rows`: the functions whose last row starts at their end, or the
    end of their block, or past it; their starts, that of the row, and the end. `is_in_file`: the section is the one
    that the file has.
    """

    edition: Edition
    section: DecodedSection
    image: ElfImage
    bodies: tuple[FunctionBody, ...]
    late_rows: list[tuple[int, int, int]]
    is_in_file: bool = False

    @property
    def header(self) -> Header:
        """The header as stored."""
        return self.section.header

    @property
    def table_size(self) -> int:
        """Bytes of the function table."""
        return self.header.fde_count * s.FDE_SIZE[self.section.version]


#: The starts of the functions that are wrong, each with how; None: the section as a whole is.
Breaches = list[tuple[int | None, str]]
#: Returns how the section as a whole is wrong, or breaches; anything else: nothing is.
Check = Callable[[Subject], object]


def subject_of(section: Section, image: ElfImage, *, is_in_file: bool = False) -> Callable[[Edition], Subject]:
    """Return a function that gives the subject for an edition; what all editions ask is computed once.

    A section that was not read must not be checked by rules about bytes.
    """
    bodies = tuple(dict.fromkeys(section.bodies))
    functions = zip(section.starts, section.sizes, section.bodies, strict=True)
    late_rows = [
        (start, body.starts[-1], end)
        for start, size, body in functions
        if body.starts and body.starts[-1] >= (end := body.repeat_size if body.repeat_size > 0 else size)
    ]
    fixed = (cast("DecodedSection", section), image, bodies, late_rows, is_in_file)
    return lambda edition: Subject(edition, *fixed)


def each_body(check: Callable[[FunctionBody], object]) -> Check:
    """Return a check of functions, made of one that says how rows are wrong; it runs once for equal rows."""

    def breaches(subject: Subject) -> Breaches:
        messages = {body: message for body in subject.bodies if isinstance(message := check(body), str)}
        functions = zip(subject.section.starts, subject.section.bodies, strict=True) if messages else ()
        return [(start, messages[body]) for start, body in functions if body in messages]

    return breaches


def large_register(body: FunctionBody) -> str | None:
    """Say which register of a flexible row Linux, which reads 5 bits of its number, takes for another one."""
    rules = [rule for state in set(body.states) for rule in (state.cfa, state.ra, state.fp) if rule is not None]
    register = max([rule.register or 0 for rule in rules], default=0) if body.is_flexible else 0
    return f"register {register} is taken for {register % _REGISTER_COUNT}" if register >= _REGISTER_COUNT else None


def rows_outside(subject: Subject) -> Breaches:
    """Return functions whose last row starts past their end, or past the end of their block."""
    message = "the last row starts at {}, past the end at {}"
    return [(start, message.format(last, end)) for start, last, end in subject.late_rows if last > end]


def rows_at_end(subject: Subject) -> Breaches:
    """Return functions whose last row starts at their end, or at the end of their block: it is never in force."""
    message = "the last row starts at the end, {}"
    return [(start, message.format(end)) for start, last, end in subject.late_rows if last == end]


def empty_functions(subject: Subject) -> Breaches:
    """Return functions that have rows and no size."""
    functions = zip(subject.section.starts, subject.section.sizes, subject.section.bodies, strict=True)
    return [(start, "no size") for start, size, body in functions if not size and body.starts]


def missing_block_sizes(subject: Subject) -> Breaches:
    """Return PCMASK functions without the size of their block, which version 1 does not store."""
    stores_size = subject.section.version > s.SFRAME_VERSION_1
    functions = zip(subject.section.starts, subject.section.bodies, strict=True) if stores_size else ()
    message = "block size 0 of a PCMASK function"
    return [(start, message) for start, body in functions if body.repeat_size == NO_BLOCK_SIZE]


def needless_block_sizes(subject: Subject) -> Breaches:
    """Return functions without blocks for which the size of one is stored."""
    functions = zip(subject.section.starts, subject.section.records, strict=True)
    message = "block size {} of a PCINC function"
    return [(start, message.format(r.repeat_size)) for start, r in functions if r.repeat_size and not r.is_pcmask]


def descents(subject: Subject) -> Breaches:
    """Return functions that start at or before the one before them, in a section that claims to be sorted."""
    starts = subject.section.starts if subject.section.is_sorted else ()
    return [(after, "starts do not ascend") for start, after in pairwise(starts) if after <= start]


def overlaps(subject: Subject) -> Breaches:
    """Return functions that start inside the one before them, in a section that claims to be sorted."""
    starts, sizes = (subject.section.starts, subject.section.sizes) if subject.section.is_sorted else ((), ())
    pairs = pairwise(zip(starts, sizes, strict=True))
    message = "overlaps the function before it"
    return [(start, message) for (before, size), (start, _) in pairs if before < start < before + size]


def segment(subject: Subject) -> str | None:
    """Say that PT_GNU_SFRAME does not lead to the section of the file."""
    image, size = subject.image, len(subject.section.data)
    segment = image.sframe_segment
    if not subject.is_in_file or image.is_relocatable:
        return None
    if segment is None:
        return "the file has no PT_GNU_SFRAME segment"
    if segment.vaddr != subject.section.vaddr or segment.memory_size < size:
        return "PT_GNU_SFRAME does not lead to the section"
    is_mapped = image.bytes_at(segment.vaddr, size) is not None
    return None if is_mapped else "PT_GNU_SFRAME is in no PT_LOAD segment, so nothing maps it"


def segments(section: Section, image: ElfImage) -> Iterator[str]:
    """Yield Linux's objections to the functions' segments. No section for code in several of them can satisfy it."""
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
    # Before the first segment, no function ends.
    vaddrs, ends = [load.vaddr for load in loads], [-1, *[load.end_vaddr for load in loads]]
    limits = [ends[bisect_right(vaddrs, start)] for start in section.starts]
    if any(map(gt, map(add, section.starts, section.sizes), limits)):
        yield "a function is in no executable segment, or reaches past its end"


def outside_the_code(subject: Subject) -> Breaches:
    """Return functions that start outside of the code."""
    # An FDE may reach past its section into the segment, and a piece of it may start there.
    message, starts = "starts outside the executable sections and segments", subject.section.ascending.starts
    outside = [start for start, end in zip(starts, subject.image.code_ends_of(starts), strict=True) if end is None]
    return [(start, message) for start in outside if not subject.image.may_execute(start)]


def outside_the_text(subject: Subject) -> Breaches:
    """Return functions outside the sections that stay the text of a kernel or of a module."""
    outside: Breaches = []
    for start, size in zip(subject.section.starts, subject.section.sizes, strict=True):
        section = subject.image.section_at(start)
        if section is None or not section.is_code or start + size > section.end_vaddr:
            outside.append((start, "it is in no executable section, or reaches past its end"))
        elif section.name.startswith(".init"):
            outside.append((start, f"it is in {section.name}, which is no part of the text"))
    return outside


def shared_rows(subject: Subject) -> Breaches:
    """Return functions that share their rows with another one."""
    offsets = [record.fre_offset if record.row_count else None for record in subject.section.records]
    users = Counter(offsets)
    message = "its rows are another function's too: it copies them for each, past the bytes that it reserves"
    functions = zip(subject.section.starts, offsets, strict=True)
    return [(start, message) for start, offset in functions if offset is not None and users[offset] > 1]
