# SPDX-License-Identifier: Apache-2.0
"""Measure one image: its sections, and the SFrame section of every version by cfi2sframe and by GNU tools.

The only module that fills the records of `report.size.records` from a file.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.errors import RequestError
from cfi2sframe.gnu.layout import gnu_sections
from cfi2sframe.intern import distinct
from cfi2sframe.report.size.records import (
    CfiSizes,
    FileSizes,
    FunctionSize,
    NamedFunctions,
    Parts,
    SectionSizes,
    VersionSizes,
    by_count,
)
from cfi2sframe.report.size.row_classes import in_class_order, rows_class
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.conversion import Conversion, Level
    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.sections import ElfSection
    from cfi2sframe.gnu.layout import GnuSection
    from cfi2sframe.sframe.lookup_cost import LookupCost
    from cfi2sframe.sframe.write import EncodedRows

NO_FUNCTIONS: Final = NamedFunctions(0, 0, (), ())


#: The refusal of a version that was not asked for.
NOT_ASKED_FOR: Final = "not measured"


class Request(NamedTuple):
    """What to measure of each file.

    Each list of functions has up to `function_count` names, with their sizes in version `function_version`. `versions`
    are those that are measured, at the level `level`, from the CFI of the source `source` (see `Options`).
    """

    function_count: int = 0
    function_version: int = s.SFRAME_VERSION_3
    versions: tuple[int, ...] = s.VERSIONS
    level: Level | None = None
    source: CfiKind | None = None


#: Every version, at the default level.
ALL_VERSIONS: Final = Request()


def measure(image: ElfImage, request: Request = ALL_VERSIONS) -> FileSizes:
    """Measure a file. Raises `InputError` when the file's CFI cannot be used."""
    versions = []
    source, cfi_size, fde_count, code_padding = "", 0, 0, 0
    functions = NO_FUNCTIONS
    gnu: dict[int, GnuSection] = {}
    for version in s.VERSIONS:
        if version not in request.versions:
            versions.append(VersionSizes(version, None, None, {}, 0, NOT_ASKED_FOR))
            continue
        try:
            conversion = convert_image(image, Options(version=version, source=request.source, level=request.level))
        except RequestError as error:
            versions.append(VersionSizes(version, None, None, {}, 0, str(error)))
            continue
        gnu = gnu or gnu_sections(image, conversion.cfi, conversion.code_map)
        source = conversion.cfi.source_names
        cfi_size = sum(section.size for section in conversion.cfi.sections)
        fde_count = conversion.cfi.fde_count
        code_padding = sum(conversion.code_map.padding.sizes.values())
        versions.append(
            VersionSizes(
                version,
                written_sizes(conversion),
                predicted_sizes(gnu[version], version),
                by_count(Counter(skip.reason.value for _, skip in conversion.skips)),
                len(conversion.in_parts),
            )
        )
        if version == request.function_version:
            functions = function_sizes(conversion, request.function_count)
    sframe = image.sframe_section
    return FileSizes(
        name=image.name,
        arch=image.arch.name,
        kind="object" if image.is_relocatable else "linked",
        source=source,
        sizes=CfiSizes(
            file=len(image.data),
            text=_size_of(image, ".text"),
            cfi=cfi_size,
            eh_frame=_size_of(image, ".eh_frame"),
            eh_frame_hdr=_size_of(image, ".eh_frame_hdr"),
            sframe=0 if sframe is None else sframe.size,
            code_padding=code_padding,
        ),
        sframe_version=None if sframe is None else _version_of(image, sframe),
        fde_count=fde_count,
        versions=tuple(versions),
        functions=functions,
    )


def _size_of(image: ElfImage, name: str) -> int:
    return sum(section.size for section in image.sections_named(name))


def _version_of(image: ElfImage, section: ElfSection) -> int | None:
    """Return the version in a section's preamble; None when it is not an SFrame section."""
    preamble = image.section_bytes(section)[:3]
    if len(preamble) == 3 and struct.unpack(image.byte_order + "H", preamble[:2])[0] == s.SFRAME_MAGIC:
        return preamble[2]
    return None


# Sections


def written_sizes(conversion: Conversion) -> SectionSizes:
    """Return the sizes of a conversion's section."""
    rows = conversion.rows
    kinds: Counter[str] = Counter()
    for body in conversion.section.bodies:
        kinds["pcmask" if body.repeat_size else "flexible" if body.is_flexible else "default"] += 1
    sizes = _section_sizes(
        conversion.target.version,
        kinds,
        row_counts=Counter(each.row_count for each in rows.lists),
        row_sizes=_stored_row_sizes(rows.stored, conversion.target.version),
        attribute_count=len(rows.stored),
        left_out_count=len(conversion.skips),
        cost=conversion.lookup_cost,
    )
    lost = conversion.outcomes.skipped | conversion.code_map.dropped.keys()
    sizes = sizes._replace(code_count=sum(number not in lost for number in conversion.cfi.derived_numbers))
    # Without functions nothing is written, not even a header.
    return sizes if conversion.data else sizes._replace(parts=Parts())


