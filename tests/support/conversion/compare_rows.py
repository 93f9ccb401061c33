# SPDX-License-Identifier: Apache-2.0
"""A conversion against what the naive evaluator makes of the same CFI, at every boundary of either."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from cfi2sframe import Conversion, account, load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, Arch
from cfi2sframe.api import decode
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.sframe.model import Section
from tests.support.conversion.evaluation import dwarf_values, sframe_values
from tests.support.conversion.variants import convert_without_stubs
from tests.support.dwarf import naive


class Comparison(NamedTuple):
    """What was found: every problem as text; how many FDEs are described and left out, and PCs were compared."""

    problems: list[str]
    described: int
    left_out: int
    points: int


def compare_rows(path: Path, options: Options, *, is_damaged: bool = False) -> Comparison:
    """Convert a linked file, and compare it with the CFI: each function that is described, in part or not, or left out.

    Of a damaged file, only rows are compared, of those FDEs that share no address with another one: where two have it,
    the truth is open.
    """
    # Stubs are described by their instructions, of which a reader of CFI knows nothing.
    conversion = convert_without_stubs(load(path), options)
    fdes = list(fdes_of(conversion, is_damaged=is_damaged))
    section = decode(conversion.data, conversion.section_vaddr) if conversion.data else None
    if is_damaged:
        fdes = list(_undisputed(conversion, fdes))
    return compare(conversion, fdes, section, is_damaged=is_damaged)


def fdes_of(conversion: Conversion, *, is_damaged: bool = False) -> Iterator[naive.Fde]:
    """Yield the FDEs of an image's `.eh_frame` as the naive evaluator reads them."""
    arch = conversion.target.arch
    for section in conversion.cfi.sections:
        if isinstance(section, CfiSection) and section.kind == "eh_frame":
            yield from naive.fdes_in(
                bytes(section.data),
                section.vaddr,
                little=arch.byte_order == "<",
                is_aarch64=arch in (AARCH64_LE, AARCH64_BE),
                is_damaged=is_damaged,
            )


def compare(
    conversion: Conversion, fdes: list[naive.Fde], section: Section | None, *, is_damaged: bool = False
) -> Comparison:
    """Compare a section with the FDEs of what it was made of."""
    arch, version = conversion.target.arch, conversion.target.version
    # What is in read-only data, as functions of libgcrypt for AArch64 are, is no code.
    in_code = [fde for fde in fdes if conversion.image.code_range_of(fde.start_vaddr) is not None]
    if not is_damaged:
        assert account(conversion).dropped.get(Fate.DISCARDED.value, 0) == len(fdes) - len(in_code)
    fdes = in_code
    left_out = {entry.start_vaddr: skip for entry, skip in conversion.skips}
    in_parts = {entry.start_vaddr for entry in conversion.in_parts}
    entries = conversion.cfi.entries
    # What reaches past the code is cut off, and described in part.
    sizes = (size + entries.clipped.get(number, 0) for number, size in enumerate(entries.sizes))
    known = set(zip(entries.starts, sizes, strict=True))
    problems: list[str] = []
    described = found_left_out = points = 0

    def may_be_absent(row: naive.Row) -> bool:
        return is_hard_to_say(row, arch) if version >= 3 else not is_plain(row, arch)

    for fde in fdes:
        start = fde.start_vaddr
        if start in left_out:
            found_left_out += 1
            is_excused = any(map(may_be_absent, fde.rows)) or (version < 3 and fde.ra_column != arch.ra_register)
            if not (is_excused or is_damaged):
                problems.append(f"0x{start:x}: left out ({left_out[start]}): {fde.rows}")
            continue
        if (start, fde.size) not in known:
            # The start of a damaged FDE may be unreadable.
            if not conversion.cfi.damaged:
                problems.append(f"no FDE of 0x{start:x}, {fde.size} bytes, was read")
            continue
        described += 1
        for pc in _points(fde, section):
            points += 1
            row, found = fde.row_at(pc - start), section.find(pc) if section else None
            if found is None and start in in_parts and (is_damaged or may_be_absent(row)):
                continue
            if found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            truth, said = dwarf_values(row, arch, fde.ra_column), sframe_values(found.row.state, arch)
            if said != truth:
                problems.append(f"0x{pc:x}: {row}, SFrame says {found.row.state}")
    if not is_damaged:
        problems += _problems_of_sizes(conversion, fdes, section)
        if found_left_out != len(left_out):
            problems.append(f"{len(left_out)} FDEs are left out, {found_left_out} of those that were read")
    return Comparison(problems, described, found_left_out, points)


