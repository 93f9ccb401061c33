# SPDX-License-Identifier: Apache-2.0
"""Measure one image: what it has, and what SFrame would cost in every version, by cfi2sframe and by GNU tools.

Reports are made of the records in `size_records`; this module is the only one that fills them from a file.
"""

from __future__ import annotations

import heapq
import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.errors import RequestError
from cfi2sframe.gnu.layout import gnu_layouts
from cfi2sframe.report.size.records import (
    ROWS_CLASSES,
    CfiSizes,
    FileSizes,
    Functions,
    FunctionSize,
    Layout,
    Parts,
    VersionSizes,
    rows_class,
)
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.sections import ElfSection
    from cfi2sframe.sframe.rows import PlannedBody

NO_FUNCTIONS: Final = Functions(0, 0, (), ())


def measure(image: ElfImage, *, function_count: int = 0, function_version: int = s.SFRAME_VERSION_3) -> FileSizes:
    """Measure a file in every version.

    `function_count` functions are named per list, as the version `function_version` writes them.
    Raises `InputError` when the file's CFI cannot be used.
    """
    versions = []
    source, cfi_size, fde_count = "", 0, 0
    functions = NO_FUNCTIONS
    gnu: dict[int, Layout] = {}
    for version in s.VERSIONS:
        try:
            conversion = convert_image(image, Options(version=version))
        except RequestError as error:
            versions.append(VersionSizes(version, None, None, {}, str(error)))
            continue
        gnu = gnu or gnu_layouts(image, conversion.cfi, conversion.code_map)
        source = conversion.cfi.sections[0].name
        cfi_size = sum(len(section.data) for section in conversion.cfi.sections)
        fde_count = len(conversion.cfi.entries) + len(conversion.cfi.failures)
        reasons = Counter(skip.reason.value for _, skip in conversion.left_out)
        versions.append(
            VersionSizes(
                version,
                written_layout(conversion),
                gnu[version],
                dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
            )
        )
        if version == function_version:
            functions = function_sizes(conversion, function_count)
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
        ),
        sframe_version=None if sframe is None else _version_of(image, sframe),
        fde_count=fde_count,
        versions=tuple(versions),
        functions=functions,
    )


def _size_of(image: ElfImage, name: str) -> int:
    return sum(section.size for section in image.sections_named(name))


def _version_of(image: ElfImage, section: ElfSection) -> int | None:
    """Return the version that a section's preamble names; None when it is no SFrame section."""
    preamble = image.section_bytes(section)[:3]
    if len(preamble) == 3 and struct.unpack(image.byte_order + "H", preamble[:2])[0] == s.SFRAME_MAGIC:
        return preamble[2]
    return None


# The section as cfi2sframe writes it


def written_layout(conversion: Conversion) -> Layout:
    """Return the layout of a conversion's section."""
    plan = conversion.plan
    kinds: Counter[str] = Counter()
    for body in conversion.section.bodies:
        kinds["pcmask" if body.repeat_size else "flexible" if body.is_flexible else "default"] += 1
    row_sizes = _row_sizes(plan.bodies, plan.version)
    parts = Parts()
    if conversion.data:
        attributes = s.FDE_ATTRIBUTE_SIZE * len(plan.bodies) if plan.version >= s.SFRAME_VERSION_3 else 0
        table = s.FDE_SIZE[plan.version] * len(plan.sizes)
        parts = Parts(s.HEADER_SIZE, table, attributes, sum(size * n for size, n in row_sizes.items()))
        parts = parts._replace(padding=len(conversion.data) - parts.total)
    per_function = Counter(rows_class(body.row_count) for body in plan.function_bodies)
    return Layout(
        parts,
        kinds["default"],
        kinds["flexible"],
        kinds["pcmask"],
        left_out_count=len(conversion.left_out),
        row_count=sum(body.row_count for body in plan.function_bodies),
        row_sizes=dict(sorted(row_sizes.items())),
        rows_per_function={name: n for name in ROWS_CLASSES if (n := per_function[name])},
    )


def _row_sizes(bodies: tuple[PlannedBody, ...], version: int) -> Counter[int]:
    """Count the rows of all bodies by their size."""
    result: Counter[int] = Counter()
    attribute_size = s.FDE_ATTRIBUTE_SIZE if version >= s.SFRAME_VERSION_3 else 0
    repeats = Counter(map(id, bodies))
    for body in {id(body): body for body in bodies}.values():
        start_size = s.FRE_START_SIZE[body.fre_type]
        position, repeat = attribute_size, repeats[id(body)]
        while position < len(body.data):
            size = start_size + 1 + s.FRE_WORDS_SIZES[body.data[position + start_size]]
            result[size] += repeat
            position += size
    return result


# Functions


def function_sizes(conversion: Conversion, count: int) -> Functions:
    """Return the functions that cost most, and those that cost most beyond their FDE; `count` of each."""
    costs: Counter[int] = Counter()
    record_size = s.FDE_SIZE[conversion.plan.version]
    for function, number in zip(conversion.plan.functions, conversion.function_entries, strict=True):
        if number is not None:
            costs[number] += record_size + len(function.body.data)
    excesses: dict[int, int] = {}
    for number, cost in costs.items():
        excess = cost - fde_size(conversion.cfi.entries[number], conversion.image.byte_order)
        if excess > 0:
            excesses[number] = excess
    if not count:
        return Functions(len(costs), len(excesses), (), ())
    costliest = heapq.nlargest(count, costs, key=lambda number: (costs[number], -number))
    larger = heapq.nlargest(count, excesses, key=lambda number: (excesses[number], -number))
    named = {function[0]: function[1] for function in _name(conversion, {*costliest, *larger}, costs)}
    return Functions(
        len(costs), len(excesses), tuple(named[number] for number in costliest), tuple(named[n] for n in larger)
    )


def fde_size(entry: CfiEntry, byte_order: str) -> int:
    """Return the bytes of an FDE with its length field (DWARF 5, 7.2.2)."""
    data, offset = entry.section.data, entry.fde.offset
    length: int = struct.unpack_from(byte_order + "I", data, offset)[0]
    if length != 0xFFFFFFFF:
        return 4 + length
    long_length: int = struct.unpack_from(byte_order + "Q", data, offset + 4)[0]
    return 12 + long_length


def _name(conversion: Conversion, numbers: set[int], costs: Counter[int]) -> Iterator[tuple[int, FunctionSize]]:
    image, entries = conversion.image, conversion.cfi.entries
    names = image.names_of(entries[number].fde.pc_begin_vaddr for number in numbers)
    for number in numbers:
        entry = entries[number]
        begin = entry.fde.pc_begin_vaddr
        place = image.place(begin)
        yield (
            number,
            FunctionSize(
                image.name,
                names.get(begin, ""),
                place.section_name,
                place.offset,
                entry.fde.pc_range,
                fde_size(entry, image.byte_order),
                costs[number],
            ),
        )
