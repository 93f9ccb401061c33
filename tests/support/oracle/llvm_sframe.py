# SPDX-License-Identifier: Apache-2.0
"""Parser of `llvm-readelf --sframe` (LLVM 22 and 23: version 2), and decoded sections in the same words."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.oracle.frames import OracleOutputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection

_FIELD: Final = re.compile(r" *([A-Z][^:]*): (.+)")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9A-F]+|\d+)")
#: The last words of each function's and each row's block.
_FUNCTION, _ROW = "FuncDescEntry", "Frame Row Entry {"


class LlvmRow(NamedTuple):
    """One row: an address, in a PCMASK function an offset in the block. Offsets are from the CFA; None: not printed."""

    start: int
    base: str
    cfa: int | None
    ra: int | None
    fp: int | None
    is_signed: bool


class LlvmFunction(NamedTuple):
    """One function record; the size is in bytes."""

    pc_vaddr: int
    size: int
    is_pcmask: bool
    block_size: int
    rows: tuple[LlvmRow, ...]


def parse_llvm_sframe(lines: Iterable[str]) -> tuple[LlvmFunction, ...]:
    """Parse what llvm-readelf prints of a file with one SFrame section.

    Raises `OracleOutputError` when it prints fewer functions or rows than it announces.
    """
    functions: list[tuple[dict[str, str], list[dict[str, str]]]] = []
    header: dict[str, str] = {}
    fields = header
    for line in lines:
        text = line.strip()
        if text.startswith(_FUNCTION):
            fields = {}
            functions.append((fields, []))
        elif text == _ROW:
            fields = {}
            functions[-1][1].append(fields)
        elif match := _FIELD.match(line):
            fields[match[1]] = match[2]
    counts = [_number(of_function["Num FREs"]) for of_function, _ in functions]
    if (len(functions), sum(counts)) != (_number(header.get("Num FDEs", "-1")), _number(header.get("Num FREs", "-1"))):
        raise OracleOutputError(f"{len(functions)} functions and {sum(counts)} rows instead of {header}")
    if counts != [len(rows) for _, rows in functions]:
        raise OracleOutputError("not all rows of a function are printed")
    return tuple(_function(of_function, rows) for of_function, rows in functions)


def _number(text: str) -> int:
    match = _NUMBER.match(text)
    if match is None:
        raise OracleOutputError(f"no number: {text!r}")
    return int(match[0], 0)


def _function(fields: dict[str, str], rows: list[dict[str, str]]) -> LlvmFunction:
    is_pcmask = fields["FDE Type"].startswith("PCMask")
    block_size = _number(fields["Repetitive block size"]) if is_pcmask else 0
    return LlvmFunction(
        _number(fields["PC"]), _number(fields["Size"]), is_pcmask, block_size, tuple(_row(row) for row in rows)
    )


def _row(fields: dict[str, str]) -> LlvmRow:
    def offset(name: str) -> int | None:
        return _number(fields[name]) if name in fields else None

    return LlvmRow(
        _number(fields["Start Address"]),
        fields["Base Register"].partition(" ")[0],
        offset("CFA Offset"),
        offset("RA Offset"),
        offset("FP Offset"),
        fields["Return Address Signed"] == "Yes",
    )


def in_words_of_llvm(section: DecodedSection) -> Iterator[LlvmFunction]:
    """Yield the functions of a decoded section of version 2, default rows only, as llvm-readelf would print them."""
    for function in section.functions:
        yield LlvmFunction(
            function.start_vaddr,
            function.size,
            function.is_pcmask,
            function.repeat_size if function.is_pcmask else 0,
            tuple(_rows(function, section)),
        )


def _rows(function: DecodedFunction, section: DecodedSection) -> Iterator[LlvmRow]:
    first = 0 if function.is_pcmask else function.start_vaddr
    for row in function.rows:
        start_delta, state = row.row
        if state.cfa is None:
            raise OracleOutputError("an outermost frame has no words in errata 1")
        base = "SP" if state.cfa.register == section.arch.sp_register else "FP"
        ra = None if state.ra is None else state.ra.offset
        fp = None if state.fp is None else state.fp.offset
        yield LlvmRow(first + start_delta, base, state.cfa.offset, ra, fp, state.mangled_ra)