def _stored_row_sizes(stored: tuple[EncodedRows, ...], version: int) -> Counter[int]:
    """Count the rows of all lists by their size in bytes."""
    result: Counter[int] = Counter()
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    different, numbers = distinct(stored)
    repeats = Counter(numbers)
    for number, rows in enumerate(different):
        position = attribute_size
        while position < len(rows.data):
            size = rows.start_size + 1 + s.FRE_WORDS_SIZES[rows.data[position + rows.start_size]]
            result[size] += repeats[number]
            position += size
    return result


def predicted_sizes(section: GnuSection, version: int) -> SectionSizes:
    """Return the sizes of the section that GNU as and ld would make."""
    kinds: Counter[str] = Counter()
    row_counts: Counter[int] = Counter()
    row_sizes: Counter[int] = Counter()
    for function, count in section.functions.items():
        kinds["pcmask" if function.is_pcmask else "flexible" if function.gas.is_flexible else "default"] += count
        row_counts[function.gas.row_count] += count
        for size, number in function.row_sizes:
            row_sizes[size] += number * count
    sizes = _section_sizes(
        version,
        kinds,
        row_counts=row_counts,
        row_sizes=row_sizes,
        attribute_count=kinds.total(),
        left_out_count=section.left_out_count,
        cost=section.lookup_cost,
    )
    return sizes._replace(parts=sizes.parts._replace(padding=-sizes.size % section.alignment))


def _section_sizes(
    version: int,
    kinds: Counter[str],
    *,
    row_counts: Counter[int],
    row_sizes: Counter[int],
    attribute_count: int,
    left_out_count: int,
    cost: LookupCost,
) -> SectionSizes:
    """Return the sizes of a section without padding.

    `kinds` counts its functions, `row_counts` the functions of each number of rows, `row_sizes` the stored rows of each
    size in bytes.
    """
    per_function: Counter[str] = Counter()
    for row_count, number in row_counts.items():
        per_function[rows_class(row_count)] += number
    return SectionSizes(
        Parts(
            header=s.HEADER_SIZE,
            function_table=s.FDE_SIZE[version] * kinds.total(),
            attributes=s.FDE_ATTRIBUTE_SIZE * attribute_count if version >= s.SFRAME_VERSION_3 else 0,
            rows=sum(size * number for size, number in row_sizes.items()),
        ),
        default_count=kinds["default"],
        flexible_count=kinds["flexible"],
        pcmask_count=kinds["pcmask"],
        left_out_count=left_out_count,
        row_count=sum(row_count * number for row_count, number in row_counts.items()),
        row_sizes=dict(sorted(row_sizes.items())),
        rows_per_function=in_class_order(per_function),
        lookup_cost=cost,
    )


# Functions


def function_sizes(conversion: Conversion, count: int) -> NamedFunctions:
    """Return the functions that are largest in SFrame, and those that exceed their FDE by most; `count` of each.

    Functions from instructions have no FDE.
    """
    sizes: Counter[int] = Counter()
    record_size = s.FDE_SIZE[conversion.target.version]
    derived = conversion.cfi.derived_numbers
    for rows, number in zip(conversion.rows.lists, conversion.function_entries, strict=True):
        if number is not None and number not in derived:
            sizes[number] += record_size + len(rows.data)
    byte_order = conversion.image.byte_order
    excesses = {
        number: excess
        for number, size in sizes.items()
        if (excess := size - fde_size(conversion.cfi.entries[number], byte_order)) > 0
    }
    if not count:
        return NamedFunctions(len(sizes), len(excesses), (), ())
    largest = heapq.nlargest(count, sizes, key=lambda number: (sizes[number], -number))
    larger = heapq.nlargest(count, excesses, key=lambda number: (excesses[number], -number))
    named = _named(conversion, {*largest, *larger}, sizes)
    return NamedFunctions(
        len(sizes), len(excesses), tuple(map(named.__getitem__, largest)), tuple(map(named.__getitem__, larger))
    )


def _named(conversion: Conversion, numbers: Iterable[int], sizes: Counter[int]) -> dict[int, FunctionSize]:
    """Return the functions of these FDEs by their numbers, with their names and places."""
    image = conversion.image
    entries = {number: conversion.cfi.entries[number] for number in numbers}
    names = image.names_of(entry.fde.pc_begin_vaddr for entry in entries.values())
    named = {}
    for number, entry in entries.items():
        place = image.place(entry.fde.pc_begin_vaddr)
        named[number] = FunctionSize(
            image.name,
            names.get(entry.fde.pc_begin_vaddr, ""),
            place.section_name,
            place.offset,
            entry.fde.pc_range,
            fde_size(entry, image.byte_order),
            sizes[number],
        )
    return named


def fde_size(entry: CfiEntry, byte_order: str) -> int:
    """Return the bytes of an FDE with its length field (DWARF 5, 7.2.2); 0 for what is no FDE in the file."""
    if isinstance(entry.section, RowSection):
        return 0
    data, offset = entry.section.data, entry.fde.offset
    length: int = struct.unpack_from(byte_order + "I", data, offset)[0]
    if length != 0xFFFFFFFF:
        return 4 + length
    long_length: int = struct.unpack_from(byte_order + "Q", data, offset + 4)[0]
    return 12 + long_length
