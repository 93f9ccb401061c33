# SPDX-License-Identifier: Apache-2.0
"""A linked file's conversion against what another reader makes of the same CFI, at every boundary of either."""

from __future__ import annotations

import subprocess
from bisect import bisect_left, bisect_right
from collections import Counter
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe import Lookup, Options, account, convert, decode, load
from tests.support.oracle.compare import difference, is_hard_to_say, is_plain, row_at
from tests.support.oracle.llvm_frames import parse_llvm_frames
from tests.support.oracle.readelf_frames import parse_readelf_frames

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from cfi2sframe.conversion import Level
    from cfi2sframe.lower import Skip
    from cfi2sframe.sframe.decode import DecodedFunction
    from tests.support.oracle.frames import Arch as ArchName
    from tests.support.oracle.frames import OracleFde

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


@lru_cache(maxsize=1)
def _converted(path: Path, version: int, level: Level | None) -> tuple[Arch, Lookup, dict[int, Skip], int]:
    """Return the decoded conversion, what was left out by its address, and the bytes of padding that are described."""
    # Stubs are described by their instructions, of which a reader of CFI knows nothing.
    conversion = convert(load(path), Options(version=version, errata=2, with_stubs=False, level=level))
    left_out = {entry.fde.pc_begin_vaddr: skip for entry, skip in conversion.left_out}
    lookup = Lookup(decode(conversion.data, conversion.section_vaddr))
    return conversion.target.arch, lookup, left_out, account(conversion).bytes.padding


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
    """Compare a conversion with a reader's rows: each function that is described, and each that is left out."""
    fdes = fdes_of(reader, path, arch_name)
    arch, lookup, left_out, padding = _converted(path, version, level)
    problems: list[str] = []
    count: Counter[str] = Counter()
    for fde, ra_column in fdes:
        assert not fde.problem, hex(fde.pc_begin_vaddr)
        if fde.pc_begin_vaddr in left_out:
            count["left out"] += 1
            is_excused = ra_column != arch.ra_register or any(
                is_hard_to_say(row, arch) if version >= 3 else not is_plain(row, arch) for row in fde.rows
            )
            if not is_excused:
                problems.append(f"0x{fde.pc_begin_vaddr:x}: left out ({left_out[fde.pc_begin_vaddr]}): {fde.rows}")
            continue
        count["described"] += 1
        for pc in _points(fde, lookup):
            row, found = row_at(fde.rows, pc), lookup.find(pc)
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            count["points"] += 1
            shows_unsaid = reader.printer == "llvm-dwarfdump"
            problem = difference(row, found.row.row.state, shows_unsaid=shows_unsaid, arch=arch)
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    # Nothing beyond what the tool shows: as many bytes described as there are in its FDEs, and padding.
    described = {(f.pc_begin_vaddr, f.pc_end_vaddr) for f, _ in fdes if f.pc_begin_vaddr not in left_out}
    said, meant = sum(f.size for f in lookup.functions) - padding, sum(end - begin for begin, end in described)
    if said != meant:
        problems.append(f"{said} bytes are described, the FDEs have {meant}")
    if count["left out"] != len(left_out):
        problems.append(f"{len(left_out)} FDEs are left out, the tool shows {count['left out']} of them")
    return Comparison(problems, count["described"], count["left out"], count["points"])
