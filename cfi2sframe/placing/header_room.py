# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers where they are: what follows them, and what of that can move."""

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, ProgramHeader
from cfi2sframe.placing.checks import LinkedFile, round_up
from cfi2sframe.placing.moving import (
    BUILD_ID_NAME,
    ENCLOSING_TYPES,
    FOLLOWING_TYPES,
    movable_sections,
    of_whole_segments,
    referred_sections,
)
from cfi2sframe.range_map import united, without

#: Dynamic entries whose value is an address.
_ADDRESS_TAGS: Final = frozenset(
    {
        *(c.DT_PLTGOT, c.DT_HASH, c.DT_STRTAB, c.DT_SYMTAB, c.DT_RELA, c.DT_REL, c.DT_JMPREL, c.DT_RELR),
        *(c.DT_INIT, c.DT_FINI, c.DT_INIT_ARRAY, c.DT_FINI_ARRAY, c.DT_PREINIT_ARRAY),
        *(c.DT_GNU_HASH, c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED),
    }
)
#: GNU_PROPERTY_X86_ISA_1_NEEDED.
_ISA_NEEDED: Final = (0xC0008002).to_bytes(4, "little")
_ISA_BASELINE: Final = 1
#: The most program headers that are added.
_MOST_ADDED: Final = 2


class MovableGroup(NamedTuple):
    """Sections that move together because one segment covers them, with their distances from the group's start."""

    deltas: dict[int, int]
    file_offset: int
    size: int
    alignment: int
    has_build_id: bool

    def placed_from(self, start: int, bias: int) -> tuple[dict[int, int], int]:
        """Return new file offsets of the sections at `start` or, for their alignment, soon after; and their end.

        `bias` is the distance of addresses from file offsets there.
        """
        start = round_up(start + bias, self.alignment) - bias
        return {index: start + delta for index, delta in self.deltas.items()}, start + self.size


class Rearranged(NamedTuple):
    """The sections that stay near the program headers, with their new file offsets, and those that leave.

    `file` is the file with the segment of the program headers as large as that takes.
    """

    file: LinkedFile
    staying: dict[int, int]
    leaving: list[MovableGroup]


