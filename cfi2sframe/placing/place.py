# SPDX-License-Identifier: Apache-2.0
"""The place of the section in a linked file, and the room for its program headers.

The section goes over unused zeros after a read-only segment, or after everything that is loaded: there the last segment
grows, if it is read-only, or a new one follows. The program headers grow where they are: kernels before 5.18, and
strip, want them near the start of the file.

Room for them comes, in this order, from unused entries and zeros, and the PT_NOTE that repeats PT_GNU_PROPERTY; from
sections of loaders, which follow headers to them; from notes of tools and, last, of the package, if a search finds
nothing that may read them (`Owner`). These sections move to the end of the section's segment. The build-id and the
package's note stay in the first page, which is all that core dumps have of a file, if there is room.

Where there is room for one program header only, and the file may still be stripped, the section goes after the .bss of
the last segment. Where nothing can move, a stripped file gets its program headers at the start of the new segment.

Linux starts the heap (brk) after the highest segment. A program that may rely on this address gets no section there.
"""

from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import chain
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, is_zero
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, ProgramHeader
from cfi2sframe.elf.referrers import referrers, relocated
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.blocks import (
    LARGEST_PAGE_SIZE,
    LAST_WAYS,
    PAGE_SIZE,
    SECTION_ALIGNMENT,
    WAYS,
    AddedBlock,
    Way,
    has_symbols,
    in_place_of,
    inserted,
    most_padding,
)
from cfi2sframe.placing.checks import LinkedFile, round_up, with_own_entry
from cfi2sframe.placing.header_room import FIRST_PAGE_SIZE, HeaderRoom, Rearranged, alignment_of, repeated_note
from cfi2sframe.placing.kinds import finds_itself, may_be_interpreter, may_be_saved_image
from cfi2sframe.placing.moving import FOLLOWING_TYPES, Owner, SectionPlace, movable_sections
from cfi2sframe.range_map import Span, without
from cfi2sframe.text import shown_name

#: For llvm-objcopy, the first of several segments at one file offset is the parent of the others. This must not be
#: PT_PHDR, hence the gap before a table at the end. Without PT_PHDR, GNU strip before 2.44 wants the table first.
_GAP_WITH_ENTRY: Final = 16
#: More zeros (bytes) than this in place of .bss cause a warning, and another place to be tried first.
_LARGE_PADDING: Final = 1 << 20
#: Moved sections of at least this many bytes are mentioned.
_LARGE_MOVE: Final = 1 << 16
#: Linux up to 6.12 starts no program with more program headers than fit into a page of 4 KiB.
_MOST_SEGMENTS: Final = PAGE_SIZE // PROGRAM_HEADER_SIZE


class Placement(NamedTuple):
    """The place of the section: in `block` of `file`, which has no SFrame section.

    `segments` are the new program headers, at `table_file_offset` where they do not stay; `places` are the new places
    of other sections, by their indices. `moved_size` counts the bytes of those that leave the head of the file.
    `original` is the file that removal restores: `file`, or with the section of another producer that had bytes in the
    spans `cleared`.
    """

    file: LinkedFile
    block: AddedBlock
    section_size: int
    segments: tuple[ProgramHeader, ...]
    places: dict[int, SectionPlace]
    moved_size: int
    warnings: tuple[str, ...]
    original: FileData
    cleared: tuple[Span, ...] = ()
    table_file_offset: int | None = None

    @property
    def section_vaddr(self) -> int:
        """The section's link-time address."""
        return self.block.section_vaddr

    @property
    def moved(self) -> list[str]:
        """The names of the other sections that move."""
        return [self.file.sections[index].name for index in sorted(self.places)]

    @property
    def padding_size(self) -> int:
        """The zeros (bytes) that the file gets in place of .bss."""
        load, has_moved_table = self.block.load, self.table_file_offset is not None
        is_after_bss = has_moved_table if load is None else bool(load.flags & c.PF_W)
        return self.block.file_offset - self.file.loaded_end if is_after_bss else 0

    @property
    def description(self) -> str:
        """The way in which the section is inserted, for messages."""
        block = self.block
        if block.file_offset in (span.start for span in self.cleared):
            text = "in the place of the old one"
        elif not block.is_inserted:
            text = "into unused bytes after a read-only segment"
        elif block.load is None:
            text = "into a new read-only segment after all others"
        elif self.table_file_offset is not None:
            text = "into the first segment, which covers what follows it in the file"
        elif block.load.flags & c.PF_W:
            text = "into the last segment, on the page after .bss"
        else:
            text = "into the last segment"
        if self.table_file_offset is not None:
            text += "; the program headers moved there too"
        before, after = (sum(s.type == c.PT_NOTE for s in some) for some in (self.file.segments, self.segments))
        if after < before:
            text += "; the PT_NOTE that repeats PT_GNU_PROPERTY is gone"
        if self.moved:
            text += f"; {', '.join(map(shown_name, self.moved))} moved to make room for program headers"
        if self.moved_size >= _LARGE_MOVE:
            text += f", which leaves {self.moved_size:,} bytes unused"
        return text


