# SPDX-License-Identifier: Apache-2.0
"""Take the `.sframe` section out of a linked file, and check that nothing else has changed.

The record of a conversion restores the original, byte for byte, unless another tool has written the file since. Where
there is no record, or one for another file, the section's bytes become zeros, its headers are removed, and all else
stays. The record has all that a later release needs, so nothing here knows how sections get their places.
"""

from typing import Final

from cfi2sframe.constants.elf import PF_W, PT_GNU_RELRO, PT_GNU_SFRAME, PT_GNU_STACK, PT_LOAD, PT_NULL
from cfi2sframe.elf.contents import FileData, Splice, is_equal, is_zero, overwrite, spliced
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, INACTIVE, SECTION_HEADER_SIZE, ElfSection, ProgramHeader
from cfi2sframe.errors import EmbedError, SectionError
from cfi2sframe.placing.checks import LinkedFile, open_linked, with_own_entry
from cfi2sframe.placing.loader_tables import is_pointer
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.pyelftools_view import expect
from cfi2sframe.placing.undo import NoOriginal, Original, Removal, original_of
from cfi2sframe.range_map import Span, touches, united

#: Program headers that may cover the section: PT_LOAD, and PT_GNU_RELRO, in which linkers put it last.
_AROUND: Final = frozenset({PT_GNU_SFRAME, PT_LOAD, PT_GNU_RELRO, PT_GNU_STACK, PT_NULL})
_DEAD_HEADER: Final = "the original had a header of .sframe that led to no section; it is removed, too"
_ZEROED: Final = "; .sframe is zeroed, and all else stays in its place"


def remove(data: FileData) -> Removal:
    """Return a linked file without its `.sframe` section and PT_GNU_SFRAME.

    A section that it replaced is restored. Raises `EmbedError` when there is no section, or when the file cannot be
    rewritten safely.
    """
    original = proven_original(data)
    if isinstance(original, Original):
        return _without_dead_header(original.removal())
    file = open_linked(data)
    return Removal(spliced(file.data, zeroing_splices(file)), f"{original.value}{_ZEROED}", is_cleared=True)


def _without_dead_header(removal: Removal) -> Removal:
    """Return the removal without a header that leads to zeros or nothing, as objcopy leaves of a section."""
    file = open_linked(removal.content)
    section = file.sframe_section or file.sframe_segment
    if section is None or not is_zero(file.data, section.file_span):
        return removal
    return Removal(spliced(file.data, zeroing_splices(file)), _DEAD_HEADER)


def proven_original(data: FileData) -> Original | NoOriginal:
    """Return the original by the file's record, if the file is equal to it but for a section."""
    original = original_of(data)
    try:
        if isinstance(original, Original):
            _compare(data, original.content)
    except EmbedError:
        return NoOriginal.NOT_EQUAL
    return original


def check_removal(data: FileData, rewritten: FileData) -> None:
    """Raise `EmbedError` unless `rewritten` is `data` without its section: the original, or else equal in all else."""
    original = proven_original(data)
    if isinstance(original, NoOriginal):
        _compare(data, rewritten)
    elif not is_equal(rewritten, original.content):
        expect(is_equal(rewritten, remove(data).content), "it is not the original")
        _compare(data, rewritten)


def _compare(data: FileData, rewritten: FileData) -> None:
    """Raise `EmbedError` unless `data` is `rewritten` with another section, or with one that `rewritten` lacks."""
    file = open_linked(rewritten)
    bare = file.data
    if file.has_sframe:
        # The replaced section is restored.
        bare = spliced(file.data, zeroing_splices(file))
        expect_equal(bare, file.data, by_others=True)
    expect_equal(bare, open_linked(data).data, by_others=True)


def zeroing_splices(file: LinkedFile) -> list[Splice]:
    """Return the splices, by file offset, that overwrite `.sframe` with zeros and remove its headers.

    Other sections keep their indices: a header that is not the last one, or that symbols refer to, becomes inactive. A
    segment that ends with the section ends before it afterwards, so that there is room for the next one. Raises
    `EmbedError` when there is no section, or when something else is there.
    """
    section = file.sframe_section
    header = section or file.sframe_segment
    if header is None:
        raise EmbedError("the file has no .sframe section")
    start, end = header.file_span
    _refuse_others(file, header)
    kept = [segment for segment in file.segments if segment.type != PT_GNU_SFRAME]
    segments = with_own_entry([_without_end(segment, Span(start, end)) for segment in kept])
    table = b"".join(segment.pack(file.byte_order) for segment in segments)
    table_start = file.header.program_headers_offset
    new_header = file.header._replace(program_header_count=len(segments))
    splices = [
        overwrite(table_start, table.ljust(file.table_end - table_start, b"\0")),
        overwrite(start, bytes(end - start)),
    ]
    if section is not None:
        index = section.index
        place = file.section_table.start + SECTION_HEADER_SIZE * index
        splices.append(overwrite(place, INACTIVE.pack(file.byte_order)))
        symbols = (symbol for table in file.symbol_tables for symbol in file.symbol_fields(table))
        if index == len(file.sections) - 1 and all(other != index for _, other, _ in symbols):
            new_header = new_header._replace(section_header_count=index)
    return sorted([*splices, overwrite(0, new_header.pack())])


def _refuse_others(file: LinkedFile, header: ElfSection | ProgramHeader) -> None:
    """Raise `SectionError` where the bytes of an SFrame section are also those of something else.

    That is another section, the entry point, or what another header or a dynamic entry leads to.
    """
    place = header.file_span
    others = [section.file_span for section in file.stored if not section.is_sframe]
    others += [segment.file_span for segment in file.segments if segment.type not in _AROUND]
    others += [Span(0, FILE_HEADER_SIZE), Span(file.header.program_headers_offset, file.table_end)]
    pointers = [value for tag, value in dynamic_entries(file).items() if is_pointer(tag)]
    is_led_to = any(header.vaddr <= vaddr < header.end_vaddr for vaddr in (file.header.entry_vaddr, *pointers))
    if is_led_to or touches(united(others), place):
        raise SectionError("what is called .sframe is also something else, and is left as it is")


def _without_end(segment: ProgramHeader, place: Span) -> ProgramHeader:
    """Return a read-only PT_LOAD that something else begins and the section ends, without the section's place."""
    is_fixed = segment.flags & PF_W or segment.file_size != segment.memory_size
    if (
        segment.type != PT_LOAD
        or is_fixed
        or not segment.file_offset < place.start < place.end == segment.file_span.end
    ):
        return segment
    size = place.start - segment.file_offset
    return segment._replace(file_size=size, memory_size=size)
