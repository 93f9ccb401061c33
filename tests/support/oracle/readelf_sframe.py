# SPDX-License-Identifier: Apache-2.0
"""Parser of `readelf --sframe` (binutils 2.40: version 1, to 2.45: version 2, later: 2 and 3)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, NamedTuple

from tests.support.oracle.frames import OracleOutputError

if TYPE_CHECKING:
    from collections.abc import Iterable

_FUNCTION = re.compile(r"    func idx \[(\d+)\]: pc = 0x([0-9a-f]+), size = (-?\d+) bytes(.*)")
_ATTRIBUTES = re.compile(r', attr = "([^"]*)"|, pauth = (.+)')
_ROW = re.compile(r"    ([0-9a-f]{16,}) +(.*)")
# Columns have fixed widths: a wide CFA touches the next column.
_CELL = re.compile(r"(?:\(?(?:sp|fp|c|r\d+)[+-]\d+\)?|r\d+|[fuU])(?:\[s\])?")


class OracleSframeRow(NamedTuple):
    """One row as the tool prints it.

    The start is an address, and in a PCMASK function an offset in the repeating block. The texts are the
    tool's: `sp+8`, `c-16`, `r10+0`, `(fp-8)`, `r16` (in a register, version 2), `u` (no rule), `f` (fixed by the
    header), `U` (padding of a flexible row). A row "RA undefined" has empty texts.
    """

    pc_vaddr: int
    cfa: str
    fp: str
    ra: str
    ra_mangled: bool
    ra_undefined: bool


class OracleSframeFunction(NamedTuple):
    """One function record and its number in the table; the size is in bytes."""

    number: int
    pc_vaddr: int
    size: int
    pc_type: Literal["PCINC", "PCMASK"]
    flexible: bool
    signal_frame: bool
    pauth_b_key: bool
    rows: tuple[OracleSframeRow, ...]


class OracleSframe(NamedTuple):
    """One SFrame section; a fixed offset (bytes from the CFA) is None where the tool prints none."""

    version: int
    flags: frozenset[str]
    cfa_fixed_fp_offset: int | None
    cfa_fixed_ra_offset: int | None
    fde_count: int
    fre_count: int
    functions: tuple[OracleSframeFunction, ...]


def _header(lines: list[str]) -> dict[str, str]:
    """Fields of the header by their names; a list of flags goes over several lines."""
    fields: dict[str, str] = {}
    name = ""
    for line in lines:
        head, colon, value = line.partition(":")
        if colon and head.strip():
            name = head.strip()
            fields[name] = value.strip()
        elif name:
            fields[name] += " " + line.strip()
    return fields


def _flags(text: str) -> frozenset[str]:
    return frozenset(text.replace(",", " ").split()) - {"NONE"}


def _row(line: str) -> OracleSframeRow:
    match = _ROW.fullmatch(line)
    if match is None:
        message = f"no row: {line!r}"
        raise OracleOutputError(message)
    pc_vaddr = int(match[1], 16)
    if match[2] == "RA undefined":
        return OracleSframeRow(pc_vaddr, "", "", "", ra_mangled=False, ra_undefined=True)
    # It writes a plus in front of any CFA offset: `sp+-16`.
    text = match[2].replace("+-", "-")
    cells = _CELL.findall(text)
    if len(cells) != 3 or "".join(cells) != text.replace(" ", ""):
        message = f"{len(cells)} cells instead of CFA, FP, RA: {line!r}"
        raise OracleOutputError(message)
    cfa, fp, ra = cells
    mangled = ra.endswith("[s]")
    return OracleSframeRow(pc_vaddr, cfa, fp, ra.removesuffix("[s]"), mangled, ra_undefined=False)


def _function(lines: list[str]) -> OracleSframeFunction:
    match = _FUNCTION.fullmatch(lines[0])
    if match is None:
        message = f"no function: {lines[0]!r}"
        raise OracleOutputError(message)
    attributes = "".join(letters for letters, _ in _ATTRIBUTES.findall(match[4]))
    rows = [line for line in lines[1:] if not line.lstrip().startswith("STARTPC")]
    return OracleSframeFunction(
        number=int(match[1]),
        pc_vaddr=int(match[2], 16),
        size=int(match[3]),
        pc_type="PCMASK" if any("STARTPC[m]" in line for line in lines[1:2]) else "PCINC",
        flexible="F" in attributes,
        signal_frame="S" in attributes,
        pauth_b_key="B key" in match[4],
        rows=tuple(_row(line) for line in rows),
    )


def parse_readelf_sframe(lines: Iterable[str]) -> OracleSframe:
    """Parse the lines of `readelf --sframe` for a file with one SFrame section.

    Raises OracleOutputError when the section is missing, unreadable to the tool (readelf says so on its error
    stream and may still exit with 0), or printed in a way that the parser does not know.
    """
    kept = [line.rstrip() for line in lines if line.strip()]
    marks = {
        line.strip(): number for number, line in enumerate(kept) if line.strip() in ("Header :", "Function Index :")
    }
    if set(marks) != {"Header :", "Function Index :"}:
        message = "readelf shows no SFrame section"
        raise OracleOutputError(message)
    fields = _header(kept[marks["Header :"] + 1 : marks["Function Index :"]])
    body = kept[marks["Function Index :"] + 1 :]
    starts = [number for number, line in enumerate(body) if line.startswith("    func idx")]
    ends = [*starts[1:], len(body)] if starts else []
    fp_offset, ra_offset = fields.get("CFA fixed FP offset"), fields.get("CFA fixed RA offset")
    return OracleSframe(
        version=int(fields["Version"].removeprefix("SFRAME_VERSION_")),
        flags=_flags(fields["Flags"]),
        cfa_fixed_fp_offset=None if fp_offset is None else int(fp_offset),
        cfa_fixed_ra_offset=None if ra_offset is None else int(ra_offset),
        fde_count=int(fields["Num FDEs"]),
        fre_count=int(fields["Num FREs"]),
        functions=tuple(_function(body[start:end]) for start, end in zip(starts, ends, strict=True)),
    )
