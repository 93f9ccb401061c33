# SPDX-License-Identifier: Apache-2.0
"""Parser of the interpreted frame tables of GNU readelf (`readelf -wF`, binutils 2.40 to 2.47)."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tests.support.oracle.frames import (
    Arch,
    Cfa,
    Expression,
    OracleCie,
    OracleFde,
    OracleOutputError,
    OracleRow,
    OracleSection,
    RegisterOffset,
    Rule,
    register_number,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_SECTION = re.compile(r"Contents of the (\S*(?:eh|debug)_frame\S*) section")
_CIE = re.compile(r'([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ CIE "(.*)" cf=(-?\d+) df=(-?\d+) ra=(\d+)')
_FDE = re.compile(r"([0-9a-f]+) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_REGISTER_OFFSET = re.compile(r"(.+?)([+-]\d+)")
_CELL = re.compile(r"\S+ \([^)]*\)|\S+")


class _Rules(NamedTuple):
    cfa: Cfa
    registers: Mapping[int, Rule]


class _Table:
    """The rows of the CIE or FDE that is being read, and the columns that it announced."""

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.ra_register = -1
        self.columns: tuple[int, ...] = ()
        self.rows: list[OracleRow] = []
        self._known: dict[tuple[tuple[int, ...], str], _Rules] = {}

    def announce(self, line: str) -> None:
        names = line.split()[2:]
        self.columns = tuple(self.ra_register if n == "ra" else register_number(self.arch, n) for n in names)

    def add(self, line: str) -> None:
        address, _, cells = line.partition(" ")
        key = (self.columns, cells)
        rules = self._known.get(key)
        if rules is None:
            rules = self._known[key] = self._read(cells)
        self.rows.append(OracleRow(int(address, 16), rules.cfa, rules.registers))

    def take(self) -> tuple[OracleRow, ...]:
        rows = tuple(self.rows)
        self.rows.clear()
        return rows

    def _read(self, cells: str) -> _Rules:
        cfa, *rules = _CELL.findall(cells)
        if len(rules) != len(self.columns):
            message = f"{len(rules)} cells for {len(self.columns)} columns: {cells!r}"
            raise OracleOutputError(message)
        registers = {number: _rule(self.arch, cell) for number, cell in zip(self.columns, rules, strict=True)}
        return _Rules(_cfa(self.arch, cfa), MappingProxyType(registers))


def _cfa(arch: Arch, cell: str) -> Cfa:
    if cell == "exp":
        return Expression("")
    match = _REGISTER_OFFSET.fullmatch(cell)
    if match is None:
        message = f"no CFA: {cell!r}"
        raise OracleOutputError(message)
    return RegisterOffset(register_number(arch, match[1]), int(match[2]))


def _rule(arch: Arch, cell: str) -> Rule:
    match cell:
        case "u":
            return Rule("undefined")
        case "s":
            return Rule("same_value")
        case "exp":
            return Rule("at_expression")
        case "vexp":
            return Rule("expression")
    if cell[:2] in ("c+", "c-"):
        return Rule("at_cfa", int(cell[1:]))
    if cell[:2] in ("v+", "v-"):
        return Rule("cfa_plus", int(cell[1:]))
    # A register stands as "r16 (f0)", or as its bare number or name where it has one spelling only.
    return Rule("register", register_number(arch, cell.partition(" ")[0]))


class _Section:
    """Collects the entries of one section; an entry is complete when the next one starts."""

    def __init__(self, name: str, arch: Arch) -> None:
        self.name = name
        self.table = _Table(arch)
        self.cies: dict[int, OracleCie] = {}
        self.fdes: list[OracleFde] = []
        self._cie: OracleCie | None = None
        self._fde: OracleFde | None = None

    def start_cie(self, match: re.Match[str]) -> None:
        self.close_entry()
        offset, augmentation, code_alignment, data_alignment, ra_register = match.groups()
        self._cie = OracleCie(
            int(offset, 16), augmentation, int(code_alignment), int(data_alignment), int(ra_register), None
        )
        self.table.ra_register = int(ra_register)

    def start_fde(self, match: re.Match[str]) -> None:
        self.close_entry()
        offset, cie_offset, pc_begin, pc_end = (int(field, 16) for field in match.groups())
        self._fde = OracleFde(offset, cie_offset, pc_begin, pc_end, ())
        # A CIE after its FDE is unknown here; readelf names the column by the same rule then.
        if (cie := self.cies.get(cie_offset)) is not None:
            self.table.ra_register = cie.ra_register

    def close_entry(self) -> None:
        rows = self.table.take()
        if self._cie is not None:
            self.cies[self._cie.section_offset] = self._cie._replace(row=rows[0] if rows else None)
        if self._fde is not None:
            self.fdes.append(self._fde._replace(rows=rows))
        self._cie = self._fde = None

    def finish(self) -> OracleSection:
        self.close_entry()
        return OracleSection(
            self.name, tuple(self.cies.values()), tuple(_with_cie_row(fde, self.cies) for fde in self.fdes)
        )


def _with_cie_row(fde: OracleFde, cies: Mapping[int, OracleCie]) -> OracleFde:
    """Give an FDE without rows its CIE's row: readelf prints none for an FDE of nothing but padding."""
    cie = cies.get(fde.cie_offset)
    if fde.rows or cie is None or cie.row is None:
        return fde
    return fde._replace(rows=(cie.row._replace(pc_vaddr=fde.pc_begin_vaddr),))


def parse_readelf_frames(lines: Iterable[str], arch: Arch) -> tuple[OracleSection, ...]:
    """Parse the lines of `readelf -wF` into the frame sections they show, in their order.

    A register that a section's table shows as "u" has the rule `undefined`, whether the CFI has that rule or
    none.
    Raises OracleOutputError for a cell or a register that the parser does not know.
    """
    sections: list[_Section] = []
    section: _Section | None = None
    for raw in lines:
        line = raw.rstrip()
        if not line:
            continue
        if section is not None and line[0] in "0123456789abcdef":
            if " FDE " in line:
                if match := _FDE.match(line):
                    section.start_fde(match)
            elif " CIE " in line:
                if match := _CIE.match(line):
                    section.start_cie(match)
            elif "ZERO terminator" not in line:
                section.table.add(line)
        elif section is not None and line.startswith("   LOC"):
            section.table.announce(line)
        elif line.startswith("Contents of the "):
            match = _SECTION.match(line)
            section = _Section(match[1], arch) if match and "_frame_hdr" not in match[1] else None
            if section is not None:
                sections.append(section)
    return tuple(section.finish() for section in sections)
