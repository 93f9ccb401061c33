# SPDX-License-Identifier: Apache-2.0
"""Room before the first segment of a static program at fixed addresses: a page of program headers in front of it.

The first PT_LOAD starts a page earlier, in the file and in memory, and the new page has the file header, the program
headers and the build-id. Everything else is a page further in the file, at the address that it had; the old headers
stay at their addresses, too, out of use. So all versions of Linux find the table in the first segment, and all tools
that rewrite files keep it there, after the file header.

This is for static programs whose sections leave no other room: what code refers to follows the program headers, or
follows the build-id, which is smaller than a program header. GNU ld 2.47 links all of them so with -static.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import ET_EXEC, PT_DYNAMIC, PT_INTERP, PT_LOAD, PT_PHDR
from cfi2sframe.elf.contents import first_difference
from cfi2sframe.elf.headers import (
    FILE_HEADER_SIZE,
    PROGRAM_HEADER_SIZE,
    ProgramHeader,
    SectionHeader,
    parse_file_header,
    parse_program_headers,
)
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.rewrite.edits import Splice, apply, ordered, overwrite
from cfi2sframe.rewrite.following_segments import FollowingSegments
from cfi2sframe.rewrite.gate import open_linked, round_up
from cfi2sframe.rewrite.header_room import FIRST_PAGE_SIZE, groups_of
from cfi2sframe.rewrite.movable import BUILD_ID_NAME, NewPlace, movable_sections
from cfi2sframe.rewrite.section_indices import changed_contents

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData, Joined
    from cfi2sframe.rewrite.gate import LinkedFile
    from cfi2sframe.rewrite.header_room import MovableGroup

#: Linux maps nothing of an unprivileged program below this address (vm.mmap_min_addr is at most that by default).
_LOWEST_VADDR: Final = 1 << 16
#: Bytes of the largest page in front, however small the file, and the share of the file that it may be.
_LARGEST_SIZE: Final = 1 << 16
_LARGEST_SHARE: Final = 4
#: The largest page (as a power of two) that a file may have in front.
_LARGEST_PAGE_BITS: Final = 21
_MAX_FILE_OFFSET: Final = 1 << 63
_ADDRESS_END: Final = 1 << 64
_SECTION_FIELDS: Final = ("section_headers_offset", "section_header_count", "section_names_index")
#: For how many more program headers there is room.
_MORE_HEADERS: Final = 2


class FrontPage(NamedTuple):
    """What makes room in front of the first segment: `size` bytes there, the sections that move, and the edits."""

    size: int
    moved: dict[int, NewPlace]
    warnings: tuple[str, ...]
    splices: tuple[Splice, ...]


def front_page(file: LinkedFile) -> FrontPage | None:
    """Return the page to put in front of a program; None for files of other kinds, or where no address is left."""
    load, size = file.loads[0], _page_size(file)
    if not _is_static(file) or not file.sections or load.file_offset or load.vaddr < size + _LOWEST_VADDR:
        return None
    if any(segment.file_offset >= _MAX_FILE_OFFSET for segment in file.segments):
        return None
    if size > max(_LARGEST_SIZE, len(file.data) // _LARGEST_SHARE) or size >> _LARGEST_PAGE_BITS > 1:
        return None
    table_size = PROGRAM_HEADER_SIZE * len(file.segments)
    moved, warnings = _moved_build_id(file, size)
    if FILE_HEADER_SIZE + table_size + PROGRAM_HEADER_SIZE * _MORE_HEADERS > FIRST_PAGE_SIZE:
        return None
    segments = _segments_after(file, size, moved)
    header = file.header._replace(
        program_headers_offset=FILE_HEADER_SIZE, section_headers_offset=file.header.section_headers_offset + size
    )
    page = bytearray(size)
    page[: FILE_HEADER_SIZE + table_size] = header.pack() + b"".join(segment.pack(file.order) for segment in segments)
    for index, place in moved.items():
        content = file.section_bytes(index)
        page[place.file_offset : place.file_offset + len(content)] = content
    table = b"".join(
        (_section_after(section, size, moved.get(index)) if index else section).pack(file.order)
        for index, section in enumerate(file.sections)
    )
    vaddrs = {index: place.vaddr for index, place in moved.items()}
    contents = changed_contents(file, list(range(len(file.sections))), vaddrs)
    splices = [Splice(0, 0, bytes(page)), overwrite(file.section_table.start, table)]
    splices += [overwrite(file.sections[index].file_offset, content) for index, content in contents.items()]
    return FrontPage(size, moved, warnings, ordered(splices))


def _page_size(file: LinkedFile) -> int:
    return max(FIRST_PAGE_SIZE, *(load.alignment for load in file.loads))


def _is_static(file: LinkedFile) -> bool:
    """Whether only the kernel, by AT_PHDR, tells a program where its program headers are."""
    kinds = {segment.type for segment in file.segments}
    is_plain = file.header.program_headers_offset == FILE_HEADER_SIZE
    return file.header.type == ET_EXEC and is_plain and not kinds & {PT_INTERP, PT_DYNAMIC, PT_PHDR}


def _moved_build_id(file: LinkedFile, size: int) -> tuple[dict[int, NewPlace], tuple[str, ...]]:
    """Return the places of the build-id and of the notes of its segment in the new page, and the warnings."""
    load = file.loads[0]
    movable = movable_sections(file, file.table_end, load.file_span.end)
    in_order = tuple(sorted(movable, key=lambda index: file.sections[index].file_offset))
    group = next((group for group in groups_of(file, in_order, split_notes=False) if group.has_build_id), None)
    if group is not None and _has_plain_segments(file, group):
        table_end = FILE_HEADER_SIZE + PROGRAM_HEADER_SIZE * (len(file.segments) + _MORE_HEADERS)
        start = round_up(table_end, group.alignment)
        if start + group.size <= FIRST_PAGE_SIZE:
            vaddr = load.vaddr - size
            places = [start + delta for delta in group.deltas]
            return {i: NewPlace(vaddr + at, at) for i, at in zip(group.indices, places, strict=True)}, ()
    in_first_page = any(
        name == BUILD_ID_NAME and section.is_stored and section.file_span.end <= FIRST_PAGE_SIZE
        for name, section in zip(file.names, file.sections, strict=True)
    )
    warning = "the build-id note leaves the first page of the file: core dumps no longer name the build-id"
    return {}, (warning,) if in_first_page else ()


def _has_plain_segments(file: LinkedFile, group: MovableGroup) -> bool:
    """Whether each segment that leads to notes of a group starts where the group does, in the file and in memory."""
    vaddr = file.sections[group.indices[0]].vaddr
    segments = FollowingSegments(file).segments
    return all(
        (segment.file_offset, segment.vaddr) == (group.file_offset, vaddr) and segment.paddr in (0, vaddr)
        for index in group.indices
        for segment in segments.get(index, ())
    )


def _segments_after(file: LinkedFile, size: int, moved: dict[int, NewPlace]) -> list[ProgramHeader]:
    """Return the program headers of the file with the new page."""
    covered = FollowingSegments(file).sections
    result = []
    for segment in file.segments:
        sections = covered.get(segment, [])
        if segment.type == PT_LOAD and segment is file.loads[0]:
            entry = _grown(segment, size)
        elif sections and sections[0] in moved:
            vaddr, file_offset = moved[sections[0]]
            entry = segment._replace(file_offset=file_offset, vaddr=vaddr, paddr=vaddr if segment.paddr else 0)
        elif segment.file_size or segment.memory_size or segment.file_offset:
            entry = segment._replace(file_offset=segment.file_offset + size)
        else:
            entry = segment
        result.append(entry)
    return result


def _grown(load: ProgramHeader, size: int) -> ProgramHeader:
    return load._replace(
        vaddr=load.vaddr - size,
        paddr=load.paddr - size if load.paddr else 0,
        file_size=load.file_size + size,
        memory_size=load.memory_size + size,
    )


def _section_after(section: SectionHeader, size: int, place: NewPlace | None) -> SectionHeader:
    if place is not None:
        return section._replace(vaddr=place.vaddr, file_offset=place.file_offset)
    return section._replace(file_offset=section.file_offset + size)


def with_front_page(file: LinkedFile, page: FrontPage) -> Joined:
    """Return the file with a page in front."""
    return apply(file.data, page.splices)


def without_front_page(data: Joined) -> Joined:
    """Return a file without the page that `front_page` puts in front; files that have none are returned as they are.

    The old headers tell what was there. GNU strip and objcopy leave zeros in their place; then the page stays.
    """
    if not may_have_front_page(data):
        return data
    file = open_linked(data)
    size = _page_size(file)
    old_data = bytes(data[size : size + FIRST_PAGE_SIZE])
    if not _is_static(file) or not file.sections or not old_data.startswith(file.header.ident):
        return data
    try:
        old_header = parse_file_header(old_data)
        bare = apply(data, _splices_without(file, size, parse_program_headers(old_data, old_header)))
        page = front_page(open_linked(bare))
    except (ElfError, EmbedError):
        return data
    if page is None or page.size != size:
        return data
    again = apply(bare, page.splices)
    # The section headers may have moved since (Go's do), which the old file header does not tell.
    sections = {name: getattr(old_header, name) for name in _SECTION_FIELDS}
    is_inverse = len(again) == len(data) and parse_file_header(bare)._replace(**sections) == old_header
    places = (Span(0, size), Span(size + FILE_HEADER_SIZE, len(data)))
    is_inverse = is_inverse and all(first_difference(data, again, place) is None for place in places)
    return bare if is_inverse else data


def may_have_front_page(data: FileData) -> bool:
    """Whether there is another file header on a page of the first segment."""
    header = parse_file_header(data)
    first = next((s for s in parse_program_headers(data, header) if s.type == PT_LOAD), None)
    if header.type != ET_EXEC or first is None or first.file_offset:
        return False
    return any(
        data[at : at + len(header.ident)] == header.ident
        for at in (1 << bits for bits in range(FIRST_PAGE_SIZE.bit_length() - 1, _LARGEST_PAGE_BITS + 1))
        if at < first.file_size
    )


def _splices_without(file: LinkedFile, size: int, old: tuple[ProgramHeader, ...]) -> tuple[Splice, ...]:
    """Return the splices that take `size` bytes away from the front; `old` are the program headers of then.

    Raises `EmbedError` when something of the file would then be in front of it.
    """
    covered = FollowingSegments(file).sections
    moved: dict[int, NewPlace] = {}
    for before, after in zip(old, file.segments, strict=False):
        for index in covered.get(after, []):
            section = file.sections[index]
            if section.file_offset < size:
                vaddr = section.vaddr - after.vaddr + before.vaddr
                moved[index] = NewPlace(vaddr, section.file_offset - after.file_offset + before.file_offset)
    sections = [
        section._replace(file_offset=section.file_offset - size) if index else section
        for index, section in enumerate(file.sections)
    ]
    for index, place in moved.items():
        sections[index] = file.sections[index]._replace(vaddr=place.vaddr, file_offset=place.file_offset)
    starts = [section.file_offset for section in sections] + [section.vaddr for section in sections]
    if min(starts) < 0 or max(starts) >= _ADDRESS_END or file.section_table.start < size:
        raise EmbedError("the page in front of the first segment has more than headers and notes")
    header = file.header._replace(section_headers_offset=file.header.section_headers_offset - size)
    vaddrs = {index: place.vaddr for index, place in moved.items()}
    contents = changed_contents(file, list(range(len(sections))), vaddrs)
    splices = [Splice(0, size, b""), overwrite(size, header.pack())]
    splices.append(overwrite(file.section_table.start, b"".join(section.pack(file.order) for section in sections)))
    splices += [overwrite(file.sections[index].file_offset, content) for index, content in contents.items()]
    return ordered(splices)
