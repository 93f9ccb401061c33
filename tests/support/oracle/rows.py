# SPDX-License-Identifier: Apache-2.0
"""A linked file's conversion against what another reader makes of the same CFI, at every boundary of either."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe import account, load
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from cfi2sframe.sframe.model import Function
from tests.support.oracle.compare import difference, is_hard_to_say, is_plain, row_at
from tests.support.oracle.elftools_rows import fdes_of
from tests.support.variants import convert_without_stubs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion import Level
    from cfi2sframe.lower import Skip
    from cfi2sframe.sframe.model import Section
from tests.support.oracle.elftools_rows import Fde, Row


class Comparison(NamedTuple):
    """What was found: every problem as text; how many FDEs are described and left out, and PCs were compared.

    `untold` counts the FDEs that no reader which is here is right about.
    """

    problems: list[str]
    described: int
    left_out: int
    points: int
    untold: int


@lru_cache(maxsize=2)
def _fdes_of(path: Path, dwarfdump: str | None) -> tuple[Fde, ...]:
    return fdes_of(path, dwarfdump)


class _Converted(NamedTuple):
    """A decoded conversion; by address, what was left out and what is described in part; and bytes.

    `hole_size` counts those in the holes of functions that are described in part, `padding` the padding described.
    """

    arch: Arch
    lookup: Section
    left_out: dict[int, Skip]
    in_parts: frozenset[int]
    hole_size: int
    padding: int


@lru_cache(maxsize=1)
def _converted(path: Path, version: int, level: Level | None) -> _Converted:
    """Return the decoded conversion, and what it leaves out."""
    conversion = convert_without_stubs(
        load(path), Options(version=version, errata=2 if version == 2 else None, level=level)
    )
    left_out = {entry.fde.pc_begin_vaddr: skip for entry, skip in conversion.skips}
    in_parts = frozenset(entry.fde.pc_begin_vaddr for entry, _ in conversion.in_parts)
    lookup = decode(conversion.data, conversion.section_vaddr)
    coverage = account(conversion)
    hole_size = sum(item.size for item in coverage.missing_sums if item.kind == "in part")
    return _Converted(conversion.target.arch, lookup, left_out, in_parts, hole_size, coverage.padding_size)


def _points(fde: Fde, lookup: Section) -> Iterator[int]:
    """Every address at which either side may change, within the FDE."""
    points = {fde.pc_begin_vaddr, *(row.pc_vaddr for row in fde.rows)}
    for function in _functions_in(fde, lookup):
        points.update(function.start_vaddr + row.start_delta for row in function.rows)
        points.add(function.start_vaddr + function.size)
    yield from sorted(p for p in points if fde.pc_begin_vaddr <= p < fde.pc_end_vaddr)


def _functions_in(fde: Fde, lookup: Section) -> list[Function]:
    section = lookup.ascending
    first = max(0, bisect_right(section.starts, fde.pc_begin_vaddr) - 1)
    places = slice(first, bisect_left(section.starts, fde.pc_end_vaddr))
    return list(map(Function, section.starts[places], section.sizes[places], section.bodies[places]))


def compare_rows(path: Path, version: int, level: Level | None = None, dwarfdump: str | None = None) -> Comparison:
    """Compare a conversion with a reader's rows: each function that is described, in part or not, or left out."""
    fdes = _fdes_of(path, dwarfdump)
    arch, lookup, left_out, in_parts, hole_size, padding = _converted(path, version, level)

    def may_be_absent(row: Row) -> bool:
        return is_hard_to_say(row, arch) if version >= 3 else not is_plain(row, arch)

    problems: list[str] = []
    count: Counter[str] = Counter()
    for fde in fdes:
        if fde.pc_begin_vaddr in left_out:
            count["left out"] += 1
            is_excused = any(map(may_be_absent, fde.rows)) or (version < 3 and fde.ra_column != arch.ra_register)
            if fde.rows and not is_excused:
                problems.append(f"0x{fde.pc_begin_vaddr:x}: left out ({left_out[fde.pc_begin_vaddr]}): {fde.rows}")
            continue
        count["described"] += 1
        if not fde.rows:
            count["untold"] += 1
            continue
        for pc in _points(fde, lookup):
            row, found = row_at(fde.rows, pc), lookup.find(pc)
            if found is None and row is not None and fde.pc_begin_vaddr in in_parts and may_be_absent(row):
                count["points"] += 1
                continue
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            count["points"] += 1
            problem = difference(row, found.row.state, arch, fde.ra_column)
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    # Nothing beyond what the tool shows: as many bytes described as there are in its FDEs, and padding.
    described = {(f.pc_begin_vaddr, f.pc_end_vaddr) for f in fdes if f.pc_begin_vaddr not in left_out}
    said = sum(f.size for f in lookup.functions) - padding + hole_size
    meant = sum(end - begin for begin, end in described)
    if said != meant:
        problems.append(f"{said} bytes are described, the FDEs have {meant}")
    if count["left out"] != len(left_out):
        problems.append(f"{len(left_out)} FDEs are left out, the tool shows {count['left out']} of them")
    return Comparison(problems, count["described"], count["left out"], count["points"], count["untold"])