def place_section(file: LinkedFile, section_size: int, old: Span | None = None) -> Placement:
    """Return the least intrusive placement of a section; `old` is the place in the file that one had.

    Raises `EmbedError` when there is no placement.
    """
    keeps_end = may_be_saved_image(file)
    for placement in _placements(file, section_size, old):
        if not keeps_end or placement.block.end_vaddr <= file.loads[-1].end_vaddr:
            return placement
    if _MOST_SEGMENTS - 2 < len(file.segments) <= _MOST_SEGMENTS:
        raise EmbedError(
            f"it has {len(file.segments)} program headers, and Linux up to 6.12 loads no more than {_MOST_SEGMENTS}, a "
            "page of them"
        )
    if keeps_end:
        raise EmbedError(
            "it may be an image saved with its heap, as GCL's are, which continues right after its data; the section "
            "fits nowhere else"
        )
    way = _in_the_way(file)
    if may_be_interpreter(file):
        raise EmbedError(
            "kernels may load it as an interpreter (ld.so), before 6.7 with no segment after .bss, and the program "
            f"headers cannot grow: {way} cannot move (linked with -z separate-code or a build-id, there is room)"
        )
    if finds_itself(file):
        raise EmbedError(
            f"the program headers cannot grow: {way} cannot move, nor can they, since a static program may look for "
            "its ELF header right before them"
        )
    if has_symbols(file):
        raise EmbedError(
            f"the program headers cannot grow: {way} cannot move (strip the file first: those of a stripped file may "
            "move to its end)"
        )
    return _with_moved_table(HeaderRoom(file, (), None), section_size)


def _in_the_way(file: LinkedFile) -> str:
    """Return the name, for messages, of what follows the program headers and cannot move."""
    room = HeaderRoom(file, movable_sections(file, file.table_end, file.loaded_end), repeated_note(file))
    if room.limit >= file.table_end + PROGRAM_HEADER_SIZE:
        return "a note there, which something may read,"
    section = file.stored_at(room.limit)
    return "what follows them" if section is None else f"{shown_name(section.name)}, which follows them,"


def _placements(file: LinkedFile, section_size: int, old: Span | None) -> Iterator[Placement]:
    """Yield the placements with program headers where they are, the best first."""

    @cache
    def owners() -> dict[int, Owner]:
        return movable_sections(file, file.table_end, file.loaded_end)

    @cache
    def is_read(of_loaders: tuple[Span, ...], of_tools: tuple[Span, ...], others: tuple[Span, ...]) -> bool:
        readers = chain(relocated(file, of_loaders), referrers(file, of_tools, rare=False), referrers(file, others))
        return next(readers, None) is not None

    def rooms() -> Iterator[HeaderRoom]:
        repeated = repeated_note(file)
        yield from (HeaderRoom(file, (), unneeded) for unneeded in dict.fromkeys((None, repeated)))
        for most in sorted(set(owners().values())):
            yield HeaderRoom(file, [index for index, owner in owners().items() if owner <= most], repeated)

    for ways in ((Way(partial(in_place_of, old), 1), *WAYS) if old else WAYS, LAST_WAYS):
        for room in rooms():
            for way in ways:
                rearranged = room.rearranged(way.added_headers) if way.allowed(file) else None
                block = rearranged and way.make_block(rearranged.file, section_size, rearranged.leaving)
                if rearranged and block:
                    placement = _placement(room, rearranged, block, section_size)
                    is_loaded = len(placement.segments) <= _MOST_SEGMENTS or len(file.segments) > _MOST_SEGMENTS
                    if is_loaded and not is_read(*_given_up(placement, owners)):
                        yield placement


