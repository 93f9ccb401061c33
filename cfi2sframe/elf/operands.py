# SPDX-License-Identifier: Apache-2.0
"""Operands of instructions that lead into a span of addresses: matched in bytes of code, in each form of an ABI.

Functions take bytes, their address and the span, and yield the place of each operand or instruction, and its target.
`referrers` has a table of the forms.
"""

import re
import struct
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, Final

from cfi2sframe.elf.disassembler import AMD64_DISASSEMBLER, open_disassembler
from cfi2sframe.elf.frame_header import frame_header
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError
from cfi2sframe.range_map import Span, touches

_WORD: Final = struct.Struct("<I")

#: AMD64: ModRM bytes after which a distance follows. It counts from the end of the instruction, which may have an
#: immediate operand of so many bytes (Intel's manual, volume 2, 2.2.1.6).
_MOD_RM: Final = frozenset(range(0x05, 0x40, 8))
_IMMEDIATE_SIZES: Final = (0, 1, 2, 4)
#: The bytes of its largest instruction, and those that are decoded before a place. After these, nearly always a single
#: decoding is left, wherever the first instruction starts.
_LARGEST: Final = 15
_LEAD: Final = 128
#: The most bytes that are decoded from the start of a function on: each of many places may need them.
_MOST_DECODED: Final = 1 << 14

#: AArch64: the last bytes of ADRP, and of ADR and LDR (literal), which reach 1 MiB.
_ADRP: Final = rb"[\x90\xb0\xd0\xf0]"
_NEAR: Final = rb"[\x10\x30\x50\x70\x18\x1c\x58\x5c\x98\x9c]"
_NEAR_REACH: Final = 1 << 20
_PAGE_BITS: Final = 12
_PAGE_SIZE: Final = 1 << _PAGE_BITS
#: PRFM (immediate), and the bit of vector registers.
_PRFM: Final = 0xF9800000
_SIMD: Final = 1 << 26
#: A stub of a PLT: ADRP and LDR of X17 by X16, ADD, BR X17; with BTI and AUTIA1716. Functions that other files have, or
#: may replace, are called by it, so as the ABI says: registers below X19 do not outlive the call (AAPCS64, 6.1.1).
_STUB: Final = re.compile(
    rb"(?:\x5f\x24\x03\xd5)?[\x10\x30\x50\x70\x90\xb0\xd0\xf0]..[\x90\xb0\xd0\xf0]\x11..\xf9.{4}"
    rb"(?:\x9f\x21\x03\xd5)?\x20\x02\x1f\xd6",
    re.DOTALL,
)
_STUB_SIZE: Final = 24
_FIRST_SAVED: Final = 19
#: The upper 6 bits of BL.
_CALL: Final = 0x25
#: Instructions that write no general register but that of the lowest 5 bits, or none: a mask, its bits, and the places
#: of the registers that are read (Arm Architecture Reference Manual, C4.1). Any other may read what any place names.
_READING: Final = (
    (0x1F000000, 0x10000000, ()),  # ADR, ADRP
    (0x3F800000, 0x12800000, ()),  # MOVN, MOVZ
    (0x1F800000, 0x11000000, (5,)),  # ADD, SUB of a number
    (0x1F800000, 0x12000000, (5,)),  # AND, ORR, EOR with a number
    (0x1E000000, 0x0A000000, (5, 16)),  # the same of two registers, so MOV and CMP
    (0x3FC00000, 0x39000000, (0, 5)),  # STR, STRB, STRH
    (0x3FC00000, 0x39400000, (5,)),  # LDR, LDRB, LDRH
    (0xBF800000, 0x39800000, (5,)),  # LDRSB, LDRSH
    (0xFF800000, 0xB9800000, (5,)),  # LDRSW
    (0x3E400000, 0x28000000, (0, 5, 10)),  # STP
    (0x3E400000, 0x28400000, (5, 10)),  # LDP, whose second register does not count as written
    (0xFFFFFF1F, 0xD503231F, ()),  # PACIASP, AUTIASP: they sign the return address
)
#: MOVZ and MOVK of bits 16 to 31, without register and number; how far (bytes) from that of the bits below they may be.
_MOVES: Final = frozenset({0x52A00000, 0x72A00000, 0xD2A00000, 0xF2A00000})
_MOVES_REACH: Final = 64

