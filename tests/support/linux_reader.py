# SPDX-License-Identifier: Apache-2.0
"""What Linux's validation of a section does, no more and no less: the judge of what the package says it does.

Written from what is known of the kernel's code (a series of patches of 2026, in no release), without the package.
`kernel_reader` is stricter: it wants what any known reader wants.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Byte order by ABI.
_ORDERS: Final = {1: ">", 2: "<", 3: "<", 4: ">"}
_REGISTERS: Final = 32


class RefusedError(Exception):
    """The kernel would not register the section."""


class _Function(NamedTuple):
    start: int
    size: int
    rows_offset: int
    row_count: int
    info: int
    info2: int
    block_size: int


def refusal(data: bytes, vaddr: int, segments: Sequence[tuple[int, int]], abi: int = 3) -> str:
    """Return why a kernel of an ABI refuses a section, for each executable segment (addresses) of its file, or nothing.

    What it would read wrongly counts as a refusal: a section of another ABI, a register number of more than 5 bits.
    """
    try:
        functions = _read(data, vaddr, abi)
    except RefusedError as error:
        return str(error)
    for start, end in segments:
        if all(start <= function.start and function.start + function.size <= end for function in functions):
            return ""
    return "no segment has all functions"


def _need(holds: bool, message: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not holds:
        raise RefusedError(message)


def _read(data: bytes, vaddr: int, abi: int) -> list[_Function]:
    _need(len(data) >= 28, "size")
    order = _ORDERS[abi]
    _need(data[4] == abi, "ABI")
    fields = struct.unpack_from(order + "HBBBbbBIIIII", data)
    magic, version, flags, _abi, fixed_fp, fixed_ra, auxiliary, fde_count, fre_count, fre_size, fdes, fres = fields
    _need(magic == 0xDEE2 and version == 3 and flags == 5 and auxiliary == 0, "preamble")
    _need(fde_count > 0 and fre_count > 0, "counts")
    table, rows = 28 + fdes, 28 + fres
    end = rows + fre_size
    _need(table + 16 * fde_count <= rows and end <= len(data), "offsets")
    functions: list[_Function] = []
    for number in range(fde_count):
        at = table + 16 * number
        start, size, offset = struct.unpack_from(order + "qII", data, at)
        attribute = rows + offset
        _need(attribute + 5 <= end, "attribute")
        found = struct.unpack_from(order + "HBBB", data, attribute)
        functions.append(_Function((vaddr + at + start) % (1 << 64), size, attribute + 5, *found))
    for before, after in pairwise(functions):
        _need(before.start < after.start, "order")
    for function in functions:
        _need(0 < function.row_count <= function.size, "number of rows")
        _check_rows(data[:end], order, function, is_ra_fixed=fixed_ra != 0, is_fp_fixed=fixed_fp != 0)
    return functions


def _check_rows(data: bytes, order: str, function: _Function, *, is_ra_fixed: bool, is_fp_fixed: bool) -> None:
    start_size = {0: 1, 1: 2, 2: 4}.get(function.info & 0xF, 0)
    _need(start_size > 0 and function.info2 & 0x1F <= 1, "types")
    limit = function.block_size if function.info & 0x10 else function.size
    at, previous = function.rows_offset, -1
    for _ in range(function.row_count):
        _need(at + start_size + 1 <= len(data), "row")
        start = int.from_bytes(data[at : at + start_size], "little" if order == "<" else "big")
        _need(previous < start < limit, "row start")
        previous = start
        info = data[at + start_size]
        at += start_size + 1
        count, code = info >> 1 & 15, info >> 5 & 3
        _need(code < 3, "word size")
        size = count << code
        _need(at + size <= len(data), "words")
        words = [word for (word,) in struct.iter_unpack(order + "BHI"[code], data[at : at + size])]
        at += size
        if not words:
            continue
        # After the CFA: RA and FP, unless the header fixes them.
        after_default = count - 1 - (not is_ra_fixed) - (not is_fp_fixed)
        left = _after_flexible(words) if function.info2 & 1 else after_default
        _need(left <= 0, "words left over")


def _after_flexible(words: list[int]) -> int:
    """Return how many words are left after those of CFA, RA and FP."""
    _need(len(words) >= 2, "CFA")
    _check_control(words[0])
    _need(words[0] & 1 == 1, "CFA")
    rest = words[2:]
    for _ in range(2):
        if len(rest) < 2:
            break
        _check_control(rest[0])
        del rest[: 2 if rest[0] else 1]
    return len(rest)


def _check_control(word: int) -> None:
    _need(word & 4 == 0, "control word")
    _need(not word & 1 or word >> 3 < _REGISTERS, "register")