def _given_up(placement: Placement, owners: Callable[[], dict[int, Owner]]) -> Iterator[tuple[Span, ...]]:
    """Yield the addresses of loaders' sections that move, of tools' sections, and others that move or are overwritten.

    Unused zeros have no readers.
    """
    file, block = placement.file, placement.block
    moved = {index: file.sections[index].file_span for index in placement.places}
    of_loaders, of_tools = (
        [span for index, span in moved.items() if owners()[index] is owner] for owner in (Owner.LOADER, Owner.TOOLS)
    )
    table = Span(file.table_end, file.header.program_headers_offset + PROGRAM_HEADER_SIZE * len(placement.segments))
    new = [Span(at, at + file.sections[index].size) for index, (_, at) in placement.places.items()]
    new += [] if block.is_inserted else [Span(block.file_offset, block.end)]
    others = without([table, *new, *moved.values()], [*of_loaders, *of_tools])
    unused = [span for span in without(others, [s.file_span for s in file.stored]) if is_zero(file.data, span)]
    for spans in (of_loaders, of_tools, without(others, unused)):
        yield tuple(file.segment_map.vaddrs_of(spans))


def _placement(room: HeaderRoom, rearranged: Rearranged, block: AddedBlock, size: int) -> Placement:
    file = room.file
    places = {i: SectionPlace(at + room.bias, at) for i, at in rearranged.staying.items()}
    places.update((i, SectionPlace(at + block.bias, at)) for i, at in block.placed.items())
    moved = {i: place for i, place in places.items() if place.file_offset != file.sections[i].file_offset}
    segments = [_followed(file, s, moved) for s in rearranged.file.segments if s in room.kept or s.type == c.PT_LOAD]
    moved_size = sum(group.size for group in rearranged.leaving)
    warnings = tuple(
        f"the {'build-id' if group.has_build_id else 'package'} note moves out of the first page: core dumps no longer "
        "have it"
        for group in rearranged.leaving
        if group.names_file and group.file_offset < FIRST_PAGE_SIZE < block.end
    )
    planned = _with_section(segments, rearranged.file, block, size)
    return _padded(Placement(file, block, size, planned, moved, moved_size, warnings, file.data))


def _padded(placement: Placement) -> Placement:
    """Return the placement with a warning where the file grows by many zeros."""
    size = placement.padding_size
    more = (f"{size:,} zeros are in the file in place of .bss",) if size > _LARGE_PADDING else ()
    return placement._replace(warnings=placement.warnings + more)


def _followed(file: LinkedFile, segment: ProgramHeader, moved: dict[int, SectionPlace]) -> ProgramHeader:
    """Return a PT_INTERP, PT_NOTE or PT_GNU_PROPERTY at the new place of its sections; any other as it is."""
    covered = file.indices_within(segment.file_span) if segment.type in FOLLOWING_TYPES else []
    if not covered or covered[0] not in moved:
        return segment
    first = min(covered, key=lambda index: file.sections[index].file_offset)
    delta = segment.file_offset - file.sections[first].file_offset
    vaddr, paddr = moved[first].vaddr + delta, segment.paddr
    return segment._replace(file_offset=moved[first].file_offset + delta, vaddr=vaddr, paddr=vaddr if paddr else 0)


