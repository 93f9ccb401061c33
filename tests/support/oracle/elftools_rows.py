# SPDX-License-Identifier: Apache-2.0
"""Rows of CFI as pyelftools decodes them, and as llvm-dwarfdump prints them for the FDEs that pyelftools gets wrong.

A record repeats a reader's answer and judges nothing. Registers are DWARF numbers; addresses are the reader's own.
"""

from __future__ import annotations

import re
import struct
import subprocess
from functools import cache
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from elftools.dwarf.callframe import FDE, CallFrameInfo
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

RuleKind = Literal["undefined", "same_value", "at_cfa", "cfa_plus", "register", "at_expression", "expression"]

#: What `known_wrong` has against pyelftools: GNU_args_size, def_cfa_sf; AARCH64_negate_ra_state is read over.
_WRONG: Final = frozenset({0x2E, 0x12})
_READ_OVER: Final = 0x2D
#: DWARF's pseudo register for the state of AArch64's RA.
_RA_SIGN_STATE: Final = 34
_KINDS: Final[dict[str, RuleKind]] = {
    "UNDEFINED": "undefined",
    "SAME_VALUE": "same_value",
    "OFFSET": "at_cfa",
    "VAL_OFFSET": "cfa_plus",
    "REGISTER": "register",
    "EXPRESSION": "at_expression",
    "VAL_EXPRESSION": "expression",
}


class ReaderError(ValueError):
    """A reader raises on a section, or prints something in a form that is not known."""


class Expression(NamedTuple):
    """CFA = value of a DWARF expression; no bytes where the reader does not tell them."""

    code: bytes | None


class Cfa(NamedTuple):
    """CFA = register + offset, in bytes."""

    register: int
    offset: int


class Rule(NamedTuple):
    """Where the caller's value of one register is; `value` depends on the kind: bytes or a register's number."""

    kind: RuleKind
    value: int = 0
    code: bytes | None = None


class Row(NamedTuple):
    """From `pc_vaddr` on these rules hold; a register without a rule is missing. No CFA: none is defined.

    `is_signed` is None where the reader does not tell.
    """

    pc_vaddr: int
    cfa: Cfa | Expression | None
    registers: Mapping[int, Rule]
    is_signed: bool | None = False


class Fde(NamedTuple):
    """One FDE; it has no rows where no reader that is here is right about it. `ra_column` is the CIE's."""

    section_offset: int
    pc_begin_vaddr: int
    pc_end_vaddr: int
    ra_column: int
    rows: tuple[Row, ...]

    @property
    def is_told(self) -> bool:
        """Whether the rows tell all that there is."""
        return self.rows != () and self.rows[0].is_signed is not None


def fdes_of(path: Path, dwarfdump: str | None = None) -> tuple[Fde, ...]:
    """Return the FDEs of a file's `.eh_frame`. Raises `ReaderError` where pyelftools cannot read the section.

    `dwarfdump` is LLVM's program, which decides what pyelftools is known to be wrong about. Relocations are not
    applied: of an object, only what is counted from a function's start has a meaning.
    """
    with path.open("rb") as file:
        elf = ELFFile(file)
        section: Any = elf.get_section_by_name(".eh_frame")
        fdes = tuple(fdes_in(section.data(), section["sh_addr"], little_endian=elf.little_endian))
    if dwarfdump is None or all(fde.is_told for fde in fdes):
        return fdes
    printed = dict(_llvm_rows(dwarfdump, path))
    # It prints no rows of an FDE with an opcode that it takes for another ABI's.
    return tuple(fde if fde.is_told else fde._replace(rows=printed.get(fde.section_offset, fde.rows)) for fde in fdes)


# In-process: pyelftools


def fdes_in(data: bytes, vaddr: int, *, little_endian: bool) -> Iterator[Fde]:
    """Yield the FDEs of an `.eh_frame` that pyelftools can read. Raises `ReaderError` where it fails and reads none."""
    structs = DWARFStructs(little_endian=little_endian, dwarf_format=32, address_size=8)
    frames = CallFrameInfo(BytesIO(data), len(data), vaddr, structs, for_eh_frame=True)
    failure: Exception | None = None
    read = False
    for offset in _entry_offsets(data, "<" if little_endian else ">"):
        try:
            # One entry after the other: `get_entries` ends at the first that is damaged.
            entry: Any = frames._parse_entry_at(offset)
            if isinstance(entry, FDE) and entry.cie is not None:
                begin, ra_column = entry["initial_location"], entry.cie["return_address_register"]
                fde = Fde(entry.offset, begin, begin + entry["address_range"], ra_column, _elftools_rows(entry))
                read = True
                yield fde
        except Exception as error:  # noqa: BLE001 - it raises whatever its code runs into
            failure = error
    if failure is not None and not read:
        raise ReaderError(f"pyelftools: {failure!r}") from failure