#: s390x: the first byte, and the second byte's low digit, of instructions with a distance of 32 bits, in halfwords, to
#: an operand: LARL; loads, stores and so on; comparisons (z/Architecture Principles of Operation, RIL formats b and c).
_RELATIVE_LONG: Final = ((0xC0, (0,)), (0xC4, (2, *range(4, 9), *range(0xB, 0x10))), (0xC6, (0, 2, *range(4, 16))))
#: LLVM's offsets from a place are less than this (SystemZTargetLowering::lowerGlobalAddress), in bytes.
_ANCHOR_SIZE: Final = 1 << 12


class Amd64Code:
    """Code of AMD64 around a number in its bytes.

    Instructions are decoded from the start of a function with an FDE on; elsewhere, from any byte some way before. One
    that capstone does not know may have any size and any operand. `rare`: what looks like an operand among data is one.
    """

    def __init__(self, image: ElfImage, *, rare: bool) -> None:
        self.image = image
        self.rare = rare

    def operands(self, data: bytes, vaddr: int, span: Span) -> Iterator[tuple[int, int]]:
        """Yield the places of distances that count from the end of an instruction, and their targets."""
        if not self.rare and not touches(self._code, Span(vaddr, vaddr + len(data))):
            # All of libLLVM is one executable segment, half of it code.
            return
        first = span.start - 4 - max(_IMMEDIATE_SIZES)
        for at, number in distances(data, vaddr, Span(first, span.end), "<"):
            for size in _IMMEDIATE_SIZES if at and data[at - 1] in _MOD_RM else ():
                place, end = vaddr + at, vaddr + at + 4 + size
                if span.start <= end + number < span.end:
                    relative = rf"ip [-+] 0x{abs(number):x}\]"
                    if any(decoding in (None, (end, True)) for decoding in self._decodings(place, relative)):
                        yield place, end + number

    def is_operand(self, place: int, number: int) -> bool:
        """Return whether an instruction that covers a place may have a number as its operand."""
        decodings = self._decodings(place, rf"(?<!ip \+ )\b0x{number:x}\b")
        return any(decoding is None or decoding[1] for decoding in decodings)

    def _decodings(self, place: int, pattern: str) -> Iterator[tuple[int, bool] | None]:
        """Yield the end of each instruction that may cover a place, and whether its operands match a pattern.

        Yields None where one that capstone does not know may be there: among data, the bytes before an instruction
        mislead. Raises `InputError` where capstone cannot be loaded.
        """
        load = self.image.segment_map.load_of(place)
        if load is None or self.image.code_range_of(place) is None:
            if self.rare:
                yield None
            return
        number = bisect_right(self._starts, place) - 1
        nearest = max(load.vaddr, place - _MOST_DECODED)
        function = self._starts[number] if number >= 0 and self._starts[number] >= nearest else None
        first = max(place - _LEAD, load.vaddr) if function is None else function
        data = self.image.bytes_at(first, min(place + _LARGEST, load.stored_vaddrs.end) - first) or b""
        possible = set(range(first, first + _LARGEST)) if function is None else {first}
        seen = set[int]()
        while possible and (start := min(possible)) <= place:
            possible.remove(start)
            seen.add(start)
            decoded = next(
                self._disassembler.disasm_lite(data[start - first : start - first + _LARGEST], start, 1), None
            )
            if decoded is not None and start + decoded[1] <= place:
                possible.add(start + decoded[1])
            elif decoded is not None:
                yield start + decoded[1], re.search(pattern, decoded[3]) is not None
            elif function is not None or not possible or start >= place - _LEAD // 2:
                # Most of the first decodings of unknown code are wrong, and end soon. No other one can be dropped.
                possible.update(set(range(start + 1, start + 1 + _LARGEST)) - seen)
                if start + _LARGEST > place:
                    yield None

    @cached_property
    def _code(self) -> list[Span]:
        return [Span(code.start_vaddr, code.end_vaddr) for code in self.image.code_ranges]

    @cached_property
    def _starts(self) -> list[int]:
        """The starts of functions that have FDEs, ascending, which a damaged table need not be."""
        try:
            header = frame_header(self.image)
        except ElfError:
            header = None
        return [] if header is None else sorted([start for start, _ in header.table])

    @cached_property
    def _disassembler(self) -> Any:  # noqa: ANN401 - capstone has no types
        return open_disassembler(AMD64_DISASSEMBLER, "what code refers to is found")


