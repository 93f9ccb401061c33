# SPDX-License-Identifier: Apache-2.0
"""Where the section goes in a linked file, and where its program headers get room.

The section goes over unused zeros after a read-only segment, or after everything that is loaded: there the last segment
grows, if it is read-only, or a new one follows. The program headers grow where they are: kernels before 5.18, and
strip, want them near the start of the file. The sections in the way move to the end of the section's segment, except
for what fits into the room that is left, the build-id first: core dumps have only the first page of each file.

Where that gives too little room, the PT_NOTE that repeats PT_GNU_PROPERTY goes; where there is room for one program
header only, and strip may still come, the section goes after the .bss of the last segment. Where nothing can move, a
stripped file gets its program headers at the start of the new segment.

Linux starts the heap (brk) after the highest segment. A program that may rely on this address gets no section there.
"""

from collections.abc import Callable
from itertools import product
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import FileData, is_zero
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE, ProgramHeader
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import LinkedFile, round_up, with_own_entry
from cfi2sframe.placing.header_room import HeaderRoom, MovableGroup, Rearranged, alignment_of, repeated_note, slack_end
from cfi2sframe.placing.kinds import may_be_interpreter, needs_fixed_heap
from cfi2sframe.placing.moving import FOLLOWING_TYPES, SectionPlace
from cfi2sframe.range_map import Span
from cfi2sframe.text import shown_name

SECTION_ALIGNMENT: Final = 8
#: Bytes of the largest page of the supported architectures (AArch64).
_LARGEST_PAGE_SIZE: Final = 1 << 16
#: Bytes of the usual page. OpenJDK's reader of core dumps expects the mapping of a segment to have as many pages as the
#: segment's size, so a new segment begins on a page.
_PAGE_SIZE: Final = 1 << 12
_ADDRESS_END: Final = 1 << 64
#: Of segments that start at one file offset, llvm-objcopy regards the first as the parent of the others. This must not
#: be PT_PHDR, hence the gap before a table at the end. Without PT_PHDR, GNU strip before 2.44 wants the table first.
_GAP_WITH_ENTRY: Final = 16
#: Bytes of zeros that stay after what a segment has: they may end call frame information without a terminator, as there
#: is without crtend.o, a table of pointers or a string.
_END_SIZE: Final = 8
#: The most zeros (bytes) that are written to the file in place of .bss.
_LARGEST_PADDING: Final = 1 << 24
#: The least zeros there that are worth a warning, and that another place is tried instead.
_LARGE_PADDING: Final = 1 << 20
#: The least bytes of moved sections that are worth a word.
_LARGE_MOVE: Final = 1 << 16
_RIGHTS: Final = c.PF_R | c.PF_W | c.PF_X


class AddedBlock(NamedTuple):
    """The added bytes `[file_offset, end)`: the section, then sections that move there.

    `load` is the PT_LOAD that grows, None for a new one. `is_inserted`: what follows in the file moves.
    """

    file_offset: int
    vaddr: int
    section_file_offset: int
    end: int
    placed: dict[int, int]
    load: ProgramHeader | None
    is_inserted: bool

    @property
    def bias(self) -> int:
        """The distance of addresses from file offsets."""
        return self.vaddr - self.file_offset

    @property
    def end_vaddr(self) -> int:
        """The first address after the block."""
        return self.end + self.bias

    @property
    def section_vaddr(self) -> int:
        """The section's address."""
        return self.section_file_offset + self.bias


class Placement(NamedTuple):
    """Where the section will be: in `block` of `file`, which has no SFrame section.

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
        """The names of other sections with a new address."""
        return [self.file.sections[index].name for index in sorted(self.places)]

    @property
    def padding_size(self) -> int:
        """How many zeros (bytes) the file gets in place of .bss."""
        load, has_moved_table = self.block.load, self.table_file_offset is not None
        is_after_bss = has_moved_table if load is None else bool(load.flags & c.PF_W)
        return self.block.file_offset - self.file.loaded_end if is_after_bss else 0

    @property
    def description(self) -> str:
        """How the section is inserted, for messages."""
        block = self.block
        if not block.is_inserted:
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


def place_section(file: LinkedFile, section_size: int) -> Placement:
    """Return the placement of a section, the least intrusive that is possible. Raises `EmbedError` when none is."""
    repeated, room = repeated_note(file), HeaderRoom(file)
    rooms = [room, HeaderRoom(file, repeated, room)] if repeated else [room]
    keeps_end = needs_fixed_heap(file)
    for way, tried in product([way for way in _WAYS if way.allowed(file)], rooms):
        rearranged = tried.rearranged(way.added_headers)
        block = rearranged and way.make_block(rearranged.file, section_size, rearranged.leaving)
        if rearranged and block and not (keeps_end and block.end_vaddr > file.loads[-1].end_vaddr):
            return _placement(tried, rearranged, block, section_size)
    if keeps_end:
        raise EmbedError(
            "a program that calls personality and sbrk or brk may need its heap right after its data, as GCL's images "
            "do, and the section fits nowhere else"
        )
    if may_be_interpreter(file):
        raise EmbedError(
            "kernels may load it as an interpreter (ld.so), before 6.7 with no segment after .bss, and the section "
            "fits nowhere else"
        )
    if _has_symbols(file):
        raise EmbedError(
            "the program headers cannot grow: what follows them cannot move (strip the file first: those of a stripped "
            "file may move to its end)"
        )
    return _with_moved_table(file, room, section_size)


def _in_slack(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block over unused zeros after the last read-only segment that has enough; None where none has.

    A segment with code is the last choice, and only if the linker put the unwind tables there (as it does without
    `-z separate-code`), where it would put its own `.sframe`.
    """
    tables = [section.vaddr for section in file.sections if section.name == ".eh_frame"]
    plain = [load for load in file.loads if load.flags & _RIGHTS == c.PF_R]
    code = [load for load in file.loads if load.flags & _RIGHTS == c.PF_R | c.PF_X]
    code = [load for load in code if any(load.vaddr <= vaddr < load.end_vaddr for vaddr in tables)]
    for load in (*reversed(plain), *code):
        start = load.file_span.end + _END_SIZE
        block = _filled(start, start + load.vaddr - load.file_offset, section_size, groups, load)
        if block.end <= slack_end(file, load):
            return block
    return None


