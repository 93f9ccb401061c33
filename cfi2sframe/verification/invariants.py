# SPDX-License-Identifier: Apache-2.0
"""What the strictest readers require of a section, whatever its rows mean."""

from __future__ import annotations

from operator import add, gt, le, lt
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe import constants as s
from cfi2sframe.verification.findings import Difference

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedBody, DecodedFunction, DecodedSection, RowList

#: More bytes than a function can have.
_UNLIMITED: Final = 1 << 64


def check_invariants(decoded: DecodedSection, image: ElfImage | None = None) -> list[Difference]:
    """Return what breaks a requirement of the strictest readers or, in unsorted sections (of objects), of linkers.

    Without an image, requirements that depend on the file are not checked.
    """
    return [*_check_header(decoded), *_check_against(decoded, image), *_check_functions(decoded, image)]


def _check_header(decoded: DecodedSection) -> Iterator[Difference]:
    header = decoded.header
    table_size = header.fde_count * s.FDE_SIZE[header.version]
    fre_count = decoded.row_count
    expectations = (
        (
            not header.flags & ~s.FLAGS_BY_VERSION[header.version],
            f"flags 0x{header.flags:x} are not of this version",
        ),
        (
            header.version < s.SFRAME_VERSION_3 or header.start_is_pcrel,
            "version 3 without SFRAME_F_FDE_FUNC_START_PCREL",
        ),
        (header.byte_order == decoded.arch.byte_order, f"not in the byte order of {decoded.arch.name}"),
        (header.auxhdr_size == 0, f"an auxiliary header of {header.auxhdr_size} bytes"),
        (header.fde_count > 0, "no functions"),
        (header.fre_count > 0, "no rows"),
        (header.fde_offset == 0, f"sfh_fdeoff is {header.fde_offset}, not 0"),
        (
            header.fre_offset == table_size,
            f"sfh_freoff is {header.fre_offset}, the table's size {table_size}",
        ),
        (
            header.fre_count == fre_count,
            f"sfh_num_fres is {header.fre_count}, the functions have {fre_count} rows",
        ),
        (
            s.HEADER_SIZE + header.auxhdr_size + header.fre_offset + header.fre_size == decoded.section_size,
            "sfh_fre_len does not reach the section's end",
        ),
        (header.fixed_ra_offset == decoded.arch.fixed_ra_offset, f"fixed RA offset {header.fixed_ra_offset}"),
        (header.fixed_fp_offset == 0, f"fixed FP offset {header.fixed_fp_offset}"),
    )
    for holds, message in expectations:
        if not holds:
            yield Difference("invariant", decoded.section_vaddr, message)


def _check_against(decoded: DecodedSection, image: ElfImage | None) -> Iterator[Difference]:
    """Check what depends on the file of the section."""
    if image is None:
        return
    if decoded.arch != image.arch:
        message = f"for {decoded.arch.name}, the file is for {image.arch.name}"
        yield Difference("invariant", decoded.section_vaddr, message)
    if not image.is_relocatable and not decoded.header.is_sorted:
        yield Difference("invariant", decoded.section_vaddr, "not sorted, in a linked file")


def _check_functions(decoded: DecodedSection, image: ElfImage | None) -> Iterator[Difference]:
    starts_of = IdentityMap(_row_starts)
    row_starts = [starts_of[body.row_list] for body in decoded.bodies]
    if _are_sound(decoded, row_starts, image):
        return
    previous: DecodedFunction | None = None
    for function, number in zip(decoded.functions, decoded.body_numbers, strict=True):
        start = function.start_vaddr
        if decoded.header.is_sorted and previous is not None:
            if start <= previous.start_vaddr:
                yield Difference("invariant", start, "starts do not ascend")
            elif start < previous.start_vaddr + previous.size:
                yield Difference("invariant", start, "overlaps the function before it")
        previous = function
        # An FDE may reach past its section into the segment, and a piece of it may start there.
        if image is not None and not image.may_execute(start):
            yield Difference("invariant", start, "starts outside the executable sections and segments")
        for message in _check_rows(function, function.size, row_starts[number], decoded.header.version):
            yield Difference("invariant", start, message)


class _RowStarts(NamedTuple):
    """The first and last start of a row list, and whether its starts ascend."""

    first: int
    last: int
    ascend: bool


def _row_starts(rows: RowList) -> _RowStarts:
    starts = rows.starts or (0,)
    return _RowStarts(starts[0], starts[-1], all(map(lt, starts, starts[1:])))


def _are_sound(decoded: DecodedSection, row_starts: list[_RowStarts], image: ElfImage | None) -> bool:
    """Whether `_check_functions` would find nothing, as far as columns tell."""
    starts, sizes, bodies = decoded.starts, decoded.sizes, decoded.body_numbers
    if decoded.header.is_sorted and not all(map(le, map(add, starts, sizes), starts[1:])):
        return False
    # The check of a body knows no function's size.
    if not all(map(gt, sizes, map([rows.last for rows in row_starts].__getitem__, bodies))):
        return False
    if image is not None and not all(map(image.may_execute, starts)):
        return False
    return not any(
        message
        for body, rows in zip(decoded.bodies, row_starts, strict=True)
        for message in _check_rows(body, _UNLIMITED, rows, decoded.header.version)
    )


def _check_rows(function: DecodedBody | DecodedFunction, size: int, rows: _RowStarts, version: int) -> Iterator[str]:
    """Check the rows of a function of `size` bytes."""
    if not function.row_list.starts:
        yield "no rows"
        return
    if size == 0:
        yield "no size"
    if rows.first != 0:
        yield f"the first row starts at {rows.first}"
    if not rows.ascend:
        yield "row starts do not ascend"
    if version >= 2 and function.is_pcmask != bool(function.repeat_size):
        yield f"block size {function.repeat_size} of a {'PCMASK' if function.is_pcmask else 'PCINC'} function"
    limit = function.repeat_size if function.is_pcmask and function.repeat_size else size
    if rows.last >= limit:
        yield f"the last row starts at {rows.last}, past the end at {limit}"
