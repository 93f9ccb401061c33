# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers where they are: what follows them, and how much of that can move."""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Sequence
from itertools import takewhile
from operator import attrgetter
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, ElfSection, ProgramHeader
from cfi2sframe.placing.checks import LinkedFile, round_up
from cfi2sframe.placing.kinds import is_static_go
from cfi2sframe.placing.moving import (
    BUILD_ID_NAME,
    ENCLOSING_TYPES,
    FOLLOWING_TYPES,
    PACKAGE_NAME,
    of_whole_segments,
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
#: Bytes at the start of each file that core dumps have.
FIRST_PAGE_SIZE: Final = 1 << 12
#: Zeros (bytes) that stay after a segment's contents: they may end an `.eh_frame` without a terminator (linked without
#: crtend.o), a table of pointers or a string.
END_SIZE: Final = 8


class MovableGroup(NamedTuple):
    """Sections that move together because one segment covers them, with their distances from the group's start.

    `names_file`: it has the file's build-id or package, which core dumps should have.
    """

    deltas: dict[int, int]
    file_offset: int
    size: int
    alignment: int
    names_file: bool
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


def _end_of(file: LinkedFile, load: ProgramHeader) -> int:
    """Return the file offset up to which a PT_LOAD may get other bytes, over zeros after it if it may grow there."""
    is_last_or_data = load is file.loads[-1] or load.flags & c.PF_W
    return load.file_span.end if is_last_or_data else slack_end(file, load)


def alignment_of(file: LinkedFile) -> int:
    """Return the alignment of a new segment, the largest of all."""
    return max(4096, *(load.alignment for load in file.loads))


def _is_empty(file: LinkedFile, segment: ProgramHeader) -> bool:
    """Return whether a PT_GNU_PROPERTY has no note: patchelf leaves it where it writes its program headers."""
    name = bytes(file.data[segment.file_offset + 12 : segment.file_offset + 16])
    return segment.type == c.PT_GNU_PROPERTY and name != b"GNU\0"


def repeated_note(file: LinkedFile) -> ProgramHeader | None:
    """Return the PT_NOTE that repeats PT_GNU_PROPERTY, which linkers write for older loaders; None without one.

    None also if it asks for more than the baseline of AMD64, since glibc refuses programs by PT_NOTE alone.
    """
    for segment in file.segments:
        if segment.type == c.PT_NOTE and segment._replace(type=c.PT_GNU_PROPERTY) in file.segments:
            content = bytes(file.data[segment.file_offset : segment.file_span.end])
            needed = content.partition(_ISA_NEEDED)[2][4:8]
            return None if int.from_bytes(needed, "little") > _ISA_BASELINE else segment
    return None


def _grouped(file: LinkedFile, movable: Sequence[int]) -> list[MovableGroup]:
    """Return sections, in file order, by the segments that cover them."""
    following = [segment for segment in file.segments if segment.type in FOLLOWING_TYPES]
    groups = list[list[ElfSection]]()
    for section in map(file.sections.__getitem__, movable):
        first = groups[-1][-1].file_offset if groups else 0
        if groups and any(s.file_offset <= first and section.file_span.end <= s.file_span.end for s in following):
            groups[-1].append(section)
        else:
            groups.append([section])
    return [_group_of(group, following) for group in groups]


def _group_of(group: Sequence[ElfSection], following: Sequence[ProgramHeader]) -> MovableGroup:
    start, end = group[0].file_offset, group[-1].file_span.end
    alignments = [section.alignment for section in group]
    alignments += [segment.alignment for segment in following if start <= segment.file_offset < end]
    deltas = {section.index: section.file_offset - start for section in group}
    names = {section.name for section in group}
    has_build_id = BUILD_ID_NAME in names
    return MovableGroup(
        deltas, start, end - start, max(alignments), has_build_id or PACKAGE_NAME in names, has_build_id
    )


class HeaderRoom:
    """The bytes after the program headers in their segment and in unused zeros after it, up to what does not move.

    Bytes there that no section, program header or dynamic entry has are free, whatever fills them: patchelf leaves
    zeros, X or Z where a section was. `may_move` are the indices of sections. The program header `repeated` is dropped.
    """

    def __init__(self, file: LinkedFile, may_move: Collection[int], repeated: ProgramHeader | None) -> None:
        self.file = file
        spare = {c.PT_NULL, c.PT_PHDR} if is_static_go(file) else {c.PT_NULL}
        self.kept = [s for s in file.segments if s.type not in spare and s != repeated]
        start = file.header.program_headers_offset
        self.load = next((s for s in file.loads if s.file_offset <= start and file.table_end <= s.file_span.end), None)
        #: The distance of addresses from file offsets, and the file offset up to which the segment may have bytes.
        self.bias = self.load.vaddr_of(0) if self.load else 0
        self.end = _end_of(file, self.load) if self.load else file.table_end
        self.groups, self.limit = self._movable(self.load, may_move) if self.load else ([], file.table_end)

    def _movable(self, load: ProgramHeader, may_move: Collection[int]) -> tuple[list[MovableGroup], int]:
        """Return the groups that move, in file order up to the first part that may or need not, and its file offset."""
        file = self.file
        if load.file_span.end <= file.table_end:
            # Nothing else is loaded there.
            return [], slack_end(file, load)
        if not any(file.sections[index].flags & c.SHF_ALLOC for index in file.indices_within(load.file_span)):
            # The section table does not tell what is loaded.
            return [], file.table_end
        whole = of_whole_segments(file, may_move)
        contents = sorted(self._contents(load))
        movable = [index for _, index in takewhile(lambda content: content[1] in whole, contents)]
        limit = min(start for start, _ in [*contents[len(movable) :][:1], (self.end, -1)])
        groups = _grouped(file, movable)
        names = max((group.size + group.alignment for group in groups if group.names_file), default=0)
        enough = file.table_end + _MOST_ADDED * PROGRAM_HEADER_SIZE + names
        count = bisect_left(groups, enough, key=attrgetter("file_offset"))
        return groups[:count], groups[count].file_offset if count < len(groups) else limit

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
            start = load.offset_of(vaddr)
            if start >= end and file.stored_at(start) is None:
                yield start, -1

    def rearranged(self, added: int) -> Rearranged | None:
        """Return the places of sections that make room for `added` more program headers; as few move as possible.

        The build-id and the package stay in the first page, if possible. None where there is no room.
        """
        table_end = self.file.header.program_headers_offset + PROGRAM_HEADER_SIZE * (len(self.kept) + added)
        fallback = None
        for count in range(len(self.groups) + 1):
            room_end = self.groups[count].file_offset if count < len(self.groups) else self.limit
            if room_end >= table_end:
                packed = self._packed(self.groups[:count], table_end, room_end)
                if not any(group.names_file for group in packed.leaving):
                    return packed
                fallback = fallback or packed
        return fallback

    def _packed(self, groups: list[MovableGroup], start: int, end: int) -> Rearranged:
        """Put as many groups as possible between two file offsets, those that name the file first.

        For these, there may also be room after the segment, in the first page.
        """
        staying, leaving = dict[int, int](), []
        load_end = self.load.file_span.end if self.load else end
        more = max(load_end + END_SIZE, end)
        for group in sorted(groups, key=lambda group: (not group.has_build_id, not group.names_file, group.size)):
            places, group_end = group.placed_from(start, self.bias)
            after, after_end = group.placed_from(more, self.bias)
            if group_end <= end:
                staying.update(places)
                start = group_end
            elif group.names_file and after_end <= min(self.end, FIRST_PAGE_SIZE):
                staying.update(after)
                more = load_end = after_end
            else:
                leaving.append(group)
        load_end = max(load_end, start)
        if self.load is None or load_end == self.load.file_span.end:
            return Rearranged(self.file, staying, leaving)
        size = load_end - self.load.file_offset
        grown = self.load._replace(file_size=size, memory_size=size)
        return Rearranged(self.file.with_load(self.load, grown), staying, leaving)
