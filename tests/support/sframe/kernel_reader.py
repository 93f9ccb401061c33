# SPDX-License-Identifier: Apache-2.0
"""A reader that forgives nothing, as one in a kernel must: every field is checked before a row is believed.

Written from the specification (version 3, and its older versions for their records), without the package: it shares no
constant with what it judges. `complaints` holds a section of a linked file against every rule that one of the known
readers of its version insists on; whatever it finds, some reader would drop the section for. For version 3 these are
above all the rules of Linux, which registers the section for each executable segment by itself, and wants all of its
functions there. Words are decoded to make sure that all of them have a meaning; what they mean is for other tests to
compare.
"""

import struct
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import Final, NamedTuple

from cfi2sframe.elf.image import ElfImage

_MAGIC: Final = 0xDEE2
_PT_LOAD, _PF_X = 1, 1
#: What `complaints` says of functions that are spread over several segments, which no section can help.
SPREAD: Final = "the functions are in several executable segments"
#: What it says of a function that is not wholly in one of them.
OUTSIDE: Final = "not in one executable segment"
#: What it says of a register that Linux cannot name.
LARGE_REGISTER: Final = "names register"
#: Linux has 5 bits for a register number in a control word.
_LINUX_REGISTERS: Final = 32
_HEADER_SIZE: Final = 28
_ATTRIBUTE_SIZE: Final = 5
_SORTED, _PCREL = 1, 4
#: Flags that a section of a linked file has to have, by version; with the errata of version 2 or without.
_FLAGS: Final = {1: (_SORTED,), 2: (_SORTED, _SORTED | _PCREL), 3: (_SORTED | _PCREL,)}
_PCMASK, _KEY_B, _SIGNAL = 0x10, 0x20, 0x80
_S390X: Final = 4
#: The records of functions by version, without byte order. In version 3, the rest stands before the rows.
_RECORDS: Final = {1: "iIIIB", 2: "iIIIBBH", 3: "qII"}


class _Abi(NamedTuple):
    """What a reader knows of an ABI: byte order, fixed RA offset, the most words of a default row, general registers.

    Versions that the ABI has are those from `first_version` on.
    """

    order: str
    fixed_ra: int
    word_count: int
    register_count: int
    is_signed: bool
    first_version: int = 1


_ABIS: Final = {
    1: _Abi(">", 0, 3, 32, is_signed=True),
    2: _Abi("<", 0, 3, 32, is_signed=True),
    3: _Abi("<", -8, 2, 17, is_signed=False),
    _S390X: _Abi(">", 0, 3, 32, is_signed=False, first_version=2),
}


class BadSectionError(Exception):
    """A rule is broken, and nothing after it can be read."""


class _Header(NamedTuple):
    magic: int
    version: int
    flags: int
    abi: int
    fixed_fp: int
    fixed_ra: int
    auxiliary_size: int
    fde_count: int
    fre_count: int
    fre_size: int
    fde_offset: int
    fre_offset: int


class _Function(NamedTuple):
    start: int
    size: int
    rows_offset: int
    row_count: int
    info: int
    info2: int
    block_size: int

    @property
    def end(self) -> int:
        return self.start + self.size


class _Rows(NamedTuple):
    """A list of rows that has been read: the last start, where it ends, and what is wrong with it."""

    last_start: int
    end: int
    problem: str


def complaints(data: bytes, section_vaddr: int, code: Iterable[tuple[int, int]]) -> list[str]:
    """Return what a strict reader has against a section at an address; nothing when it is content.

    `code` are the executable segments, as `code_of` returns them. Reading stops where nothing more can be trusted.
    """
    found: list[str] = []
    try:
        found.extend(_Reader(data, section_vaddr).complaints(sorted(code)))
    except (BadSectionError, struct.error) as error:
        found.append(str(error))
    return found


def code_of(image: ElfImage) -> list[tuple[int, int]]:
    """Return the executable segments of a linked file; of a file without any, one that holds all of its code."""
    segments = [(p.vaddr, p.end_vaddr) for p in image.segments if p.type == _PT_LOAD and p.flags & _PF_X]
    if segments or not image.code_ranges:
        return segments
    return [(image.code_ranges[0].start_vaddr, max(code.end_vaddr for code in image.code_ranges))]


def _need(holds: bool, message: str) -> None:  # noqa: FBT001 - reads like an assertion
    if not holds:
        raise BadSectionError(message)


