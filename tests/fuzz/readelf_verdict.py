# SPDX-License-Identifier: Apache-2.0
"""What GNU readelf makes of the CFI of a damaged file, against the section that is made of the same file."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import Lookup, Options, decode, load
from tests.support.oracle.compare import difference, row_at
from tests.support.oracle.frames import OracleOutputError
from tests.support.oracle.readelf_frames import parse_readelf_frames
from tests.support.variants import convert_without_stubs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from tests.support.oracle.frames import Arch as ArchName
    from tests.support.oracle.frames import OracleFde, OracleSection

_ENTRY: Final = re.compile(r'[0-9a-f]+ [0-9a-f]+ [0-9a-f]+ (FDE cie=[0-9a-f]+ pc=[0-9a-f]+\.\.[0-9a-f]+|CIE ".*" cf=)')
_ARCH_NAMES: Final[dict[str, ArchName]] = {"AMD64": "amd64", "s390x": "s390x", "AArch64": "aarch64"}


class Verdict(NamedTuple):
    """Rows that were compared, and each that differs. `silence` is the reason why nothing could be compared."""

    point_count: int
    problems: tuple[str, ...]
    silence: str = ""


def read_independently(readelf: str, path: Path, section: tuple[bytes, int] | None = None) -> Verdict:
    """Compare the conversion of a linked file with readelf's rows; `section` (bytes, address) instead, where given."""
    image = load(path)
    conversion = convert_without_stubs(image, Options())
    arch_name = _ARCH_NAMES.get(image.arch.name)
    if image.is_relocatable or arch_name is None:
        return Verdict(0, (), "an object, or an ABI without a parser")
    shown = _frames(readelf, path, arch_name)
    if isinstance(shown, str):
        return Verdict(0, (), shown)
    data, vaddr = section or (conversion.data, conversion.section_vaddr)
    if not data:
        return Verdict(0, (), "nothing but stubs is described")
    lookup = Lookup(decode(data, vaddr))
    known = {(e.fde.pc_begin_vaddr, e.fde.pc_begin_vaddr + e.fde.pc_range) for e in conversion.cfi.entries}
    absent: set[int] = {entry.fde.pc_begin_vaddr for entry, _ in conversion.left_out}
    absent |= {conversion.cfi.entries[n].fde.pc_begin_vaddr for n in conversion.code_map.dropped}
    absent |= {failure.start_vaddr for failure in conversion.cfi.damaged if failure.start_vaddr is not None}
    names = {s.name for s in conversion.cfi.sections}
    holes = list(conversion.outcomes.holes(conversion.cfi.entries, conversion.code_map.pieces))
    count, problems = 0, list[str]()
    for fde in _alone(_fdes(shown, names, image.arch)):
        if fde.pc_begin_vaddr in absent:
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
            if found is None and any(hole.start_vaddr <= pc < hole.end_vaddr for hole in holes):
                continue
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            problem = difference(row, found.row.row.state, shows_unsaid=False, arch=image.arch)
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    return Verdict(count, tuple(problems))


def _frames(readelf: str, path: Path, arch_name: ArchName) -> tuple[OracleSection, ...] | str:
    """Return what readelf shows, or why it is of no use: where it has complaints, it reads on from a guess."""
    command = [readelf, "-wNF", str(path)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        return "readelf takes too long"
    if done.returncode or done.stderr:
        return "readelf complains"
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    if any((" FDE " in line or " CIE " in line) and not _ENTRY.match(line) for line in lines):
        # What stands there instead of an entry's head would give its rows to the entry before it.
        return "readelf shows a damaged entry"
    try:
        return parse_readelf_frames(lines, arch_name)
    except OracleOutputError as error:
        return f"readelf shows what its parser does not know: {error}"


def _fdes(sections: tuple[OracleSection, ...], names: set[str], arch: Arch) -> Iterator[OracleFde]:
    for section in sections:
        if section.name in names:
            columns = {cie.section_offset: cie.ra_register for cie in section.cies}
            yield from (fde for fde in section.fdes if columns.get(fde.cie_offset) == arch.ra_register)


def _alone(fdes: Iterator[OracleFde]) -> Iterator[OracleFde]:
    """Yield the FDEs that share no address with another one: where two have it, the truth is open."""
    ordered = sorted(fdes, key=lambda fde: fde.pc_begin_vaddr)
    furthest = -1
    for number, fde in enumerate(ordered):
        following = ordered[number + 1].pc_begin_vaddr if number + 1 < len(ordered) else 1 << 64
        if furthest <= fde.pc_begin_vaddr and fde.pc_end_vaddr <= following:
            yield fde
        furthest = max(furthest, fde.pc_end_vaddr)
