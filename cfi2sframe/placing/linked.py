# SPDX-License-Identifier: Apache-2.0
"""The door for linked files: insert a finished `.sframe` section, mapped and with PT_GNU_SFRAME, and check the result.

The section's address depends on its size, and its bytes depend on its address. So the plan is made first:

    plan = plan_insertion(data, section_size)        # gives plan.section_vaddr
    chunks = insert(plan, section)                   # buffers, mostly ranges of `data`
    check_insertion(rewritten, plan, section)        # asks the judge (observed), and whether the plan was kept

Code and data keep their addresses. What is loaded keeps its file offset, except for the sections that the placement
moves. What follows the loaded part (debug sections, symbols) moves to make room for a new segment: the loaded part
comes first, as linkers have it. New section names, the stamp and section headers follow at the end of the file. They
replace the old ones where these end the file; elsewhere the old ones stay, unused. The record for removal comes last.
The caller sets the file's mode, owner and times.
"""

from itertools import groupby
from typing import NamedTuple

from cfi2sframe.constants.elf import PF_R, PT_GNU_SFRAME, SHF_ALLOC, SHT_GNU_SFRAME, STT_SECTION
from cfi2sframe.elf.contents import FileData, Joined, Splice, is_equal, is_zero, overwrite, spliced
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, INACTIVE, SECTION_HEADER_SIZE, SFRAME_NAME, Buffer, ProgramHeader
from cfi2sframe.errors import EmbedError, SectionError
from cfi2sframe.placing.blocks import SECTION_ALIGNMENT
from cfi2sframe.placing.checks import LinkedFile, open_linked, round_up
from cfi2sframe.placing.moving import NewIndex, changed_contents, numbering_with, renumbered_header
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.place import Placement, place_section
from cfi2sframe.placing.pyelftools_view import expect
from cfi2sframe.placing.removal import proven_original, zeroing_splices
from cfi2sframe.placing.stamp import stamp_size
from cfi2sframe.placing.undo import Kept, Original, original_of, with_record
from cfi2sframe.range_map import Span, without

_NAME = SFRAME_NAME.encode() + b"\0"


def plan_insertion(data: FileData, section_size: int, *, replaces: bool = False) -> Placement:
    """Plan to put a section of `section_size` bytes into the linked file `data`.

    A section that is there is removed first; its place is taken if it is large enough, since the program may read it
    there. Raises `EmbedError` with the reason when the file cannot be rewritten safely, or, unless it `replaces` the
    section, when a symbol leads to another producer's and the new one does not fit there.
    """
    if section_size <= 0:
        raise EmbedError("an empty section is never written")
    proven = proven_original(data)
    # A record that does not fit is dropped.
    file = open_linked(proven.content if isinstance(proven, Original) else data)
    original = file.data
    if not file.has_sframe:
        return place_section(file, section_size)._replace(original=original)
    splices = zeroing_splices(file)
    cleared = tuple(splice.span for splice in splices)
    bare = open_linked(spliced(file.data, splices))
    old = file.sframe_section or file.sframe_segment
    plan = place_section(bare, section_size, old and old.file_span)._replace(original=original, cleared=cleared)
    if not replaces and old is not None and plan.section_vaddr != old.vaddr and _is_named(file, old.vaddr):
        raise SectionError(
            "a symbol leads to its .sframe section, which the program may read; the new one does not fit there (use "
            "--replace)"
        )
    return plan


def _is_named(file: LinkedFile, vaddr: int) -> bool:
    """Return whether a symbol, other than a section's, has an address as its value."""
    fields = (symbol for table in file.symbol_tables for symbol in file.symbol_fields(table))
    return any(value == vaddr and info & 0xF != STT_SECTION for info, _, value in fields)