def _entry_offsets(data: bytes, byte_order: str) -> Iterator[int]:
    offset = 0
    while offset + 4 <= len(data):
        (size,) = struct.unpack_from(f"{byte_order}I", data, offset)
        wide = size == 0xFFFFFFFF
        if wide and offset + 12 <= len(data):
            (size,) = struct.unpack_from(f"{byte_order}Q", data, offset + 4)
        if size:
            yield offset
        offset += size + (12 if wide else 4)


def _elftools_rows(entry: Any) -> tuple[Row, ...]:  # noqa: ANN401 - pyelftools checks its types by itself
    codes = {int(each.opcode) for each in (*entry.cie.instructions, *entry.instructions)}
    if codes & _WRONG:
        return ()
    # The last row is missing where it has an expression for the CFA, and no rule for a register. Those of a CIE stay.
    if 0x0F in codes and not entry.cie.get_decoded().reg_order:
        return ()
    table = entry.get_decoded()
    is_signed = None if _READ_OVER in codes else False
    return tuple(
        Row(
            line["pc"],
            _elftools_cfa(line["cfa"]),
            {n: _elftools_rule(rule) for n, rule in line.items() if isinstance(n, int)},
            is_signed,
        )
        for line in table.table
    )


def _elftools_cfa(rule: Any) -> Cfa | Expression | None:  # noqa: ANN401
    if rule.expr is not None:
        return Expression(bytes(rule.expr))
    return None if rule.reg is None else Cfa(rule.reg, rule.offset)


def _elftools_rule(rule: Any) -> Rule:  # noqa: ANN401
    if "EXPRESSION" in rule.type:
        return Rule(_KINDS[rule.type], 0, bytes(rule.arg))
    return Rule(_KINDS[rule.type], rule.arg or 0)


# What LLVM prints (14 and later); expressions are not read

_ENTRY: Final = re.compile(r"([0-9a-f]{8,}) [0-9a-f]+ [0-9a-f]+ (?:CIE$|FDE cie=[0-9a-f]+ pc=)")
_ROW: Final = re.compile(r"  0x([0-9a-f]+): CFA=(.*)")
_NEXT_REGISTER: Final = re.compile(r", (?=[A-Za-z]\w*=)")
_SUM: Final = re.compile(r"([A-Za-z]\w*)([+-]\d+)?")
#: s390x numbers its floating point registers in the order of their pairs.
_PAIRS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
_NAMES: Final = {
    **{name: number for number, name in enumerate(("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP"))},
    **{f"W{number}": number for number in range(31)},
    **{f"R{number}D": number for number in range(16)},
    **{f"F{number}D": 16 + place for place, number in enumerate(_PAIRS)},
    "RIP": 16,
    "WSP": 31,
}


def _llvm_rows(program: str, path: Path) -> Iterator[tuple[int, tuple[Row, ...]]]:
    """Yield each FDE's offset in the section, and its rows."""
    # It fails for one bad entry, whose rows are missing then.
    done = subprocess.run([program, "--eh-frame", path], capture_output=True, text=True, check=False)
    offset, rows = -1, list[Row]()
    for line in done.stdout.splitlines():
        if match := _ROW.match(line):
            rows.append(_llvm_row(int(match[1], 16), match[2]))
        elif match := _ENTRY.match(line):
            if rows:
                yield offset, tuple(rows)
            offset, rows = int(match[1], 16), []
    if rows:
        yield offset, tuple(rows)


def _llvm_row(pc_vaddr: int, text: str) -> Row:
    cfa, _, rest = text.partition(": ")
    parts = (part.partition("=") for part in _NEXT_REGISTER.split(rest) if part)
    texts = {_register(name): rule for name, _, rule in parts}
    is_signed = texts.pop(_RA_SIGN_STATE, "0") == "1"
    return Row(pc_vaddr, _llvm_cfa(cfa), {number: _llvm_rule(rule) for number, rule in texts.items()}, is_signed)


def _llvm_cfa(text: str) -> Cfa | Expression | None:
    match = _SUM.fullmatch(text)
    if text == "unspecified" or match is None or text.startswith("DW_OP_"):
        return None if text == "unspecified" else Expression(None)
    return Cfa(_register(match[1]), int(match[2] or 0))


def _llvm_rule(text: str) -> Rule:
    inner = text.strip("[]")
    is_loaded = inner != text
    if text in ("undefined", "same"):
        return Rule("undefined" if text == "undefined" else "same_value")
    if match := re.fullmatch(r"CFA([+-]\d+)?", inner):
        return Rule("at_cfa" if is_loaded else "cfa_plus", int(match[1] or 0))
    if inner.startswith("DW_OP_"):
        return Rule("at_expression" if is_loaded else "expression")
    if is_loaded or not inner.isalnum():
        raise ReaderError(f"no rule: {text!r}")
    return Rule("register", _register(inner))


@cache
def _register(name: str) -> int:
    """Return a register's DWARF number; of vector registers any will do, which rows do not have."""
    if name in _NAMES:
        return _NAMES[name]
    match = re.fullmatch(r"(?:R|reg)(\d+)", name)
    return int(match[1]) if match else 1000 + sum(name.encode())