def _with_section(
    segments: list[ProgramHeader], file: LinkedFile, block: AddedBlock, size: int
) -> tuple[ProgramHeader, ...]:
    """Return the program headers with a PT_LOAD that holds the block, and PT_GNU_SFRAME."""
    load = block.load
    if load is not None:
        grown = max(block.end - load.file_offset, load.file_size)
        segments = [s._replace(file_size=grown, memory_size=grown) if s is load else s for s in segments]
    else:
        last = max(index for index, segment in enumerate(segments) if segment.type == c.PT_LOAD)
        grown = block.end - block.file_offset
        place = (block.file_offset, block.vaddr, block.vaddr)
        new = ProgramHeader(c.PT_LOAD, c.PF_R, *place, grown, grown, alignment_of(file))
        segments = [*segments[: last + 1], new, *segments[last + 1 :]]
    start, vaddr = block.section_file_offset, block.section_vaddr
    entry = ProgramHeader(c.PT_GNU_SFRAME, c.PF_R, start, vaddr, vaddr, size, size, SECTION_ALIGNMENT)
    return with_own_entry([*segments, entry])


def _with_moved_table(room: HeaderRoom, size: int) -> Placement:
    """Return the placement after all that is loaded, with the program headers. The old ones stay, unused.

    They are as far from the first segment in the file as in memory: kernels before 5.18 compute AT_PHDR so. They are in
    a new segment after the last one, or, where that would be far away, in the first segment, if that can grow so far
    before the second one's page: GNU strip damages code after a table in its segment.

    Raises `EmbedError` where both would take too many zeros, or addresses.
    """
    file, first = room.file, room.file.loads[0]
    # With a start on a page of 4 KiB, programs have crashed after GNU strip 2.40.
    page = max(LARGEST_PAGE_SIZE, alignment_of(file))
    start = round_up(max(*(first.offset_of(load.end_vaddr) for load in file.loads), file.loaded_end), page)
    padding = start - file.loaded_end
    if padding > _LARGE_PADDING:
        near = _moved_table(room, first, round_up(file.loaded_end, _GAP_WITH_ENTRY), size)
        if _may_grow(file, near.block):
            return near
    if padding > most_padding(file):
        raise EmbedError(
            "the program headers cannot grow; at the end of what is loaded, as far away in the file as in memory, they "
            f"would need {padding:,} zeros, more than {most_padding(file):,} (link with -z separate-code: that leaves "
            "room)"
        )
    return _moved_table(room, None, start, size)


def _may_grow(file: LinkedFile, block: AddedBlock) -> bool:
    """Return whether the first segment can grow up to the end of a block; it then holds what follows it in the file."""
    first, page = file.loads[0], alignment_of(file)
    is_read_only = not first.flags & c.PF_W and first.file_size == first.memory_size
    return is_read_only and len(file.loads) > 1 and block.end_vaddr <= file.loads[1].vaddr // page * page


def _moved_table(room: HeaderRoom, load: ProgramHeader | None, start: int, size: int) -> Placement:
    """Return the placement of the program headers, and then the section, from a file offset on."""
    file, first = room.file, room.file.loads[0]
    table = start + (_GAP_WITH_ENTRY if any(s.type == c.PT_PHDR for s in room.kept) else 0)
    section = table + PROGRAM_HEADER_SIZE * (len(room.kept) + (1 if load else 2))
    block = inserted(AddedBlock(start, first.vaddr_of(start), section, section + size, {}, load, is_inserted=True))
    place = {"file_offset": table, "vaddr": first.vaddr_of(table), "paddr": first.vaddr_of(table)}
    segments = [s._replace(**place) if s.type == c.PT_PHDR else s for s in _with_section(room.kept, file, block, size)]
    is_program = file.header.type == c.ET_EXEC or any(s.type == c.PT_INTERP for s in room.kept)
    warning = "the program headers moved to the end of what is loaded; do not strip the file again: eu-strip damages it"
    if load:
        warning += ", and GNU strip its code"
    elif is_program:
        warning += ", GNU strip before 2.44 its .sframe; after any GNU strip, kernels before 5.18 do not start it"
    return _padded(Placement(file, block, size, tuple(segments), {}, 0, (warning,), file.data, table_file_offset=table))
