# SPDX-License-Identifier: Apache-2.0
"""A linked file's conversion against what another reader makes of the same CFI, at every boundary of either."""

from __future__ import annotations

import subprocess
from bisect import bisect_left, bisect_right
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe import Lookup, Options, account, decode, load
from tests.support.oracle.compare import difference, is_hard_to_say, is_plain, row_at
from tests.support.oracle.llvm_frames import parse_llvm_frames
from tests.support.oracle.readelf_frames import parse_readelf_frames
from tests.support.variants import convert_without_stubs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from cfi2sframe.conversion import Level
    from cfi2sframe.lower import Skip
    from cfi2sframe.sframe.decode import DecodedFunction
    from tests.support.oracle.frames import Arch as ArchName
    from tests.support.oracle.frames import OracleFde, OracleRow

Printer = Literal["readelf", "llvm-dwarfdump"]


class Reader(NamedTuple):
    """A program that prints rows."""

    printer: Printer
    path: str


class Comparison(NamedTuple):
    """What was found: every problem as text; how many FDEs are described and left out, and PCs were compared."""

    problems: list[str]
    described: int
    left_out: int
    points: int


@lru_cache(maxsize=2)
def fdes_of(reader: Reader, path: Path, arch: ArchName) -> tuple[tuple[OracleFde, int], ...]:
    """Return the FDEs of a file as a reader prints them, each with the column that its CIE has for RA."""
    # N: not the separate debug file, whose .eh_frame has no bytes.
    option = "-wNF" if reader.printer == "readelf" else "--eh-frame"
    output = subprocess.run([reader.path, option, str(path)], capture_output=True, text=True, check=True).stdout
    parse = parse_readelf_frames if reader.printer == "readelf" else parse_llvm_frames
    sections = [s for s in parse(output.splitlines(), arch) if s.name == ".eh_frame"]
    assert len(sections) == 1
    columns = {cie.section_offset: cie.ra_register for cie in sections[0].cies}
    return tuple((fde, columns[fde.cie_offset]) for fde in sections[0].fdes)


class _Converted(NamedTuple):
    """A decoded conversion; by address, what was left out and what is described in part; and bytes.

    `hole_size` counts those in the holes of functions that are described in part, `padding` the padding described.
    """

    arch: Arch
    lookup: Lookup
    left_out: dict[int, Skip]
    in_parts: frozenset[int]
    hole_size: int
    padding: int


@lru_cache(maxsize=1)
def _converted(path: Path, version: int, level: Level | None) -> _Converted:
    """Return the decoded conversion, and what it leaves out."""
    conversion = convert_without_stubs(load(path), Options(version=version, errata=2, level=level))
    left_out = {entry.fde.pc_begin_vaddr: skip for entry, skip in conversion.left_out}
    in_parts = frozenset(entry.fde.pc_begin_vaddr for entry, _ in conversion.in_parts)
    lookup = Lookup(decode(conversion.data, conversion.section_vaddr))
    coverage = account(conversion)
    hole_size = sum(counts.bytes for counts in coverage.holes.values())
    return _Converted(conversion.target.arch, lookup, left_out, in_parts, hole_size, coverage.bytes.padding)


def _points(fde: OracleFde, lookup: Lookup) -> Iterator[int]:
    """Every address at which either side may change, within the FDE."""
    points = {fde.pc_begin_vaddr, *(row.pc_vaddr for row in fde.rows)}
    for function in _functions_in(fde, lookup):
        points.update(function.start_vaddr + row.row.start_delta for row in function.rows)
        points.add(function.start_vaddr + function.size)
    yield from sorted(p for p in points if fde.pc_begin_vaddr <= p < fde.pc_end_vaddr)


def _functions_in(fde: OracleFde, lookup: Lookup) -> list[DecodedFunction]:
    first = max(0, bisect_right(lookup.starts, fde.pc_begin_vaddr) - 1)
    return [lookup.function_at(place) for place in range(first, bisect_left(lookup.starts, fde.pc_end_vaddr))]


def compare_rows(
    reader: Reader, path: Path, version: int, arch_name: ArchName, level: Level | None = None
) -> Comparison:
    """Compare a conversion with a reader's rows: each function that is described, in part or not, or left out."""
    fdes = fdes_of(reader, path, arch_name)
    arch, lookup, left_out, in_parts, hole_size, padding = _converted(path, version, level)

    def may_be_absent(row: OracleRow) -> bool:
        return is_hard_to_say(row, arch) if version >= 3 else not is_plain(row, arch)

    problems: list[str] = []
    count: Counter[str] = Counter()
    for fde, ra_column in fdes:
        assert not fde.problem, hex(fde.pc_begin_vaddr)
        if fde.pc_begin_vaddr in left_out:
            count["left out"] += 1
            is_excused = any(map(may_be_absent, fde.rows)) or (version < 3 and ra_column != arch.ra_register)
            if not is_excused:
                problems.append(f"0x{fde.pc_begin_vaddr:x}: left out ({left_out[fde.pc_begin_vaddr]}): {fde.rows}")
            continue
        count["described"] += 1
        for pc in _points(fde, lookup):
            row, found = row_at(fde.rows, pc), lookup.find(pc)
            if found is None and row is not None and fde.pc_begin_vaddr in in_parts and may_be_absent(row):
                count["points"] += 1
                continue
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            count["points"] += 1
            shows_unsaid = reader.printer == "llvm-dwarfdump"
            problem = difference(row, found.row.row.state, shows_unsaid=shows_unsaid, arch=arch, ra_column=ra_column)
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    # Nothing beyond what the tool shows: as many bytes described as there are in its FDEs, and padding.
    described = {(f.pc_begin_vaddr, f.pc_end_vaddr) for f, _ in fdes if f.pc_begin_vaddr not in left_out}
    said = sum(f.size for f in lookup.functions) - padding + hole_size
    meant = sum(end - begin for begin, end in described)
    if said != meant:
        problems.append(f"{said} bytes are described, the FDEs have {meant}")
    if count["left out"] != len(left_out):
        problems.append(f"{len(left_out)} FDEs are left out, the tool shows {count['left out']} of them")
    return Comparison(problems, count["described"], count["left out"], count["points"])