def _problems_of_sizes(conversion: Conversion, fdes: list[naive.Fde], section: Section | None) -> Iterator[str]:
    """Describe what goes beyond the FDEs: as many bytes are described as there are in them, and padding."""
    coverage = account(conversion)
    left_out = {entry.start_vaddr for entry, _ in conversion.skips}
    meant = sum({fde.start_vaddr: fde.size for fde in fdes if fde.start_vaddr not in left_out}.values())
    meant += coverage.padding_size - sum(item.size for item in coverage.missing_sums if item.kind == "in part")
    said = sum(section.sizes) if section else 0
    if said != meant:
        yield f"{said} bytes are described, the FDEs have {meant}"


def _points(fde: naive.Fde, section: Section | None) -> list[int]:
    """Every address at which either side may change, within the FDE."""
    points = {fde.start_vaddr, *(fde.start_vaddr + row.start for row in fde.rows)}
    end = fde.start_vaddr + fde.size
    if section is not None:
        ordered = section.ascending
        first = max(0, bisect_right(ordered.starts, fde.start_vaddr) - 1)
        for number in range(first, bisect_left(ordered.starts, end)):
            start = ordered.starts[number]
            points.update(start + delta for delta in ordered.bodies[number].starts)
            points.add(start + ordered.sizes[number])
    return sorted(point for point in points if fde.start_vaddr <= point < end)


def _undisputed(conversion: Conversion, fdes: Iterable[naive.Fde]) -> Iterator[naive.Fde]:
    """Yield the FDEs that share no address with another one, and that the package has not refused."""
    cfi = conversion.cfi
    fates = enumerate(conversion.fates)
    refused = {cfi.entries[number].start_vaddr for number, fate in fates if fate.is_dropped}
    refused |= {failure.start_vaddr for failure in cfi.damaged if failure.start_vaddr is not None}
    # The naive evaluator does not know all FDEs that the package reads.
    ranges = {(start, start + size) for start, size in zip(cfi.entries.starts, cfi.entries.sizes, strict=True)}
    for fde in fdes:
        start, end = fde.start_vaddr, fde.start_vaddr + fde.size
        others = (other for other in ranges if other[0] != start)
        if start not in refused and not any(first < end and start < last for first, last in others):
            yield fde


def is_plain(row: naive.Row, arch: Arch) -> bool:
    """Whether every version of SFrame has a default row for this: nothing could excuse leaving it out."""
    ra, fp, sp = (row.rules.get(number) for number in (arch.ra_register, arch.fp_register, arch.sp_register))
    if arch.fixed_ra_offset:
        ra_is_plain = ra == ("offset", arch.fixed_ra_offset)
    elif ra is None:
        # FP without RA takes s390x's padding word.
        ra_is_plain = arch.pads_ra or fp is None or fp[0] != "offset"
    else:
        ra_is_plain = ra[0] == "offset" and ra[1] != 0
    match row.cfa:
        case ("sum", base, int(offset)):
            cfa_is_plain = base in (arch.fp_register, arch.sp_register)
            cfa_is_plain = cfa_is_plain and (offset - arch.cfa_offset_bias) % arch.cfa_offset_scale == 0
        case _:
            cfa_is_plain = False
    return (
        cfa_is_plain
        and ra_is_plain
        # An offset of 0 means "not saved".
        and (fp is None or fp[0] == "same value" or (fp[0] == "offset" and fp[1] != 0))
        and (sp is None or (arch.sp_offset_from_cfa != 0 and sp[0] == "offset"))
    )


def is_hard_to_say(row: naive.Row, arch: Arch) -> bool:
    """Whether a row holds what version 3 may be unable to express: an expression."""
    numbers = (arch.ra_register, arch.fp_register, arch.sp_register)
    kinds = {rule[0] for number in numbers if (rule := row.rules.get(number)) is not None}
    return (row.cfa is not None and row.cfa[0] == "value") or bool(kinds & {"expression", "val_expression"})