def aarch64_operands(
    image: ElfImage, data: bytes, vaddr: int, span: Span, *, is_fixed: bool
) -> Iterator[tuple[int, int]]:
    """Yield ADR, LDR (literal), ADRP and, at fixed addresses, MOVZ and MOVK. Instructions are little-endian.

    Bits 8 to 23 of the first three are bits 5 to 20 of the distance.
    """
    low, high = span.start - vaddr - len(data), span.end - vaddr
    for at in _instructions(data, vaddr, max(low, -_NEAR_REACH) >> 5, min(high, _NEAR_REACH) >> 5, _NEAR):
        word = _WORD.unpack_from(data, at)[0]
        distance = (word >> 5 & 0x7FFFF) << 2 | (0 if word >> 24 & 8 else word >> 29 & 3)
        target = vaddr + at + (distance ^ 0x100000) - 0x100000
        if span.start <= target < span.end:
            yield vaddr + at, target
    for at in _instructions(data, vaddr, low >> _PAGE_BITS + 5, (high >> _PAGE_BITS) + 1 >> 5, _ADRP):
        word = _WORD.unpack_from(data, at)[0]
        pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        page = (vaddr + at >> _PAGE_BITS) + (pages ^ 0x100000) - 0x100000 << _PAGE_BITS
        if page < span.end and span.start < page + _PAGE_SIZE:
            offsets = _added_to(word & 31, image, data[at + 4 :], vaddr + at + 4)
            if offsets is None:
                yield vaddr + at, max(page, span.start)
            else:
                yield from ((vaddr + at, page + n) for n in offsets if span.start <= page + n < span.end)
    if is_fixed:
        yield from _moves(data, vaddr, span)