def slack_end(file: LinkedFile, load: ProgramHeader) -> int:
    """Return the file offset up to which a PT_LOAD can grow over unused zeros, and stay off the next segment's page."""
    end = load.file_span.end
    if load.file_size != load.memory_size or load.file_size == 0:
        return end
    limit = file.next_described(end)
    above = bisect_left(file.loads, load.end_vaddr, key=lambda other: other.vaddr)
    if above < len(file.loads):
        page = alignment_of(file)
        limit = min(limit, end + max(file.loads[above].vaddr // page * page - load.end_vaddr, 0))
    unused = bytes(file.data[end : max(limit, end)])
    return end + len(unused) - len(unused.lstrip(b"\0"))


def alignment_of(file: LinkedFile) -> int:
    """Return the alignment of a new segment, the largest of all."""
    return max(4096, *(load.alignment for load in file.loads))


def _is_empty(file: LinkedFile, segment: ProgramHeader) -> bool:
    """Whether a PT_GNU_PROPERTY has no note: patchelf leaves it where it writes its program headers."""
    name = bytes(file.data[segment.file_offset + 12 : segment.file_offset + 16])
    return segment.type == c.PT_GNU_PROPERTY and name != b"GNU\0"


def repeated_note(file: LinkedFile) -> ProgramHeader | None:
    """Return the PT_NOTE that repeats PT_GNU_PROPERTY, which linkers write for older loaders; None without one.

    It stays where it asks for a newer processor than the first of AMD64, since glibc refuses programs by PT_NOTE alone.
    """
    for segment in file.segments:
        if segment.type == c.PT_NOTE and segment._replace(type=c.PT_GNU_PROPERTY) in file.segments:
            content = bytes(file.data[segment.file_offset : segment.file_span.end])
            needed = content.partition(_ISA_NEEDED)[2][4:8]
            return None if int.from_bytes(needed, "little") > _ISA_BASELINE else segment
    return None


class HeaderRoom:
    """What follows the program headers in their segment and in unused zeros after it, up to what cannot move.

    Bytes there that no section, program header or dynamic entry has are free, whatever fills them: patchelf leaves
    zeros, X or Z where a section was. Without `repeated`, a program header, there is more room. `known` is another
    `HeaderRoom` of the file, which knows who refers to what.
    """

    def __init__(
        self, file: LinkedFile, repeated: ProgramHeader | None = None, known: "HeaderRoom | None" = None
    ) -> None:
        self.file = file
        self.is_static = file.header.type == c.ET_EXEC and not any(
            segment.type in (c.PT_INTERP, c.PT_DYNAMIC) for segment in file.segments
        )
        # Nothing reads PT_PHDR of a static program, and GNU ld does not write it; without it, all versions of GNU strip
        # leave a table at the end where it is.
        self._spare = {c.PT_NULL, c.PT_PHDR} if self.is_static else {c.PT_NULL}
        self._repeated = repeated
        self.kept = [segment for segment in file.segments if self.keeps(segment)]
        start = file.header.program_headers_offset
        self.load = next((s for s in file.loads if s.file_offset <= start and file.table_end <= s.file_span.end), None)
        self.limit = file.table_end
        #: The sections of which it has been asked whether anything refers to them, and those of which this is so.
        self.proved: frozenset[int] = known.proved if known else frozenset()
        self.referred: frozenset[int] = known.referred if known else frozenset()
        #: The distance of addresses from file offsets.
        self.bias = self.load.vaddr - self.load.file_offset if self.load else 0
        self.groups = self._movable_groups(self.load) if self.load else []

    def keeps(self, segment: ProgramHeader) -> bool:
        """Whether a program header stays in the table."""
        return segment.type not in self._spare and segment != self._repeated

    def _movable_groups(self, load: ProgramHeader) -> list[MovableGroup]:
        """Return what may move, in file order up to what may not, or need not, and set `limit` to that."""
        file = self.file
        if load.file_span.end <= file.table_end:
            # Nothing else is loaded there.
            self.limit = slack_end(file, load)
            return []
        if not any(file.sections[index].flags & c.SHF_ALLOC for index in file.indices_within(load.file_span)):
            # The section table does not tell what is loaded.
            return []
        may_move = movable_sections(file, file.table_end, load.file_span.end)
        groups = self._grouped(self._up_to_limit(load, may_move))
        build_id = max((group.size + group.alignment for group in groups if group.has_build_id), default=0)
        enough = file.table_end + _MOST_ADDED * PROGRAM_HEADER_SIZE + build_id
        needed = {index for group in groups if group.file_offset < enough for index in group.deltas}
        self.referred |= referred_sections(file, needed - self.proved)
        self.proved |= needed
        if self.referred:
            may_move = of_whole_segments(file, may_move - self.referred)
            groups = self._grouped(self._up_to_limit(load, may_move))
        count = bisect_left(groups, enough, key=attrgetter("file_offset"))
        self.limit = groups[count].file_offset if count < len(groups) else self.limit
        return groups[:count]

    def _up_to_limit(self, load: ProgramHeader, may_move: frozenset[int]) -> list[int]:
        """Return the sections that may move, in file order up to the first that may not, and set `limit` to that."""
        end = load.file_span.end
        if load is not self.file.loads[-1] and not load.flags & c.PF_W:
            end = slack_end(self.file, load)
        found = list[int]()
        for start, index in sorted(self._contents(load)):
            if index not in may_move:
                self.limit = min(start, end)
                return found
            found.append(index)
        self.limit = end
        return found

    def _contents(self, load: ProgramHeader) -> Iterator[tuple[int, int]]:
        """Yield file offsets after the table: those of sections with their index, of anything else with -1."""
        file, end = self.file, self.file.table_end
        yield from ((section.file_offset, section.index) for section in file.stored if section.file_offset >= end)
        kept = [s for s in self.kept if s.type not in ENCLOSING_TYPES and not _is_empty(file, s)]
        segments = united(segment.file_span for segment in kept)
        sections = [section.file_span for section in file.stored]
        yield from ((span.start, -1) for span in without(segments, sections) if span.end > end)
        values = [entry.value for entry in file.dynamic if entry.tag in _ADDRESS_TAGS]
        for vaddr in (file.header.entry_vaddr, *values):
            start = vaddr - load.vaddr + load.file_offset
            if start >= end and file.stored_at(start) is None:
                yield start, -1

    def _grouped(self, movable: list[int]) -> list[MovableGroup]:
        sections, groups = self.file.sections, list[list[int]]()
        following = [s for s in self.file.segments if s.type in FOLLOWING_TYPES]
        for index in movable:
            end = sections[index].file_span.end
            first = sections[groups[-1][-1]].file_offset if groups else 0
            if groups and any(s.file_offset <= first and end <= s.file_span.end for s in following):
                groups[-1].append(index)
            else:
                groups.append([index])
        result = []
        for group in groups:
            start, end = sections[group[0]].file_offset, sections[group[-1]].file_span.end
            alignments = [sections[index].alignment for index in group]
            alignments += [s.alignment for s in following if start <= s.file_offset < end]
            result.append(
                MovableGroup(
                    {index: sections[index].file_offset - start for index in group},
                    start,
                    end - start,
                    max(alignments),
                    any(sections[index].name == BUILD_ID_NAME for index in group),
                )
            )
        return result

    def rearranged(self, added: int) -> Rearranged | None:
        """Return what makes room for `added` more program headers: as few sections as possible, and not the build-id.

        None where it cannot be done.
        """
        table_end = self.file.header.program_headers_offset + PROGRAM_HEADER_SIZE * (len(self.kept) + added)
        build_id = next((number for number, group in enumerate(self.groups) if group.has_build_id), None)
        fallback = None
        for count in range(len(self.groups) + 1):
            room_end = self.groups[count].file_offset if count < len(self.groups) else self.limit
            if room_end < table_end:
                continue
            if build_id is None or build_id >= count or self._fits(self.groups[build_id], table_end, room_end):
                return self._packed(self.groups[:count], table_end, room_end)
            fallback = fallback or (count, room_end)
        return fallback and self._packed(self.groups[: fallback[0]], table_end, fallback[1])

    def _fits(self, group: MovableGroup, start: int, end: int) -> bool:
        return group.placed_from(start, self.bias)[1] <= end

    def _packed(self, groups: list[MovableGroup], start: int, end: int) -> Rearranged:
        """Put as many groups as possible between two file offsets, the build-id first."""
        staying, leaving = dict[int, int](), []
        for group in sorted(groups, key=lambda group: (not group.has_build_id, group.size)):
            if not self._fits(group, start, end):
                leaving.append(group)
                continue
            placed, start = group.placed_from(start, self.bias)
            staying.update(placed)
        load = self.load
        if load is None or start <= load.file_span.end:
            return Rearranged(self.file, staying, leaving)
        size = start - load.file_offset
        grown = load._replace(file_size=size, memory_size=size)
        return Rearranged(self.file.with_load(load, grown), staying, leaving)
