# SPDX-License-Identifier: Apache-2.0
"""What the strictest readers require of a section, whatever its rows mean."""

from __future__ import annotations

from operator import lt
from typing import TYPE_CHECKING, Final

from cfi2sframe.intern import distinct
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.read import DecodedSection

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FunctionBody, Section

#: More bytes than a function can have.
_UNLIMITED: Final = 1 << 64


def broken_invariants(section: Section, image: ElfImage | None) -> Iterator[tuple[int, str]]:
    """Yield what breaks a requirement, with an address as that of a `Difference`; see `check_invariants`."""
    if isinstance(section, DecodedSection):
        yield from _check_stored(section, image)
    yield from _check_functions(section, image)


def _check_stored(section: DecodedSection, image: ElfImage | None) -> Iterator[tuple[int, str]]:
    header, arch, count = section.header, section.arch, section.row_count
    version, rows = header.version, s.HEADER_SIZE + header.auxhdr_size + header.fre_offset
    table_size = header.fde_count * s.FDE_SIZE[version]
    expectations = (
        (not header.flags & ~s.FLAGS_BY_VERSION[version], f"flags 0x{header.flags:x} are not of this version"),
        (version < s.SFRAME_VERSION_3 or header.start_is_pcrel, "version 3 without SFRAME_F_FDE_FUNC_START_PCREL"),
        (header.byte_order == arch.byte_order, f"not in the byte order of {arch.name}"),
        (header.auxhdr_size == 0, f"an auxiliary header of {header.auxhdr_size} bytes"),
        (header.fde_count > 0, "no functions"),
        (header.fre_count > 0, "no rows"),
        (header.fde_offset == 0, f"sfh_fdeoff is {header.fde_offset}, not 0"),
        (header.fre_offset == table_size, f"sfh_freoff is {header.fre_offset}, the table's size {table_size}"),
        (header.fre_count == count, f"sfh_num_fres is {header.fre_count}, the functions have {count} rows"),
        (rows + header.fre_size == len(section.data), "sfh_fre_len does not reach the section's end"),
        (header.fixed_ra_offset == arch.fixed_ra_offset, f"fixed RA offset {header.fixed_ra_offset}"),
        (header.fixed_fp_offset == 0, f"fixed FP offset {header.fixed_fp_offset}"),
        (image is None or arch == image.arch, f"for {arch.name}, the file is for {image.arch.name if image else ''}"),
        (image is None or image.is_relocatable or section.is_sorted, "not sorted, in a linked file"),
    )
    for holds, message in expectations:
        if not holds:
            yield section.vaddr, message


def _check_functions(section: Section, image: ElfImage | None) -> Iterator[tuple[int, str]]:
    starts, sizes, bodies = section.starts, section.sizes, section.bodies
    if section.is_sorted:
        for start, size, following in zip(starts, sizes, starts[1:], strict=False):
            if following <= start:
                yield following, "starts do not ascend"
            elif following < start + size:
                yield following, "overlaps the function before it"
    if image is not None:
        ordered = section.ascending.starts
        # One look-up for each executable section: there may be a hundred thousand functions.
        others = [ordered[place] for place in image.not_code(ordered, [start + 1 for start in ordered])]
        # An FDE may reach past its section into the segment, and a piece of it may start there.
        outside = [start for start in others if not image.may_execute(start)]
        message = "starts outside the executable sections and segments"
        yield from [(start, message) for start in outside]
    kinds, numbers = distinct(bodies)
    least_sizes = list(map(_least_size, kinds))
    for start, size, number in zip(starts, sizes, numbers, strict=True):
        if size < least_sizes[number]:
            yield from [(start, message) for message in _check_rows(kinds[number], size)]
    if isinstance(section, DecodedSection) and section.version >= s.SFRAME_VERSION_2:
        for start, body, record in zip(starts, bodies, section.records, strict=True):
            if body.starts and bool(body.repeat_size) != bool(record.repeat_size):
                kind = "PCMASK" if body.is_pcmask else "PCINC"
                yield start, f"block size {record.repeat_size} of a {kind} function"


def _least_size(body: FunctionBody) -> int:
    """Return the bytes that a function has at least whose rows `_check_rows` finds nothing wrong with."""
    is_sound = next(_check_rows(body, _UNLIMITED), None) is None
    if not is_sound:
        return _UNLIMITED
    return 1 if body.repeat_size > 0 else body.starts[-1] + 1


def _check_rows(body: FunctionBody, size: int) -> Iterator[str]:
    """Check the rows of a function of `size` bytes."""
    starts = body.starts
    if not starts:
        yield "no rows"
        return
    if size == 0:
        yield "no size"
    if starts[0] != 0:
        yield f"the first row starts at {starts[0]}"
    if not all(map(lt, starts, starts[1:])):
        yield "row starts do not ascend"
    limit = body.repeat_size if body.repeat_size > 0 else size
    if starts[-1] >= limit:
        yield f"the last row starts at {starts[-1]}, past the end at {limit}"