def _added_to(register: int, image: ElfImage, data: bytes, vaddr: int) -> list[int] | None:
    """Return what the next instructions add to a register that has the address of a page.

    None unless one of them overwrites the register before anything else may read it: what is added may be elsewhere.
    """
    offsets: list[int] = []
    for place, (word,) in enumerate(_WORD.iter_unpack(data[: len(data) // 4 * 4])):
        if _is_of_vectors(word):
            continue
        if word >> 26 == _CALL and _STUB.match(image.bytes_at(_called(vaddr + 4 * place, word), _STUB_SIZE) or b""):
            if register < _FIRST_SAVED:
                # It may be an argument.
                return [*offsets, 0]
            if not image.sections or any(image.sections_named(".gcc_except_table")):
                # A handler of exceptions finds the register as it was.
                return None
            continue
        number, base, target = word >> 10 & 0xFFF, word >> 5 & 31, word & 31
        is_add = word & 0x7FC00000 == 0x11000000
        # Loads and stores with an unsigned offset, which counts units of the size; 16 bytes are an exception.
        is_memory = word & 0x3B000000 == 0x39000000 and word & 0xFFC00000 != _PRFM
        is_store_of_it = is_memory and target == register and not word & (_SIMD | 0xC00000)
        reading = next((places for mask, bits, places in _READING if word & mask == bits), None)
        if base == register and (is_add or is_memory) and not is_store_of_it:
            offsets.append(number if is_add else number << (4 if word & 0xC4800000 == 0x04800000 else word >> 30))
        else:
            is_branch = word >> 26 & 7 == 5 and reading is None
            places = reading if reading is not None else (0, 5) if is_memory else (0, 5, 10, 16)
            if is_branch or register in [word >> place & 31 for place in places]:
                return None
        if target == register and reading is not None:
            return offsets
    return None


def _called(vaddr: int, word: int) -> int:
    """Return the address that BL calls."""
    return vaddr + 4 * ((word & 0x3FFFFFF ^ 1 << 25) - (1 << 25))


def _is_of_vectors(word: int) -> bool:
    """Return whether an instruction computes with vectors only; of those, copies name general registers."""
    return word & 0x9E000000 == 0x0E000000 and word & 0x9FE08400 != 0x0E000400


def _moves(data: bytes, vaddr: int, span: Span) -> Iterator[tuple[int, int]]:
    """Yield MOVZ or MOVK of the lowest 16 bits of an address that are near one of the next 16 bits."""
    for top in {0x80 | high & 0x1F for high in range(span.start >> 11, (span.end - 1 >> 11) + 1)}:
        for match in re.finditer(b"%b(?=[\x52\x72\xd2\xf2])" % re.escape(bytes([top])), data):
            at = match.start() - 2
            if at < 0 or (vaddr + at) % 4:
                continue
            low = _WORD.unpack_from(data, at)[0] >> 5 & 0xFFFF
            near = data[max(at - _MOVES_REACH, at % 4) : at + _MOVES_REACH + 4]
            for (word,) in _WORD.iter_unpack(near[: len(near) // 4 * 4]):
                distance = ((word >> 5 & 0xFFFF) << 16 | low) - span.start & 0xFFFFFFFF
                if word & ~0x1FFFFF in _MOVES and distance < span.end - span.start:
                    yield vaddr + at, span.start + distance


def s390x_operands(data: bytes, vaddr: int, span: Span) -> Iterator[tuple[int, int]]:
    """Yield instructions with a distance of 32 bits.

    LLVM reaches an odd address before an object's start by LARL of 4 KiB before that, and by an offset.
    """
    yield from _long_relative(data, vaddr, span)
    before = Span(span.start - _ANCHOR_SIZE, span.end - _ANCHOR_SIZE)
    yield from ((place, target + _ANCHOR_SIZE) for place, target in _long_relative(data, vaddr, before))


def _long_relative(data: bytes, vaddr: int, span: Span) -> Iterator[tuple[int, int]]:
    halves = _halves(span.start - vaddr - len(data) >> 17, span.end - vaddr >> 17)
    for first, kinds in _RELATIVE_LONG if halves else ():
        second = _byte_class(register << 4 | kind for register in range(16) for kind in kinds)
        pattern = re.escape(bytes([first])) + b"(?=%b%b%b..)" % (second, *reversed(halves or ()))
        for match in re.finditer(pattern, data, re.DOTALL):
            place = vaddr + match.start()
            target = place + 2 * int.from_bytes(data[match.start() + 2 : match.start() + 6], "big", signed=True)
            if place % 2 == 0 and span.start <= target < span.end:
                yield place, target


# Patterns of bytes


def distances(data: bytes, vaddr: int, span: Span, order: str) -> Iterator[tuple[int, int]]:
    """Yield offsets and values of signed numbers of 4 bytes that lead from themselves into a span."""
    first, last = span.start - vaddr - len(data) >> 16, span.end - vaddr >> 16
    for high in range(max(first, -1 << 15), min(last, (1 << 15) - 1) + 1):
        half, skipped = struct.pack(order + "h", high), 2 if order == "<" else 0
        # From these offsets, numbers with this upper half lead into the span.
        begin = max(span.start - vaddr - (high << 16) - 0xFFFF, 0) + skipped
        end = min(span.end - vaddr - (high << 16), len(data) - 3) + skipped + 1
        at = data.find(half, begin, end)
        while at >= 0:
            (number,) = struct.unpack_from(order + "i", data, at - skipped)
            if span.start <= vaddr + at - skipped + number < span.end:
                yield at - skipped, number
            at = data.find(half, at + 1, end)


def _byte_class(values: Iterable[int]) -> bytes:
    return b"[%b]" % re.escape(bytes(sorted({value & 0xFF for value in values})))


def _halves(low: int, high: int) -> tuple[bytes, bytes] | None:
    """Return classes of the low and of the high byte of the signed numbers of 16 bits from `low` to `high`; or None."""
    low, high = max(low, -1 << 15), min(high, (1 << 15) - 1)
    if low > high:
        return None
    return _byte_class(range(low, min(low + 255, high) + 1)), _byte_class(range(low >> 8, (high >> 8) + 1))


def _instructions(data: bytes, vaddr: int, low: int, high: int, last_byte: bytes) -> Iterator[int]:
    """Yield offsets of AArch64's instructions with such a last byte, and 16 bits from `low` to `high` before it."""
    halves = _halves(low, high)
    if halves is not None:
        for match in re.finditer(b"%b(?=%b%b)" % (*halves, last_byte), data, re.DOTALL):
            at = match.start() - 1
            if at >= 0 and (vaddr + at) % 4 == 0:
                yield at
