# SPDX-License-Identifier: Apache-2.0
"""Neutral records of what outside tools print about call frame information.

A record repeats a tool's answer and judges nothing. Registers are DWARF numbers; addresses are the tool's own
(virtual addresses in a linked file, section offsets in a relocatable object).
"""

from __future__ import annotations

import re
from collections.abc import Mapping  # noqa: TC003  (NamedTuple fields are evaluated by type checkers and readers alike)
from functools import cache
from typing import Literal, NamedTuple

Arch = Literal["amd64", "aarch64", "s390x"]

RuleKind = Literal[
    "undefined",  # readelf prints the same letter for "no rule was given"
    "same_value",
    "at_cfa",  # saved at CFA + value
    "cfa_plus",  # is CFA + value
    "register",  # in the register of number value
    "at_expression",  # saved where the expression points to
    "expression",  # is the value of the expression
    "constant",  # is value itself (LLVM's way to show a pseudo register)
]


class OracleOutputError(ValueError):
    """The output of a tool has a form that its parser does not know."""


class RegisterOffset(NamedTuple):
    """CFA = register + offset, in bytes."""

    register: int
    offset: int


class Expression(NamedTuple):
    """CFA = value of a DWARF expression; the text is empty where the tool does not print it."""

    text: str


class NoCfa(NamedTuple):
    """The tool prints that no CFA is defined."""


Cfa = RegisterOffset | Expression | NoCfa


class Rule(NamedTuple):
    """Where the caller's value of one register is; `value` depends on the kind: bytes or a number."""

    kind: RuleKind
    value: int = 0
    text: str = ""


class OracleRow(NamedTuple):
    """One row: from `pc_vaddr` on these rules hold. A CIE's own row has the address 0."""

    pc_vaddr: int
    cfa: Cfa
    registers: Mapping[int, Rule]


class OracleCie(NamedTuple):
    """One CIE; `row` is None where the tool prints none."""

    section_offset: int
    augmentation: str
    code_alignment: int
    data_alignment: int
    ra_register: int
    row: OracleRow | None


class OracleFde(NamedTuple):
    """One FDE; `problem` is the tool's complaint when it could not make rows of it."""

    section_offset: int
    cie_offset: int
    pc_begin_vaddr: int
    pc_end_vaddr: int
    rows: tuple[OracleRow, ...]
    problem: str = ""


class OracleSection(NamedTuple):
    """One section in the order of the file; an object may hold several of one name."""

    name: str
    cies: tuple[OracleCie, ...]
    fdes: tuple[OracleFde, ...]


_AMD64 = {
    **{name: number for number, name in enumerate(["rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"])},
    **{f"xmm{n}": (17 + n if n < 16 else 51 + n) for n in range(32)},
    **{f"st{n}": 33 + n for n in range(8)},
    **{f"mm{n}": 41 + n for n in range(8)},
    **{f"k{n}": 118 + n for n in range(8)},
    **{f"bnd{n}": 126 + n for n in range(4)},
    **{name: 49 + n for n, name in enumerate(["rflags", "es", "cs", "ss", "ds", "fs", "gs"])},
    "rip": 16,
    "fs.base": 58,
    "fs_base": 58,
    "gs.base": 59,
    "gs_base": 59,
    "tr": 62,
    "ldtr": 63,
    "mxcsr": 64,
    "fcw": 65,
    "fsw": 66,
}
_AARCH64 = {
    **{f"{prefix}{n}": n for prefix in "xw" for n in range(31)},
    **{f"{prefix}{n}": 48 + n for prefix in ("p", "pn") for n in range(16)},
    **{f"{prefix}{n}": 64 + n for prefix in "vbhsdq" for n in range(32)},
    **{f"z{n}": 96 + n for n in range(32)},
    "sp": 31,
    "wsp": 31,
    "fp": 29,
    "lr": 30,
    "elr": 33,
    "vg": 46,
    "ffr": 47,
}
# The ABI numbers the floating point registers in the order of their pairs.
_S390X_PAIRS = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)
_S390X = {
    **{f"r{n}d": n for n in range(16)},
    **{f"f{n}{suffix}": 16 + position for position, n in enumerate(_S390X_PAIRS) for suffix in ("", "d")},
    **{f"{prefix}{n}": 32 + n for prefix in ("c", "cr") for n in range(16)},
    **{f"a{n}": 48 + n for n in range(16)},
    **{f"v{16 + n}": 68 + position for position, n in enumerate(_S390X_PAIRS)},
    **{f"f{16 + n}d": 68 + position for position, n in enumerate(_S390X_PAIRS)},
    "pswm": 64,
    "pswa": 65,
}
_NAMES: dict[Arch, dict[str, int]] = {"amd64": _AMD64, "aarch64": _AARCH64, "s390x": _S390X}
_NUMBERED = re.compile(r"r(?:eg)?(\d+)")


@cache
def register_number(arch: Arch, name: str) -> int:
    """Return the DWARF number of a register as GNU or LLVM tools spell it, or raise OracleOutputError."""
    spelling = name.lower()
    number = _NAMES[arch].get(spelling)
    if number is not None:
        return number
    match = _NUMBERED.fullmatch(spelling)
    if match is None:
        message = f"{name!r} is no register of {arch}"
        raise OracleOutputError(message)
    return int(match[1])
