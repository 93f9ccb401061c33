# SPDX-License-Identifier: Apache-2.0
"""A reader that forgives nothing, as one in a kernel must: every field is checked before a row is believed.

Written from the specification (version 3, and its older versions for their records), without the package: it shares no
constant with what it judges. `complaints` holds a section of a linked file against every rule that one of the known
readers of its version insists on; whatever it finds, some reader would drop the section for. For version 3 these are
above all the rules of Linux, which registers the section for each executable segment by itself, and wants all of its
functions there. Words are decoded to make sure that all of them have a meaning; what they mean is for other tests to
compare.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
#: What the words of a version may start with: records by version, without byte order.
_RECORDS: Final = {1: "iIIIB", 2: "iIIIBBH", 3: "qII"}


class _Abi(NamedTuple):
    """What a reader knows of an ABI: byte order, fixed RA offset, the most words of a default row, general registers.

    Versions that the ABI has are those from `first_version` on.
    """

    order: str
    fixed_ra: int
    word_count: int
    register_count: int
    first_version: int = 1


_ABIS: Final = {
    1: _Abi(">", 0, 3, 32),
    2: _Abi("<", 0, 3, 32),
    3: _Abi("<", -8, 2, 17),
    4: _Abi(">", 0, 3, 32, 2),
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


class _Rows(NamedTuple):
    """A list of rows that has been read: the last start, where it ends, and whether all starts ascend from 0."""

    last_start: int
    end: int
    problem: str


def complaints(data: bytes, section_vaddr: int, code: Iterable[tuple[int, int]], limit: int = 20) -> list[str]:
    """Return what a strict reader has against a section at an address; nothing when it is content.

    `code` are the executable segments, as `code_of` returns them. Reading stops where nothing more can be trusted, or
    when `limit` complaints are found.
    """
    reader = _Reader(data, section_vaddr, code)
    try:
        reader.read(limit)
    except BadSectionError as error:
        reader.found.append(str(error))
    return reader.found[:limit]


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
    def __init__(self, data: bytes, section_vaddr: int, code: Iterable[tuple[int, int]]) -> None:
        self.data = data
        self.vaddr = section_vaddr
        self.code = sorted(code)
        self.code_starts = [start for start, _ in self.code]
        #: The numbers of the segments that functions are in.
        self.segments: set[int] = set()
        self.found: list[str] = []
        self.known_rows: dict[tuple[int, int, int, int], _Rows] = {}
        self.known_words: dict[tuple[bytes, int], str] = {}
        #: The bytes of rows that functions use, as (start, end) in the section.
        self.used: set[tuple[int, int]] = set()

    def read(self, limit: int) -> None:
        self.header = self._read_header()
        starts, row_count, previous_end = list[int](), 0, None
        functions = [self._read_function(number) for number in range(self.header.fde_count)]
        for function in functions:
            if len(self.found) >= limit:
                return
            starts.append(function.start)
            row_count += function.row_count
            self._check_function(function, previous_end)
            previous_end = function.start + function.size
        if self.header.version == 3 and len(self.segments) > 1:
            self.found.append(SPREAD)
        if row_count != self.header.fre_count:
            self.found.append(f"num_fres is {self.header.fre_count}, the functions have {row_count}")
        self._check_use()
        self._look_up(functions, starts)

    def _read_header(self) -> _Header:
        data = self.data
        _need(len(data) >= _HEADER_SIZE, "no room for a header")
        order = "<" if data[:2] == _MAGIC.to_bytes(2, "little") else ">"
        header = _Header(*struct.unpack_from(order + "HBBBbbBIIIII", data))
        _need(header.magic == _MAGIC, "wrong magic")
        _need(header.version in _FLAGS, f"version {header.version}")
        _need(header.flags in _FLAGS[header.version], f"flags 0x{header.flags:x}")
        _need(header.abi in _ABIS, f"ABI {header.abi}")
        self.abi = _ABIS[header.abi]
        self.order = order
        _need(self.abi.order == order, f"ABI {header.abi} with the other byte order")
        _need(header.version >= self.abi.first_version, f"version {header.version} does not define ABI {header.abi}")
        _need(header.fixed_fp == 0, f"fixed FP offset {header.fixed_fp}")
        _need(header.fixed_ra == self.abi.fixed_ra, f"fixed RA offset {header.fixed_ra}")
        _need(header.auxiliary_size == 0, "an auxiliary header")
        _need(header.fde_count > 0, "no functions")
        _need(header.fre_count > 0, "no rows")
        self.record = struct.Struct(order + _RECORDS[header.version])
        table_size = self.record.size * header.fde_count
        # Readers that know a single layout only: functions right after the header, rows right after them.
        _need(header.fde_offset == 0, f"fdeoff {header.fde_offset}")
        _need(header.fre_offset == table_size, f"freoff {header.fre_offset}, the functions have {table_size} bytes")
        self.rows_start = _HEADER_SIZE + table_size
        self.rows_end = self.rows_start + header.fre_size
        _need(self.rows_end == len(data), f"the rows end at {self.rows_end} of {len(data)} bytes")
        return header

    def _read_function(self, number: int) -> _Function:
        offset = _HEADER_SIZE + number * self.record.size
        start, size, rows_offset, *rest = self.record.unpack_from(self.data, offset)
        info2 = block_size = 0
        rows_offset += self.rows_start
        if self.header.version == 3:
            _need(rows_offset + _ATTRIBUTE_SIZE <= self.rows_end, f"function {number}: no room for its attribute")
            row_count, info, info2, block_size = struct.unpack_from(self.order + "HBBB", self.data, rows_offset)
            rows_offset += _ATTRIBUTE_SIZE
        elif self.header.version == 2:
            row_count, info, block_size, padding = rest
            _need(padding == 0, f"function {number}: padding {padding}")
        else:
            row_count, info = rest
        base = self.vaddr + (offset if self.header.flags & _PCREL else 0)
        return _Function((base + start) % (1 << 64), size, rows_offset, row_count, info, info2, block_size)

    def _check_function(self, function: _Function, previous_end: int | None) -> None:
        where = f"function at 0x{function.start:x}"
        start, end = function.start, function.start + function.size
        if function.size == 0:
            self.found.append(f"{where}: no bytes")
        index = bisect_right(self.code_starts, start) - 1
        if index < 0 or end > self.code[index][1]:
            # Only readers of version 3 look at segments.
            if self.header.version == 3:
                self.found.append(f"{where}: {OUTSIDE}")
        else:
            self.segments.add(index)
        if previous_end is not None and start < previous_end:
            self.found.append(f"{where}: starts before 0x{previous_end:x}, where the one before it ends")
        self.found += [f"{where}: {text}" for text in self._check_attribute(function)]
        _need(function.row_count > 0, f"{where}: no rows")
        if function.row_count > function.size:
            self.found.append(f"{where}: {function.row_count} rows for {function.size} bytes")
        key = (function.rows_offset, function.row_count, function.info & 0xF, function.info2)
        rows = self.known_rows.get(key)
        if rows is None:
            rows = self.known_rows[key] = self._read_rows(*key)
        if rows.problem:
            self.found.append(f"{where}: {rows.problem}")
        limit = function.size
        if function.info & _PCMASK and self.header.version > 1:
            limit = function.block_size
        if rows.last_start >= limit:
            self.found.append(f"{where}: a row starts at {rows.last_start} of {limit} bytes")
        attribute_size = _ATTRIBUTE_SIZE if self.header.version == 3 else 0
        self.used.add((function.rows_offset - attribute_size, rows.end))

    def _check_attribute(self, function: _Function) -> list[str]:
        found = []
        version, info = self.header.version, function.info
        if info & 0xF > 2:
            raise BadSectionError(f"FRE type {info & 0xF}")
        allowed = 0xF | _PCMASK
        if self.header.abi in (1, 2):
            allowed |= _KEY_B
        if version == 3:
            allowed |= _SIGNAL
        if info & ~allowed:
            found.append(f"info byte 0x{info:x}")
        if function.info2 > 1:
            found.append(f"second info byte 0x{function.info2:x}")
        is_mask = bool(info & _PCMASK)
        if version > 1 and is_mask != bool(function.block_size):
            found.append(f"PC type {int(is_mask)} with blocks of {function.block_size} bytes")
        return found

    def _read_rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> _Rows:
        data, limit = self.data, self.rows_end
        start_size = 1 << fre_type
        read_start = struct.Struct(self.order + "BHI"[fre_type]).unpack_from
        previous, problem = -1, ""
        for number in range(count):
            _need(offset + start_size < limit, f"row {number} at {offset} leaves the rows")
            start = read_start(data, offset)[0]
            info = data[offset + start_size]
            end = offset + start_size + 1 + ((info >> 1 & 0xF) << (info >> 5 & 3))
            _need(end <= limit, f"the words of row {number} at {offset} leave the rows")
            if number == 0 and start != 0:
                problem = f"the first row starts at {start}"
            if start <= previous:
                problem = f"row {number} starts at {start}, the one before it at {previous}"
            words = (data[offset + start_size : end], fde_type)
            known = self.known_words.get(words)
            if known is None:
                known = self.known_words[words] = self._check_words(*words)
            problem = problem or known
            previous, offset = start, end
        return _Rows(previous, offset, problem)

    def _check_words(self, tail: bytes, fde_type: int) -> str:
        """Return what is wrong with an info byte and the words after it, empty when nothing is."""
        info, raw = tail[0], tail[1:]
        size_code = info >> 5 & 3
        if size_code > 2:
            return "word size 3"
        if info & 0x80 and self.header.abi not in (1, 2):
            return "a mangled RA on an ABI that has none"
        words = [number for (number,) in struct.iter_unpack(self.order + "bhi"[size_code], raw)]
        if not words:
            return "" if self.header.version > 1 and info & 0x81 == 0 else "no words"
        if fde_type:
            return self._check_flexible(info, words, (1 << (8 << size_code)) - 1)
        return self._check_default(words)

    def _check_default(self, words: Sequence[int]) -> str:
        if len(words) > self.abi.word_count:
            return f"{len(words)} words, {self.abi.word_count} have a meaning"
        if self.header.abi in (1, 2) and len(words) == 2 and words[1] == 0:
            return "RA at CFA+0"
        if self.header.abi != _S390X:
            return "an offset of 0 from the CFA" if 0 in words[1:] else ""
        if len(words) == 2 and words[1] == 0:
            return "a padding with nothing after it"
        for word in words[1:]:
            if word & 1 and (self.header.version > 2 or not 0 <= word >> 1 < self.abi.register_count):
                return f"word {word} names no register"
        return ""

    def _check_flexible(self, info: int, words: list[int], mask: int) -> str:
        if info & 1:
            return "a base register bit in a flexible row"
        values: list[str] = []
        position = 0
        while position < len(words):
            control = words[position] & mask
            position += 1
            if control == 0:
                values.append("")
                continue
            if control & 4:
                return f"control word 0x{control:x}"
            if position == len(words):
                return "a control word without its offset"
            if not control & 1 and control >> 3:
                return f"control word 0x{control:x} has a register and does not use it"
            if control >> 3 >= _LINUX_REGISTERS:
                return f"control word 0x{control:x} {LARGE_REGISTER} {control >> 3}"
            values.append("register" if control & 1 else "cfa")
            position += 1
        if not 1 <= len(values) <= 3:
            return f"{len(values)} rules"
        if values[0] != "register":
            return "no base register of the CFA"
        return "a padding with nothing after it" if values[-1] == "" else ""

    def _check_use(self) -> None:
        """Check that every byte of the rows belongs to a function."""
        position = self.rows_start
        for start, end in sorted(self.used):
            if start > position:
                break
            position = max(position, end)
        if position != self.rows_end:
            self.found.append(f"no function uses the rows' bytes at {position}")

    def _look_up(self, functions: list[_Function], starts: list[int]) -> None:
        """Find every function by its first address and its last one, in the table as it is stored."""
        for function in functions:
            for pc in (function.start, function.start + function.size - 1):
                index = bisect_right(starts, pc) - 1
                if index < 0 or functions[index] is not function:
                    self.found.append(f"the search for 0x{pc:x} ends elsewhere")
                    return