def _in_hole(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block over zeros with which a read-only segment starts, where a section was before it was removed."""
    for load in file.loads if file.sections else ():
        start, inside = load.file_offset, file.indices_within(load.file_span)
        end = min([load.file_span.end, *(file.sections[index].file_offset for index in inside)])
        block = _filled(start, load.vaddr, section_size, groups, load)
        is_free = start > file.table_end and block.end <= end and is_zero(file.data, Span(start, block.end))
        if load.flags & _RIGHTS == c.PF_R and is_free:
            return block
    return None


def _into_last(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block that continues the last segment; None unless that is read-only and ends what is loaded."""
    last, end = file.loads[-1], file.loaded_end
    if last.flags & _RIGHTS != c.PF_R or last.file_size != last.memory_size or last.file_span.end != end:
        return None
    return _inserted(_filled(end + _END_SIZE, last.end_vaddr + _END_SIZE, section_size, groups, last))


def _after_last(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock:
    """Return a block in a new segment on the next page of the file. Its address is chosen to be congruent to that."""
    start, page = round_up(file.loaded_end, _PAGE_SIZE), max(_LARGEST_PAGE_SIZE, alignment_of(file))
    vaddr = round_up(max(load.end_vaddr for load in file.loads), page) + start % page
    return _inserted(_filled(start, vaddr, section_size, groups, None))


def _after_bss(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block in the last segment, on the page after its .bss, which becomes zeros of the file.

    Kernels before 6.7 map the .bss of an interpreter only after its last segment, which therefore has to stay the last.
    The rest of the page of .bss stays free: there, the first `malloc` of glibc's interpreter takes it.
    """
    last = file.loads[-1]
    vaddr = round_up(last.end_vaddr, alignment_of(file))
    start = vaddr - last.vaddr + last.file_offset
    if last.file_span.end != file.loaded_end or last.flags & c.PF_X or start - file.loaded_end > _most_padding(file):
        return None
    return _inserted(_filled(start, vaddr, section_size, groups, last))


def _most_padding(file: LinkedFile) -> int:
    return max(_LARGEST_PADDING, len(file.data) // 4)


def _has_symbols(file: LinkedFile) -> bool:
    """Whether strip may still come, which would damage a file whose program headers are at its end."""
    return any(section.type == c.SHT_SYMTAB for section in file.sections)


class _Way(NamedTuple):
    """Where the section may go in the files `allowed`, and how many program headers it needs there."""

    make_block: Callable[[LinkedFile, int, list[MovableGroup]], AddedBlock | None]
    added_headers: int
    allowed: Callable[[LinkedFile], bool] = lambda _file: True


#: The best one first.
_WAYS: Final = (
    _Way(_in_hole, 1),
    _Way(_in_slack, 1),
    _Way(_into_last, 1),
    _Way(_after_last, 2, lambda file: not may_be_interpreter(file)),
    _Way(_after_bss, 1, lambda file: may_be_interpreter(file) or _has_symbols(file)),
)


def _inserted(block: AddedBlock) -> AddedBlock:
    if block.end_vaddr > _ADDRESS_END:
        raise EmbedError("no addresses are left after the last segment")
    return block._replace(is_inserted=True)


def _filled(
    start: int, vaddr: int, section_size: int, groups: list[MovableGroup], load: ProgramHeader | None
) -> AddedBlock:
    """Return a block with its layout: the section, then the groups.

    Of segments that start at one file offset, llvm-objcopy regards the first in the table as the parent of the others.
    That has to be the PT_LOAD. PT_INTERP precedes it in the table, so `.interp` must not be first in the block.
    """
    bias, placed = vaddr - start, dict[int, int]()
    section = round_up(vaddr, SECTION_ALIGNMENT) - bias
    position = section + section_size
    for group in sorted(groups, key=lambda group: group.file_offset):
        group_places, position = group.placed_from(position, bias)
        placed.update(group_places)
    return AddedBlock(start, vaddr, section, position, placed, load, is_inserted=False)


def _placement(room: HeaderRoom, rearranged: Rearranged, block: AddedBlock, size: int) -> Placement:
    file = room.file
    places = {i: SectionPlace(at + room.bias, at) for i, at in rearranged.staying.items()}
    places.update((i, SectionPlace(at + block.bias, at)) for i, at in block.placed.items())
    moved = {i: place for i, place in places.items() if place.file_offset != file.sections[i].file_offset}
    kept = filter(room.keeps, rearranged.file.segments)
    segments = _with_section([_followed(file, s, moved) for s in kept], rearranged.file, block, size)
    has_left = any(group.has_build_id for group in rearranged.leaving)
    warning = "the build-id note moves out of the first page: core dumps no longer name the build-id"
    moved_size = sum(group.size for group in rearranged.leaving)
    warnings = (warning,) if has_left else ()
    return _padded(Placement(file, block, size, segments, moved, moved_size, warnings, file.data))


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


def _with_moved_table(file: LinkedFile, room: HeaderRoom, size: int) -> Placement:
    """Return the placement after all that is loaded, with the program headers. The old ones stay, unused.

    They are as far from the first segment in the file as in memory: kernels before 5.18 compute AT_PHDR so. They are in
    a new segment after the last one, or, where that would be far away, in the first segment, if that can grow so far
    before the second one's page: GNU strip damages code after a table in its segment.

    Raises `EmbedError` where both would take too many zeros, or addresses.
    """
    bias = file.loads[0].vaddr - file.loads[0].file_offset
    # After GNU strip 2.40, a start on a page of 4 KiB has been seen to crash.
    page = max(_LARGEST_PAGE_SIZE, alignment_of(file))
    start = round_up(max(*(load.end_vaddr - bias for load in file.loads), file.loaded_end), page)
    if start - file.loaded_end > _LARGE_PADDING:
        block = _table_block(room, file.loads[0], round_up(file.loaded_end, _GAP_WITH_ENTRY), size)
        if _may_grow(file, block):
            return _moved_table(file, room, block, size)
    if start - file.loaded_end > _most_padding(file):
        raise EmbedError(
            "the program headers cannot grow; at the end of what is loaded, as far away in the file as in memory, they "
            f"would need {start - file.loaded_end:,} zeros, more than {_most_padding(file):,} (link with "
            "-z separate-code: that leaves room)"
        )
    return _moved_table(file, room, _table_block(room, None, start, size), size)


def _table_block(room: HeaderRoom, load: ProgramHeader | None, start: int, size: int) -> AddedBlock:
    """Return a block of program headers and the section, from a file offset on."""
    bias = room.file.loads[0].vaddr - room.file.loads[0].file_offset
    table = start + (_GAP_WITH_ENTRY if any(s.type == c.PT_PHDR for s in room.kept) else 0)
    section = table + PROGRAM_HEADER_SIZE * (len(room.kept) + (1 if load else 2))
    return _inserted(AddedBlock(start, start + bias, section, section + size, {}, load, is_inserted=True))


def _may_grow(file: LinkedFile, block: AddedBlock) -> bool:
    """Whether the first segment can grow up to the end of a block; what follows it in the file is then in it, too."""
    first, page = file.loads[0], alignment_of(file)
    is_read_only = not first.flags & c.PF_W and first.file_size == first.memory_size
    return is_read_only and len(file.loads) > 1 and block.end_vaddr <= file.loads[1].vaddr // page * page


def _moved_table(file: LinkedFile, room: HeaderRoom, block: AddedBlock, size: int) -> Placement:
    table = block.section_file_offset - PROGRAM_HEADER_SIZE * (len(room.kept) + (1 if block.load else 2))
    place = {"file_offset": table, "vaddr": table + block.bias, "paddr": table + block.bias}
    segments = [s._replace(**place) if s.type == c.PT_PHDR else s for s in _with_section(room.kept, file, block, size)]
    is_program = room.is_static or any(s.type == c.PT_INTERP for s in room.kept)
    warning = "the program headers moved to the end of what is loaded; do not strip the file again: eu-strip damages it"
    if block.load:
        warning += ", and GNU strip its code"
    elif is_program:
        warning += ", GNU strip before 2.44 its .sframe; after any GNU strip, kernels before 5.18 do not start it"
    return _padded(Placement(file, block, size, tuple(segments), {}, 0, (warning,), file.data, table_file_offset=table))
