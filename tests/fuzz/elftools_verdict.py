# SPDX-License-Identifier: Apache-2.0
"""What pyelftools makes of the CFI of a damaged file, against the section that is made of the same file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe import load
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from cfi2sframe.elf.cfi import CfiSection
from tests.support.oracle.compare import difference, row_at
from tests.support.oracle.elftools_rows import ReaderError, fdes_in
from tests.support.variants import convert_without_stubs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from cfi2sframe.abi import Arch
    from tests.support.oracle.elftools_rows import Fde


class Verdict(NamedTuple):
    """Rows that were compared, and each that differs. `silence` is the reason why nothing could be compared."""

    point_count: int
    problems: tuple[str, ...]
    silence: str = ""


def read_independently(path: Path, section: tuple[bytes, int] | None = None) -> Verdict:
    """Compare the conversion of a linked file, or a section (bytes, address), with pyelftools' rows."""
    image = load(path)
    # Stubs are described by their instructions, of which a reader of CFI knows nothing.
    conversion = convert_without_stubs(image, Options())
    if image.is_relocatable:
        return Verdict(0, (), "an object")
    try:
        fdes = [fde for s in conversion.cfi.sections if isinstance(s, CfiSection) for fde in _fdes(s, image.arch)]
    except ReaderError:
        return Verdict(0, (), "pyelftools raises")
    data, vaddr = section or (conversion.data, conversion.section_vaddr)
    if not data:
        return Verdict(0, (), "nothing but stubs is described")
    lookup = decode(data, vaddr)
    known = {(e.fde.pc_begin_vaddr, e.fde.pc_begin_vaddr + e.fde.pc_range) for e in conversion.cfi.entries}
    absent: set[int] = {entry.fde.pc_begin_vaddr for entry, _ in conversion.skips}
    absent |= {conversion.cfi.entries[n].fde.pc_begin_vaddr for n in conversion.code_map.dropped}
    absent |= {failure.start_vaddr for failure in conversion.cfi.damaged if failure.start_vaddr is not None}
    holes = list(conversion.outcomes.holes(conversion.cfi.entries, conversion.code_map.pieces))
    count, problems = 0, list[str]()
    for fde in _alone(fdes):
        # pyelftools takes the size of a function for a signed number.
        if fde.pc_begin_vaddr in absent or fde.pc_end_vaddr < fde.pc_begin_vaddr:
            continue
        if (fde.pc_begin_vaddr, fde.pc_end_vaddr) not in known:
            # The start of a damaged FDE may be unreadable.
            if not conversion.cfi.damaged:
                problems.append(f"no FDE of 0x{fde.pc_begin_vaddr:x}..0x{fde.pc_end_vaddr:x} was read")
            continue
        for pc in sorted({fde.pc_begin_vaddr, *(row.pc_vaddr for row in fde.rows)}):
            if not fde.pc_begin_vaddr <= pc < fde.pc_end_vaddr:
                continue
            count += 1
            row, found = row_at(fde.rows, pc), lookup.find(pc)
            if found is None and any(start <= pc < end for start, end in holes):
                continue
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            problem = difference(row, found.row.state, image.arch, fde.ra_column)
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    return Verdict(count, tuple(problems))


def _fdes(section: CfiSection, arch: Arch) -> Iterator[Fde]:
    if section.kind != "eh_frame":
        # In `.debug_frame`, pyelftools takes the augmentation data of FDEs for instructions.
        return
    for fde in fdes_in(bytes(section.data), section.vaddr, little_endian=arch.byte_order == "<"):
        if fde.ra_column == arch.ra_register and fde.rows:
            yield fde


def _alone(fdes: Iterable[Fde]) -> Iterator[Fde]:
    """Yield the FDEs that share no address with another one: where two have it, the truth is open."""
    ordered = sorted(fdes, key=lambda fde: fde.pc_begin_vaddr)
    furthest = -1
    for number, fde in enumerate(ordered):
        following = ordered[number + 1].pc_begin_vaddr if number + 1 < len(ordered) else 1 << 64
        if furthest <= fde.pc_begin_vaddr and fde.pc_end_vaddr <= following:
            yield fde
        furthest = max(furthest, fde.pc_end_vaddr)
