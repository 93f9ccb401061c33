# SPDX-License-Identifier: Apache-2.0
"""The section headers and section names of a linked file, with one section more or less."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHF_ALLOC
from cfi2sframe.elf.headers import SECTION_HEADER_SIZE, SFRAME_NAME
from cfi2sframe.rewrite.edits import Splice
from cfi2sframe.rewrite.gate import round_up
from cfi2sframe.rewrite.section_indices import renumbered_header

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cfi2sframe.elf.headers import FileHeader, SectionHeader
    from cfi2sframe.rewrite.gate import LinkedFile
    from cfi2sframe.rewrite.movable import NewPlace

_NAME = SFRAME_NAME.encode() + b"\0"


class Insertion(NamedTuple):
    """At `file_offset` of the old file, the new file has `size` more bytes."""

    file_offset: int
    size: int


class _Names(NamedTuple):
    """The section names with the new one: its offset in the table, the table's file offset and size, and the edits.

    Without edits, the name was in the table already, and the table does not change.
    """

    name_offset: int
    file_offset: int
    size: int
    splices: list[Splice]
    insertions: list[Insertion]


def with_section_header(
    file: LinkedFile,
    header: FileHeader,
    added: SectionHeader,
    moved: Mapping[int, NewPlace],
    numbering: list[int],
    insertions: list[Insertion],
) -> tuple[list[Splice], FileHeader]:
    """Return the splices that add a section header and the section's name, and the new file header.

    `added` is the new section header, without its name. `moved` maps old indices to new places, `numbering` old indices
    to new ones. `insertions` are the other ones of this edit.
    """
    old_table = file.section_table
    is_before_loaded = old_table.start < file.loaded_end
    insertions = list(insertions)
    growth = 0
    if not is_before_loaded:
        growth = round_up(SECTION_HEADER_SIZE, file.alignment_from(old_table.end))
        insertions.append(Insertion(old_table.end, growth))
    names = _names_with(file, insertions)
    insertions += names.insertions
    # The new header has the one index that is in no item of `numbering`.
    headers = [added._replace(name_offset=names.name_offset)] * (len(file.sections) + 1)
    for index, old in enumerate(file.sections):
        entry = renumbered_header(old, numbering)
        if index in moved:
            entry = entry._replace(vaddr=moved[index].vaddr, file_offset=moved[index].file_offset)
        elif not entry.flags & SHF_ALLOC:
            entry = entry._replace(file_offset=_shifted(file, insertions, entry.file_offset))
        if index == file.names_index and names.splices:
            entry = entry._replace(file_offset=names.file_offset, size=names.size)
        headers[numbering[index]] = entry
    table = b"".join(entry.pack(file.order) for entry in headers)
    if is_before_loaded:
        # Section headers before loaded bytes cannot grow there: they move to the end of the file.
        end = len(file.data) + sum(insertion.size for insertion in insertions)
        padding = bytes(-end % 8)
        splice, start = Splice(len(file.data), 0, padding + table), end + len(padding)
    else:
        old_size = old_table.end - old_table.start
        splice = Splice(old_table.start, old_size, table.ljust(old_size + growth, b"\0"))
        start = _shifted(file, insertions, old_table.start)
    return [*names.splices, splice], header._replace(
        section_headers_offset=start,
        section_header_count=len(headers),
        section_names_index=numbering[file.names_index],
    )


def _names_with(file: LinkedFile, insertions: list[Insertion]) -> _Names:
    """Return the section names with the section's name, which is appended if it is not there."""
    table = file.sections[file.names_index]
    strings = file.section_bytes(file.names_index)
    found = strings.find(_NAME)
    if found >= 0:
        return _Names(found, 0, 0, [], [])
    size = table.size + len(_NAME)
    end = len(file.data)
    if table.file_offset < file.loaded_end:
        # What follows the names in the file is loaded and may not move: the names move to the end of the file.
        padding = bytes(-end % 8)
        content = padding + strings + _NAME
        start = end + sum(insertion.size for insertion in insertions) + len(padding)
        return _Names(len(strings), start, size, [Splice(end, 0, content)], [Insertion(end, len(content))])
    end = table.file_span.end
    growth = round_up(len(_NAME), file.alignment_from(end))
    start = _shifted(file, insertions, table.file_offset)
    return _Names(len(strings), start, size, [Splice(end, 0, _NAME.ljust(growth, b"\0"))], [Insertion(end, growth)])


def _shifted(file: LinkedFile, insertions: list[Insertion], file_offset: int) -> int:
    """Return the new file offset of what is at an offset of the old file."""
    if file_offset < file.loaded_end:
        return file_offset
    return file_offset + sum(insertion.size for insertion in insertions if insertion.file_offset <= file_offset)


def without_section_header(
    file: LinkedFile,
    header: FileHeader,
    removed: int | None,
    moved: Mapping[int, NewPlace],
    numbering: list[int],
    cuts: list[Splice],
) -> tuple[list[Splice], FileHeader]:
    """Return the splices that remove a section header and the section's name, and the new file header.

    `removed` is the old index of the section, None where it has no header. `moved` maps old indices to new places,
    `numbering` old indices to new ones. `cuts` are the other removals of this edit.
    """
    names_cut = _names_cut(file, removed)
    table = file.section_table
    cuts = [*cuts, *names_cut]
    shrink = 0
    if removed is not None and table.start >= file.loaded_end:
        shrink = round_up(SECTION_HEADER_SIZE, file.alignment_from(table.end))
        cuts.append(Splice(table.end, shrink, b""))
    headers: dict[int, SectionHeader] = {}
    for index, old in enumerate(file.sections):
        if index == removed:
            continue
        entry = old
        if index in moved:
            entry = entry._replace(vaddr=moved[index].vaddr, file_offset=moved[index].file_offset)
        elif not entry.flags & SHF_ALLOC:
            entry = entry._replace(file_offset=_pulled(cuts, entry.file_offset))
        if index == file.names_index and names_cut:
            entry = entry._replace(size=entry.size - len(_NAME))
        headers[numbering[index]] = renumbered_header(entry, numbering)
    content = b"".join(headers[number].pack(file.order) for number in sorted(headers))
    size = table.end - table.start
    return [*names_cut, Splice(table.start, size, content.ljust(size - shrink, b"\0"))], header._replace(
        section_headers_offset=_pulled(cuts, table.start),
        section_header_count=len(headers),
        section_names_index=numbering[file.names_index],
    )


def _pulled(cuts: list[Splice], file_offset: int) -> int:
    """Return the new file offset of what is at an offset of the old file."""
    return file_offset - sum(cut.removed_size for cut in cuts if cut.file_offset < file_offset)


def _names_cut(file: LinkedFile, removed: int | None) -> list[Splice]:
    """Return the cut of the name; none unless it is the last one, has no other user, and what follows can move."""
    if removed is None:
        return []
    table = file.sections[file.names_index]
    end = table.file_span.end
    start = end - len(_NAME)
    strings = file.section_bytes(file.names_index)
    users = [i for i, s in enumerate(file.sections) if s.name_offset >= table.size - len(_NAME) and i != removed]
    if not strings.endswith(b"\0" + _NAME) or users or table.file_offset < file.loaded_end:
        return []
    growth = round_up(len(_NAME), file.alignment_from(end))
    starts = [section.start for section in file.stored]
    starts.append(file.header.section_headers_offset)
    following = min((offset for offset in starts if offset >= end), default=len(file.data))
    if start + growth > following:
        return []
    return [Splice(start, growth, b"")]