class _Reader:
    """Reads a section; whatever leaves its bytes is an error of `struct`."""

    def __init__(self, data: bytes, section_vaddr: int) -> None:
        self.data, self.vaddr = data, section_vaddr
        order = "<" if data[:2] == _MAGIC.to_bytes(2, "little") else ">"
        self.order = order
        self.header = header = _Header(*struct.unpack_from(order + "HBBBbbBIIIII", data))
        _need(header.magic == _MAGIC, "wrong magic")
        _need(header.flags in _FLAGS.get(header.version, ()), f"version {header.version}, flags 0x{header.flags:x}")
        _need(header.abi in _ABIS, f"ABI {header.abi}")
        self.abi = _ABIS[header.abi]
        _need(self.abi.order == order, f"ABI {header.abi} with the other byte order")
        _need(header.version >= self.abi.first_version, f"version {header.version} does not define ABI {header.abi}")
        fixed = (header.fixed_fp, header.fixed_ra, header.auxiliary_size)
        _need(fixed == (0, self.abi.fixed_ra, 0), f"fixed FP and RA offsets, auxiliary header: {fixed}")
        _need(header.fde_count > 0, "no functions")
        _need(header.fre_count > 0, "no rows")
        self.record = struct.Struct(order + _RECORDS[header.version])
        # Readers that know a single layout only: functions right after the header, rows right after them.
        layout = (header.fde_offset, header.fre_offset)
        _need(layout == (0, self.record.size * header.fde_count), f"fdeoff, freoff {layout}")
        self.rows_start = _HEADER_SIZE + header.fre_offset
        rows_end = self.rows_start + header.fre_size
        _need(rows_end == len(data), f"the rows end at {rows_end} of {len(data)} bytes")
        self.rows: Callable[[int, int, int, int], _Rows] = cache(self._read_rows)
        self.problem_of_words = cache(self._check_words)

    def complaints(self, code: Sequence[tuple[int, int]]) -> Iterator[str]:
        """Yield what is wrong with functions and rows; `code` ascends."""
        functions = [self._read_function(number) for number in range(self.header.fde_count)]
        used, segments, previous_end = set[tuple[int, int]](), set[int](), 0
        for function in functions:
            where = f"function at 0x{function.start:x}"
            index = bisect_right(code, function.start, key=lambda segment: segment[0]) - 1
            if index >= 0 and function.end <= code[index][1]:
                segments.add(index)
            elif self.header.version == 3:
                # Only readers of version 3 look at segments.
                yield f"{where}: {OUTSIDE}"
            if function.size == 0:
                yield f"{where}: no bytes"
            if function.start < previous_end:
                yield f"{where}: starts before 0x{previous_end:x}, where the one before it ends"
            previous_end = function.end
            yield from (f"{where}: {text}" for text in self._check_attribute(function))
            rows = self.rows(function.rows_offset, function.row_count, function.info & 0xF, function.info2)
            if rows.problem:
                yield f"{where}: {rows.problem}"
            is_block = function.info & _PCMASK and self.header.version > 1
            limit = function.block_size if is_block else function.size
            if rows.last_start >= limit:
                yield f"{where}: a row starts at {rows.last_start} of {limit} bytes"
            attribute_size = _ATTRIBUTE_SIZE if self.header.version == 3 else 0
            used.add((function.rows_offset - attribute_size, rows.end))
        if self.header.version == 3 and len(segments) > 1:
            yield SPREAD
        row_count = sum(function.row_count for function in functions)
        if row_count != self.header.fre_count:
            yield f"num_fres is {self.header.fre_count}, the functions have {row_count}"
        yield from self._check_use(used)
        # Every function is found by its first address and its last one, in the table as it is stored.
        starts = [function.start for function in functions]
        for number, function in enumerate(functions):
            if {bisect_right(starts, pc) - 1 for pc in (function.start, function.end - 1)} != {number}:
                yield f"a search for 0x{function.start:x} ends elsewhere"

    def _read_function(self, number: int) -> _Function:
        offset = _HEADER_SIZE + number * self.record.size
        start, size, rows_offset, *rest = self.record.unpack_from(self.data, offset)
        base = self.vaddr + (offset if self.header.flags & _PCREL else 0)
        start, rows_offset = (base + start) % (1 << 64), rows_offset + self.rows_start
        if self.header.version == 3:
            row_count, info, info2, block_size = struct.unpack_from(self.order + "HBBB", self.data, rows_offset)
            return _Function(start, size, rows_offset + _ATTRIBUTE_SIZE, row_count, info, info2, block_size)
        row_count, info, block_size, padding = (*rest, 0, 0)[:4]
        _need(padding == 0, f"function {number}: padding {padding}")
        return _Function(start, size, rows_offset, row_count, info, 0, block_size)

    def _check_attribute(self, function: _Function) -> Iterator[str]:
        version, info = self.header.version, function.info
        _need(info & 0xF <= 2, f"FRE type {info & 0xF}")
        _need(function.row_count > 0, "no rows")
        if function.row_count > function.size:
            yield f"{function.row_count} rows for {function.size} bytes"
        allowed = 0xF | _PCMASK | (_KEY_B if self.abi.is_signed else 0) | (_SIGNAL if version == 3 else 0)
        if info & ~allowed or function.info2 > 1:
            yield f"info bytes 0x{info:x}, 0x{function.info2:x}"
        is_mask = bool(info & _PCMASK)
        if version > 1 and is_mask != bool(function.block_size):
            yield f"PC type {int(is_mask)} with blocks of {function.block_size} bytes"

    def _read_rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> _Rows:
        row = struct.Struct(self.order + "BHI"[fre_type] + "B")
        previous, problem = -1, ""
        for number in range(count):
            start, info = row.unpack_from(self.data, offset)
            offset += row.size
            end = offset + ((info >> 1 & 0xF) << (info >> 5 & 3))
            _need(end <= len(self.data), f"the words of row {number} at {offset} leave the rows")
            if number == 0 and start != 0:
                problem = f"the first row starts at {start}"
            if start <= previous:
                problem = f"row {number} starts at {start}, the one before it at {previous}"
            problem = problem or self.problem_of_words(info, self.data[offset:end], fde_type)
            previous, offset = start, end
        return _Rows(previous, offset, problem)

    def _check_words(self, info: int, raw: bytes, fde_type: int) -> str:
        """Return what is wrong with an info byte and the words after it, empty when nothing is."""
        size_code = info >> 5 & 3
        if size_code > 2:
            return "word size 3"
        if info & 0x80 and not self.abi.is_signed:
            return "a mangled RA on an ABI that has none"
        words = [number for (number,) in struct.iter_unpack(self.order + "bhi"[size_code], raw)]
        if not words:
            return "" if self.header.version > 1 and info & 0x81 == 0 else "no words"
        if not fde_type:
            return self._check_default(words)
        return _check_flexible(info, [word & (1 << (8 << size_code)) - 1 for word in words])

    def _check_default(self, words: Sequence[int]) -> str:
        if len(words) > self.abi.word_count:
            return f"{len(words)} words, {self.abi.word_count} have a meaning"
        if self.header.abi != _S390X:
            return "an offset of 0 from the CFA" if 0 in words[1:] else ""
        if len(words) == 2 and words[1] == 0:
            return "a padding with nothing after it"
        for word in words[1:]:
            if word & 1 and (self.header.version > 2 or not 0 <= word >> 1 < self.abi.register_count):
                return f"word {word} names no register"
        return ""

    def _check_use(self, used: Iterable[tuple[int, int]]) -> Iterator[str]:
        """Check that every byte of the rows belongs to a function."""
        position = self.rows_start
        for start, end in sorted(used):
            if start > position:
                break
            position = max(position, end)
        if position != len(self.data):
            yield f"no function uses the rows' bytes at {position}"


def _check_flexible(info: int, words: Sequence[int]) -> str:
    """Return what is wrong with the words of a flexible row: up to three rules, of which a padding is a single word."""
    if info & 1:
        return "a base register bit in a flexible row"
    rules, rest = list[int](), list(words)
    while rest:
        control = rest.pop(0)
        rules.append(control)
        if control == 0:
            continue
        if not rest:
            return "a control word without its offset"
        rest.pop(0)
        if control & 4 or (not control & 1 and control >> 3):
            return f"control word 0x{control:x}"
        if control >> 3 >= _LINUX_REGISTERS:
            return f"control word 0x{control:x} {LARGE_REGISTER} {control >> 3}"
    if len(rules) > 3:
        return f"{len(rules)} rules"
    if not rules[0] & 1:
        return "no base register of the CFA"
    return "a padding with nothing after it" if rules[-1] == 0 else ""