def insert(placement: Placement, section: Buffer, section_type: int = SHT_GNU_SFRAME, stamp: bytes = b"") -> Joined:
    """Return the new file: buffers to be written one after the other, most of them parts of the old one.

    `section_type` is SHT_GNU_SFRAME or, for tools before binutils 2.45, SHT_PROGBITS. `stamp` is left out where there
    are no section headers. Raises `EmbedError` when the section does not have the planned size, or when section indices
    or symbols cannot be updated.
    """
    if len(section) != placement.section_size:
        raise EmbedError(f"the section has {len(section)} bytes, the plan has room for {placement.section_size}")
    file = placement.file
    numbering = numbering_with(file, placement.places, placement.section_vaddr)
    changed = changed_contents(file, numbering, placement.places)
    moved = {index: changed.get(index) or file.section_bytes(file.sections[index]) for index in placement.places}
    table = b"".join(segment.pack(file.byte_order) for segment in placement.segments)
    header = file.header._replace(program_header_count=len(placement.segments))
    block = _block(placement, table, moved, section)
    splices = [block]
    splices += [overwrite(file.sections[n].file_offset, content) for n, content in changed.items() if n not in moved]
    if placement.table_file_offset is None:
        splices += _head(placement, table, moved)
    else:
        header = header._replace(program_headers_offset=placement.table_file_offset)
    end = None
    if file.sections:
        end = _end(placement, section_type, numbering, len(block.content) - block.removed_size, stamp)
        splices.append(Splice(end.kept_size, len(file.data) - end.kept_size, end.content))
        header = header._replace(
            section_headers_offset=end.headers_offset,
            section_header_count=len(numbering) + 1,
            section_names_index=numbering[file.headers.names_index],
        )
    rewritten = spliced(file.data, [*splices, overwrite(0, header.pack())])
    return _recorded(placement, rewritten, splices, numbering, end)


class _End(NamedTuple):
    """The new end of a file, which follows its first `kept_size` bytes, and the file offsets of its parts.

    `names_offset` is None where the old section names stay.
    """

    kept_size: int
    content: bytes
    names_offset: int | None
    headers_offset: int


def _recorded(
    placement: Placement, rewritten: Joined, splices: list[Splice], numbering: list[NewIndex], end: _End | None
) -> Joined:
    """Return the new file with its record. The first of the splices is the block."""
    file = placement.file
    whole = [Span(0, FILE_HEADER_SIZE), Span(file.header.program_headers_offset, file.table_end)]
    moved = [file.sections[index].file_span for index in placement.places]
    changed = [*placement.cleared, *moved, *(splice.span for splice in splices)]
    is_renumbered = any(old != new for old, new in enumerate(numbering))
    tables = [table.file_span for table in file.symbol_tables] if is_renumbered else []
    sources = _sources(placement, splices[0], numbering, end)
    return with_record(placement.original, rewritten, sources, whole, without(changed, whole), tables, numbering)


def _sources(placement: Placement, block: Splice, numbering: list[NewIndex], end: _End | None) -> list[Kept]:
    """Return the places of the old file's parts in the new one, except for the block, which replaces zeros."""
    file = placement.file
    kept_size = len(file.data) if end is None else end.kept_size
    before, after = block.span
    sources = [Kept(0, before, 0), Kept(after, kept_size - after, before + len(block.content))]
    for index, place in placement.places.items():
        old = file.sections[index]
        sources.append(Kept(old.file_offset, old.size, place.file_offset))
    if end is not None:
        sources += _sources_of_end(file, numbering, end)
    if placement.table_file_offset is not None:
        start = file.header.program_headers_offset
        sources.append(Kept(start, file.table_end - start, placement.table_file_offset))
    return sources


def _sources_of_end(file: LinkedFile, numbering: list[NewIndex], end: _End) -> list[Kept]:
    """Return the new places of section names and headers that were in the part of the file that is written anew."""
    names, table = file.names_section, file.section_table
    sources = []
    if end.names_offset is not None and names.file_offset >= end.kept_size:
        sources.append(Kept(names.file_offset, names.size, end.names_offset))
    if table.start >= end.kept_size:
        for shift, run in groupby(range(len(numbering)), key=lambda index: numbering[index] - index):
            first, *others = run
            at, new_at = SECTION_HEADER_SIZE * first, SECTION_HEADER_SIZE * (first + shift)
            size = SECTION_HEADER_SIZE * (1 + len(others))
            sources.append(Kept(table.start + at, size, end.headers_offset + new_at))
    return sources


def _block(placement: Placement, table: bytes, moved: dict[int, bytes], section: Buffer) -> Splice:
    """Return the splice with the section, what moves there, and the padding of what is not loaded and follows it."""
    file, block = placement.file, placement.block
    start = file.loaded_end if block.is_inserted else block.section_file_offset
    size = block.end - start
    content = bytearray(round_up(size, file.alignment_from(start)) if block.is_inserted else size)
    parts = [(block.section_file_offset, section), *((at, moved[index]) for index, at in block.placed.items())]
    if placement.table_file_offset is not None:
        parts.append((placement.table_file_offset, table))
    for at, part in parts:
        content[at - start : at - start + len(part)] = part
    return Splice(start, 0 if block.is_inserted else size, bytes(content))


