# SPDX-License-Identifier: Apache-2.0
"""Parser of the frame tables of `llvm-dwarfdump --eh-frame` or `--debug-frame` (LLVM 14 and later)."""

from __future__ import annotations

import re
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from tests.support.oracle.frames import (
    Arch,
    Cfa,
    Expression,
    NoCfa,
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

_SECTION = re.compile(r"(\.\S*_frame) contents:")
_CIE = re.compile(r"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ CIE$")
_FDE = re.compile(r"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ FDE cie=([0-9a-f]+) pc=([0-9a-f]+)\.\.\.([0-9a-f]+)")
_FIELD = re.compile(r"  (Augmentation|Code alignment factor|Data alignment factor|Return address column): +(.*)")
_ROW = re.compile(r"  (?:0x([0-9a-f]+): )?CFA=(.*)")
_NEXT_REGISTER = re.compile(r", (?=[A-Za-z]\w*=)")
_REGISTER_OFFSET = re.compile(r"([A-Za-z]\w*)([+-]\d+)?")
_CFA_OFFSET = re.compile(r"CFA([+-]\d+)?")


class _Rules(NamedTuple):
    cfa: Cfa
    registers: Mapping[int, Rule]


def _cfa(arch: Arch, text: str) -> Cfa:
    if text == "unspecified":
        return NoCfa()
    match = _REGISTER_OFFSET.fullmatch(text)
    if text.startswith("DW_OP_") or match is None:
        return Expression(text)
    return RegisterOffset(register_number(arch, match[1]), int(match[2] or 0))


def _rule(arch: Arch, text: str) -> Rule:
    match text:
        case "undefined":
            return Rule("undefined")
        case "same":
            return Rule("same_value")
    loaded = text.startswith("[") and text.endswith("]")
    inner = text[1:-1] if loaded else text
    if match := _CFA_OFFSET.fullmatch(inner):
        return Rule("at_cfa" if loaded else "cfa_plus", int(match[1] or 0))
    if inner.startswith("DW_OP_"):
        return Rule("at_expression" if loaded else "expression", 0, inner)
    if not loaded and inner.lstrip("-").isdigit():
        return Rule("constant", int(inner))
    if not loaded and (match := _REGISTER_OFFSET.fullmatch(inner)) and match[2] is None:
        return Rule("register", register_number(arch, inner))
    message = f"no rule: {text!r}"
    raise OracleOutputError(message)


class _Section:
    """Collects the entries of one section; an entry is complete when the next one starts."""

    def __init__(self, name: str, arch: Arch) -> None:
        self.name = name
        self.arch = arch
        self.cies: list[OracleCie] = []
        self.fdes: list[OracleFde] = []
        self._rows: list[OracleRow] = []
        self._fields: dict[str, str] = {}
        self._cie_offset: int | None = None
        self._fde: OracleFde | None = None
        self._known: dict[str, _Rules] = {}

    def start_cie(self, match: re.Match[str]) -> None:
        self.close_entry()
        self._cie_offset = int(match[1], 16)

    def start_fde(self, match: re.Match[str]) -> None:
        self.close_entry()
        offset, cie_offset, pc_begin, pc_end = (int(field, 16) for field in match.groups())
        self._fde = OracleFde(offset, cie_offset, pc_begin, pc_end, ())

    def add_field(self, name: str, value: str) -> None:
        self._fields[name] = value

    def add_row(self, address: str | None, text: str) -> None:
        rules = self._known.get(text)
        if rules is None:
            rules = self._known[text] = self._read(text)
        self._rows.append(OracleRow(int(address or "0", 16), rules.cfa, rules.registers))

    def _read(self, text: str) -> _Rules:
        cfa, _, rest = text.partition(": ")
        registers: dict[int, Rule] = {}
        for part in _NEXT_REGISTER.split(rest) if rest else ():
            name, _, rule = part.partition("=")
            registers[register_number(self.arch, name)] = _rule(self.arch, rule)
        return _Rules(_cfa(self.arch, cfa), MappingProxyType(registers))

    def close_entry(self) -> None:
        if self._cie_offset is not None:
            self.cies.append(
                OracleCie(
                    self._cie_offset,
                    self._fields["Augmentation"].strip('"'),
                    int(self._fields["Code alignment factor"]),
                    int(self._fields["Data alignment factor"]),
                    int(self._fields["Return address column"]),
                    self._rows[0] if self._rows else None,
                )
            )
        if self._fde is not None:
            # The reason is on the tool's error stream, without a hint at the FDE it belongs to.
            problem = "" if self._rows else "llvm-dwarfdump made no rows"
            self.fdes.append(self._fde._replace(rows=tuple(self._rows), problem=problem))
        self._rows.clear()
        self._fields.clear()
        self._cie_offset = self._fde = None

    def finish(self) -> OracleSection:
        self.close_entry()
        return OracleSection(self.name, tuple(self.cies), tuple(self.fdes))


def parse_llvm_frames(lines: Iterable[str], arch: Arch) -> tuple[OracleSection, ...]:
    """Parse the lines of llvm-dwarfdump into the frame sections they show, in their order.

    Unlike in readelf's tables, a register without a rule is missing from a row.
    Raises OracleOutputError for a rule or a register that the parser does not know.
    """
    sections: list[_Section] = []
    section: _Section | None = None
    for raw in lines:
        line = raw.rstrip()
        if not line or line.startswith("  DW_CFA_"):
            continue
        if match := _SECTION.match(line):
            section = _Section(match[1], arch)
            sections.append(section)
        elif section is None:
            continue
        elif match := _ROW.match(line):
            section.add_row(match[1], match[2])
        elif match := _FDE.match(line):
            section.start_fde(match)
        elif match := _CIE.match(line):
            section.start_cie(match)
        elif match := _FIELD.match(line):
            section.add_field(match[1], match[2])
    return tuple(section.finish() for section in sections)
