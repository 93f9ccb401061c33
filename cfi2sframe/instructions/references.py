# SPDX-License-Identifier: Apache-2.0
"""What covered code refers to, from its bytes: calls, jumps and loads of addresses, before anything is decoded.

Where instructions have several sizes, some of what is found is in the midst of an instruction, or data.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Container, Sequence  # noqa: TC003 - part of a NamedTuple's fields
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.elf.ranges import Span  # noqa: TC001 - part of a NamedTuple's fields

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Reference(NamedTuple):
    """What may be an instruction at a virtual address, and the address that it calls (`is_call`), jumps to or loads."""

    vaddr: int
    target: int
    is_call: bool


#: call, jmp; `lea r64, [rip + distance]`: the last byte before the distance, whose four bytes are at the end of each.
#: A pattern that begins with a set of bytes is searched 3 times as quickly as one that begins with alternatives.
_AMD64_DISTANCES: Final = re.compile(
    rb"[\xe8\xe9\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?:(?<=[\xe8\xe9])|(?<=([\x48\x4c]\x8d).))(?=(.{4}))", re.DOTALL
)
#: `mov r32, number`, as code at fixed addresses loads one.
_AMD64_NUMBERS: Final = re.compile(rb"(?=[\xb8-\xbf](.{4}))", re.DOTALL)
_CALL: Final = 0xE8
_FIELD_SIZE: Final = 4
_MAX_INSTRUCTION_SIZE: Final = 7
#: Bytes of code that are searched at one time, and upper halves that are searched one by one.
_PIECE_SIZE: Final = 1 << 16
_MAX_HALVES: Final = 12
#: brasl, brcl, larl, whose distance counts halfwords from the instruction.
_S390X_DISTANCES: Final = re.compile(rb"(?=\xc0([\x00-\xff])(.{4}))", re.DOTALL)
_LARL, _BRCL, _BRASL = 0, 4, 5
#: The highest byte of ADR and ADRP, of B and BL.
_AARCH64_TOPS: Final = re.compile(rb"[\x10\x30\x50\x70\x90\xb0\xd0\xf0\x14-\x17\x94-\x97]", re.DOTALL)
#: Instructions of AArch64 after ADRP among which its ADD is searched.
_ADD_DISTANCE: Final = 4
#: The bits of an address within a page of ADRP, and the numbers of all pages.
_PAGE_BITS: Final = 12
_ALL_PAGES: Final = range(-1 << 64, 1 << 64)
#: Bytes of a piece of code for each range of addresses that is looked for: in smaller ones, all is looked at.
_BYTES_PER_SPAN: Final = 32

_SIGNED_WORD: Final = struct.Struct("<i")
_WORD: Final = struct.Struct("<I")


class Wanted(NamedTuple):
    """Ascending ranges of addresses, and the numbers of the pages that they are in, by which most others are told."""

    spans: Sequence[Span]
    pages: Container[int]


def wanted_in(spans: Sequence[Span]) -> Wanted:
    """Return what is looked for where references to addresses in some ascending ranges are."""
    return Wanted(
        spans, {page for start, end in spans for page in range(start >> _PAGE_BITS, (end - 1 >> _PAGE_BITS) + 1)}
    )


def references_in(machine: int, data: bytes, vaddr: int, *, is_fixed: bool) -> Iterator[Reference]:
    """Yield what some bytes of code at an address may refer to; `machine` is that of the ELF header.

    `is_fixed`: the file has fixed addresses, so that numbers in instructions may be addresses.
    """
    find = _amd64_distances if machine == EM_X86_64 and not is_fixed else _FINDERS[machine]
    return find(data, vaddr, _ALL_PAGES)


def references_to(machine: int, data: bytes, vaddr: int, wanted: Wanted, *, is_fixed: bool) -> Iterator[Reference]:
    """Yield what may refer to some addresses, and perhaps to others, too, as `references_in` does.

    Most files have a few addresses without CFI among megabytes of code. Distances to them from within a piece of code
    have a few upper halves, which are found quickly: in libLLVM, 6 times as quickly as the instructions.
    """
    spans, pages = wanted
    if machine != EM_X86_64 or is_fixed:
        yield from _FINDERS[machine](data, vaddr, pages)
        return
    for start in range(0, len(data), _PIECE_SIZE):
        end = min(len(data), start + _PIECE_SIZE)
        halves = _upper_halves(spans, vaddr + start, vaddr + end)
        if halves is None:
            # Instructions of the next piece may be found twice.
            yield from _amd64_distances(data[start : end + _MAX_INSTRUCTION_SIZE], vaddr + start, pages)
            continue
        for half in halves:
            at = data.find(half, start + 2, end + _FIELD_SIZE)
            while at >= 0:
                yield from _amd64_at(data, vaddr, at - 2)
                at = data.find(half, at + 1, end + _FIELD_SIZE)


def _upper_halves(spans: Sequence[Span], start_vaddr: int, end_vaddr: int) -> set[bytes] | None:
    """Return the upper halves of distances from a piece of code to some addresses; None: there are many of them."""
    if len(spans) > (end_vaddr - start_vaddr) // _BYTES_PER_SPAN:
        return None
    found: set[int] = set()
    for first, last in spans:
        low, high = first - end_vaddr - _FIELD_SIZE >> 16, last - start_vaddr >> 16
        found.update(range(low, min(high, low + _MAX_HALVES) + 1))
        if len(found) > _MAX_HALVES:
            return None
    return {(half & 0xFFFF).to_bytes(2, "little") for half in found}


def _amd64_at(data: bytes, vaddr: int, field: int) -> Iterator[Reference]:
    """Yield what the four bytes at an offset may refer to, by the instructions that they may end."""
    match = _AMD64_DISTANCES.match(data, field - 1) if field else None
    if match is not None:
        yield _amd64_reference(match, vaddr, vaddr + field + _FIELD_SIZE + _SIGNED_WORD.unpack(match[2])[0])


def _amd64(data: bytes, vaddr: int, pages: Container[int]) -> Iterator[Reference]:
    yield from _amd64_distances(data, vaddr, pages)
    for match in _AMD64_NUMBERS.finditer(data):
        target = int.from_bytes(match[1], "little")
        if target >> _PAGE_BITS in pages:
            yield Reference(vaddr + match.start(), target, is_call=False)


def _amd64_distances(data: bytes, vaddr: int, pages: Container[int]) -> Iterator[Reference]:
    for match in _AMD64_DISTANCES.finditer(data):
        target = vaddr + match.end() + _FIELD_SIZE + _SIGNED_WORD.unpack(match[2])[0]
        if target >> _PAGE_BITS in pages:
            yield _amd64_reference(match, vaddr, target)


def _amd64_reference(match: re.Match[bytes], vaddr: int, target: int) -> Reference:
    is_loaded = match[1] is not None
    start = match.start(1) if is_loaded else match.start()
    return Reference(vaddr + start, target, not is_loaded and match[0][0] == _CALL)


def _aarch64(data: bytes, vaddr: int, pages: Container[int]) -> Iterator[Reference]:
    # Instructions are little-endian in both byte orders.
    for match in _AARCH64_TOPS.finditer(data[3::4]):
        offset = 4 * match.start()
        word, at = _WORD.unpack_from(data, offset)[0], vaddr + offset
        if word & 0x7C000000 == 0x14000000:
            distance = (word & 0x3FFFFFF ^ 0x2000000) - 0x2000000
            target = at + 4 * distance
            if target >> _PAGE_BITS in pages:
                yield Reference(at, target, is_call=word >> 31 == 1)
            continue
        immediate = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        distance = (immediate ^ 0x100000) - 0x100000
        if word >> 31 == 0:
            if at + distance >> _PAGE_BITS in pages:
                yield Reference(at, at + distance, is_call=False)
        elif (at >> _PAGE_BITS) + distance in pages:
            page = (at >> _PAGE_BITS) + distance << _PAGE_BITS
            for following_offset in range(offset + 4, min(offset + 4 * _ADD_DISTANCE, len(data) - 4) + 1, 4):
                following = _WORD.unpack_from(data, following_offset)[0]
                # add x, x, #number, where the second x is that of adrp.
                if following & 0xFFC00000 == 0x91000000 and following >> 5 & 31 == word & 31:
                    yield Reference(at, page + (following >> 10 & 0xFFF), is_call=False)


def _s390x(data: bytes, vaddr: int, pages: Container[int]) -> Iterator[Reference]:
    unpack = struct.Struct(">i").unpack
    for match in _S390X_DISTANCES.finditer(data):
        kind = match[1][0] & 15
        if kind in (_LARL, _BRCL, _BRASL):
            at = vaddr + match.start()
            target = at + 2 * unpack(match[2])[0]
            if target >> _PAGE_BITS in pages:
                yield Reference(at, target, kind == _BRASL)


#: By machine: yields what some bytes at an address refer to in some pages, by the numbers of these.
_FINDERS: Final[dict[int, Callable[[bytes, int, Container[int]], Iterator[Reference]]]] = {
    EM_X86_64: _amd64,
    EM_AARCH64: _aarch64,
    EM_S390: _s390x,
}