def _head(placement: Placement, table: bytes, moved: dict[int, bytes]) -> list[Splice]:
    """Return the splices for the program headers, and for the sections that move and are not in the block.

    The old bytes of these sections stay where nothing overwrites them.
    """
    file = placement.file
    start = file.header.program_headers_offset
    near = moved.keys() - placement.block.placed.keys()
    return [
        overwrite(start, table.ljust(file.table_end - start, b"\0")),
        *(overwrite(placement.places[index].file_offset, moved[index]) for index in sorted(near)),
    ]


def _names(file: LinkedFile, used_end: int) -> tuple[bytes, int]:
    """Return the new section names, empty where the old ones suffice, and the size of the part of the file that stays.

    Section headers, a stamp before them that no longer fits, and section names before these do not stay where they end
    the file and are written anew. All before `used_end` stays, whatever size the stamp claims.
    """
    names, table, kept_size = file.section_bytes(file.names_section), file.section_table, len(file.data)
    names = b"" if _NAME in names else names + _NAME
    last = file.stored[-1]
    is_end = table.start >= max(file.loaded_end, last.file_span.end)
    if is_end and is_zero(file.data, Span(table.end, kept_size)):
        kept_size = max(table.start - stamp_size(file.data), file.loaded_end, last.file_span.end, used_end)
        is_last = last == file.names_section and last.file_offset >= file.loaded_end
        if names and is_last and is_zero(file.data, Span(last.file_span.end, kept_size)):
            kept_size = last.file_offset
    return names, kept_size


def _end(placement: Placement, section_type: int, numbering: list[NewIndex], growth: int, stamp: bytes) -> _End:
    """Return the new end of the file, before which `growth` bytes have been inserted: section names, stamp, headers."""
    file, block = placement.file, placement.block
    names, kept_size = _names(file, 0 if block.is_inserted else block.end)
    start = kept_size + growth
    names_offset = round_up(start, 8)
    headers_offset = round_up(names_offset + len(names), 8) + len(stamp)
    added = INACTIVE._replace(
        name_offset=(names or file.section_bytes(file.names_section)).index(_NAME),
        type=section_type,
        flags=SHF_ALLOC,
        vaddr=placement.section_vaddr,
        file_offset=placement.block.section_file_offset,
        size=placement.section_size,
        alignment=SECTION_ALIGNMENT,
    )
    # The new header has the one index that is in no item of `numbering`.
    headers = [added] * (len(file.sections) + 1)
    for index, old in enumerate(file.sections):
        entry = renumbered_header(old, numbering)
        if index in placement.places:
            entry = entry._replace(**placement.places[index]._asdict())
        elif not entry.flags & SHF_ALLOC and entry.file_offset >= file.loaded_end:
            entry = entry._replace(file_offset=entry.file_offset + growth)
        if old == file.names_section and names:
            entry = entry._replace(file_offset=names_offset, size=len(names))
        headers[numbering[index]] = entry
    content = (bytes(names_offset - start) + names).ljust(headers_offset - len(stamp) - start, b"\0") + stamp
    content += b"".join(entry.pack(file.byte_order) for entry in headers)
    return _End(kept_size, content, names_offset if names else None, headers_offset)


def check_insertion(rewritten: FileData, plan: Placement, section: Buffer) -> None:
    """Read the rewritten file back, and compare it with the original.

    Raises `EmbedError` when they are not equal but for the section (`observed`), when this is not where the plan has
    it, with the bytes `section`, or when the record does not restore the original; `InputError` when one of the files
    cannot be read.
    """
    if plan.cleared:
        expect_equal(plan.file.data, plan.original, by_others=True)
    place = expect_equal(plan.file.data, rewritten)
    file = open_linked(rewritten)
    size, vaddr = len(section), plan.section_vaddr
    planned = ProgramHeader(PT_GNU_SFRAME, PF_R, place.start, vaddr, vaddr, size, size, SECTION_ALIGNMENT)
    header, segment = file.sframe_section, file.sframe_segment
    planned_header = header and header._replace(
        flags=SHF_ALLOC, vaddr=vaddr, file_offset=place.start, size=size, alignment=SECTION_ALIGNMENT
    )
    expect((header, segment) == (planned_header, planned), ".sframe is not where it was planned")
    contents = (bytes(rewritten[place.start : place.start + size]), file.bytes_at(vaddr, size))
    expect(contents == (bytes(section),) * 2, "the bytes of .sframe are not at its address, or elsewhere in the file")
    restored = original_of(rewritten)
    is_whole = isinstance(restored, Original) and restored.is_exact and is_equal(restored.content, plan.original)
    expect(is_whole, "its record does not restore the original")
