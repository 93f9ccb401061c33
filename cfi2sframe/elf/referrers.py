# SPDX-License-Identifier: Apache-2.0
"""Who can refer to some addresses of a linked file, other than tables that loaders read: its code, data, relocations.

A compiler or linker resolves most references of code, and leaves no trace of them but the instruction. So code is
searched for what, read as a distance from where it stands, or as an address in a file at fixed ones, leads to the
addresses. The instructions of AMD64 and s390x have several sizes, and tables of functions seldom name all code. So each
place is decoded from some hundred bytes before it on: whichever byte is taken for the first one, the same instructions
follow soon, since code has no gaps but fill. Where there is more than one way, all count; where bytes are no
instructions, what looks like a reference does. Only behind data in code that has no FDE, an instruction may be missed.

Not counted are the entries of the dynamic section, the ELF header, program headers, and symbols: who needs these to
agree with the addresses can compare them.
"""

import re
import struct
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.disassembler import AMD64_DISASSEMBLER, open_disassembler
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.references import dynamic_tables, packed_words, words_of
from cfi2sframe.range_map import Span, common, touches, united, without

#: Bytes that are searched at one time, and those after them that an instruction, or two, may need.
_PIECE_SIZE: Final = 1 << 18
_OVERLAP: Final = 1 << 10
#: Bytes that are decoded before a place: after them, one way was left at 12,283 of 12,300 places, and 16,433 of 16,436
#: starts of functions were on it, the others right after data.
_LEAD: Final = 1 << 7
_WORD: Final = struct.Struct("<I")
_DISTANCE: Final = struct.Struct("<i")

#: AMD64: a ModRM byte says that a distance follows. It counts from the end of the instruction, which may have an
#: immediate operand of so many bytes (Intel's manual, volume 2, 2.2.1.6).
_MOD_RM: Final = rb"[\x05\x0d\x15\x1d\x25\x2d\x35\x3d]"
_IMMEDIATE_SIZES: Final = (0, 1, 2, 4)
_RELATIVE: Final = re.compile(r"\[[re]ip ([+-]) (\w+)\]")
_NUMBER: Final = re.compile(r"(?<!- )0x[0-9a-f]+")
#: The first two bytes of its NOPs with operands, as a number.
_NOP: Final = 0x1F0F

#: AArch64: the last bytes of ADRP, and of ADR and LDR (literal), which reach 1 MiB.
_ADRP: Final = rb"[\x90\xb0\xd0\xf0]"
_NEAR: Final = rb"[\x10\x30\x50\x70\x18\x1c\x58\x5c\x98\x9c]"
_NEAR_REACH: Final = 1 << 20
_PAGE_BITS: Final = 12

#: s390x: the first byte, and the second byte's low digit, of what has a distance of 32 bits, in halfwords, to an
#: operand: LARL; loads, stores and so on; comparisons (z/Architecture Principles of Operation, RIL formats b and c).
_RELATIVE_LONG: Final = ((0xC0, (0,)), (0xC4, (2, *range(4, 9), *range(0xB, 0x10))), (0xC6, (0, 2, *range(4, 16))))


class Referrer(NamedTuple):
    """The address of an instruction, or of a word, that refers to the address `target`."""

    vaddr: int
    target: int


class Decoded(NamedTuple):
    """The address of an instruction, its size in bytes, and the addresses that it names."""

    vaddr: int
    size: int
    targets: list[int]


def referrers(image: ElfImage, spans: Iterable[tuple[int, int]]) -> list[Referrer]:
    """Return what can refer to any address of some spans `[start, end)` in a linked file.

    An empty answer is a proof, up to addresses that code computes. Raises `InputError` where code has to be decoded and
    capstone cannot be loaded, `ElfError` where a table of relocations leaves the file.
    """
    wanted = united(spans)
    if not wanted:
        return []
    hull = Span(wanted[0].start, wanted[-1].end)
    found = [*_relocated(image, hull)]
    if image.header.type == c.ET_EXEC:
        found += _words(image, hull)
    found = [each for each in found if _is_in(wanted, each.target)]
    return [*found, *_Code(image, wanted).referrers()]


def _is_in(spans: Sequence[Span], vaddr: int) -> bool:
    return touches(spans, Span(vaddr, vaddr + 1))


# Relocations and words


def _relocated(image: ElfImage, hull: Span) -> Iterator[Referrer]:
    """Yield the addresses within a span that relative relocations store, and those at which any relocation stores."""
    relative = image.arch.relative_relocation
    for is_compact, data in dynamic_tables(image):
        if is_compact:
            yield from _compact(image, packed_words(words_of(data, image.byte_order, 1)), hull)
            continue
        words = words_of(data, image.byte_order, 3)
        for place, info, addend in zip(words[0::3], words[1::3], words[2::3], strict=True):
            if hull.start <= place < hull.end:
                yield Referrer(place, place)
            if hull.start <= addend < hull.end and info & 0xFFFFFFFF == relative:
                yield Referrer(place, addend)


def _compact(image: ElfImage, packed: Iterable[tuple[int, int]], hull: Span) -> Iterator[Referrer]:
    """Yield the same of compact relocations, whose addends are in the words that they name."""
    words = []
    for load in image.loads:
        skipped = -load.vaddr % 8
        if load.flags & c.PF_W and load.file_size > skipped:
            data = image.bytes_at(load.vaddr + skipped, load.file_size - skipped) or b""
            words.append((load.vaddr + skipped, words_of(data, image.byte_order, 1)))
    for start, bitmap in packed:
        for vaddr, stored in words:
            first = (start - vaddr) // 8
            for number in range(max(first, 0), min(first + bitmap.bit_length(), len(stored))):
                if bitmap >> (number - first) & 1:
                    place = vaddr + 8 * number
                    if hull.start <= stored[number] < hull.end:
                        yield Referrer(place, stored[number])
                    if hull.start <= place < hull.end:
                        yield Referrer(place, place)


def _words(image: ElfImage, hull: Span) -> Iterator[Referrer]:
    """Yield the words of 8 bytes that are loaded and have an address of a span."""
    loaded = [Span(load.vaddr, load.vaddr + load.file_size) for load in image.loads]
    # Call frame instructions are followed by zeros.
    frames = [Span(section.vaddr, section.end_vaddr) for section in image.sections_named(".eh_frame")]
    dynamic = [Span(s.vaddr, s.end_vaddr) for s in image.segments if s.type == c.PT_DYNAMIC]
    for start, end in without(loaded, [*_headers(image), *frames, *dynamic]):
        for vaddr, data in _pieces(image, start, end):
            found = _numbers(data, vaddr, hull, "<Q" if image.byte_order == "<" else ">Q")
            yield from (each for each in found if each.vaddr % 8 == 0 and not _is_nop(image, each))


def _is_nop(image: ElfImage, found: Referrer) -> bool:
    """Whether a word of code is a NOP of AMD64, `0f 1f 40 00`, which zeros follow."""
    is_alike = image.arch.elf_machine == c.EM_X86_64 and found.target & 0xFFFF == _NOP
    return is_alike and image.code_range_of(found.vaddr) is not None


def _headers(image: ElfImage) -> Iterator[Span]:
    """Yield the addresses of the ELF header, and of the program headers."""
    table = image.header.program_headers_offset
    for load in image.loads:
        bias = load.vaddr - load.file_offset
        for start, size in ((0, FILE_HEADER_SIZE), (table, PROGRAM_HEADER_SIZE * len(image.segments))):
            if load.file_offset <= start < load.file_span.end:
                yield Span(start + bias, start + bias + size)


def _numbers(data: bytes, vaddr: int, hull: Span, form: str) -> Iterator[Referrer]:
    """Yield the numbers of a form, wherever they start, that are in a span; `data` is at `vaddr`."""
    size = struct.calcsize(form)
    for high in range(hull.start >> 16, min(hull.end - 1 >> 16, (1 << 8 * size - 16) - 1) + 1):
        packed = struct.pack(form, high << 16)
        # Its bytes but for the two lowest ones.
        rest, skipped = (packed[2:], 2) if form[0] == "<" else (packed[:-2], 0)
        at = data.find(rest, skipped)
        while 0 <= at <= len(data) - size + skipped:
            (number,) = struct.unpack_from(form, data, at - skipped)
            if hull.start <= number < hull.end:
                yield Referrer(vaddr + at - skipped, number)
            at = data.find(rest, at + 1)


def _pieces(image: ElfImage, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    """Yield the bytes of a span of addresses in pieces, which overlap, each with its address."""
    for at in range(start, end, _PIECE_SIZE):
        yield at, image.bytes_at(at, min(_PIECE_SIZE + _OVERLAP, end - at)) or b""


# Code


def _byte_class(values: Iterable[int]) -> bytes:
    return b"[%b]" % re.escape(bytes(sorted({value & 0xFF for value in values})))


def _halves(low: int, high: int) -> tuple[bytes, bytes] | None:
    """Return classes of the low and of the high byte of the signed numbers of 16 bits from `low` to `high`; or None."""
    low, high = max(low, -1 << 15), min(high, (1 << 15) - 1)
    if low > high:
        return None
    return _byte_class(range(low, min(low + 255, high) + 1)), _byte_class(range(low >> 8, (high >> 8) + 1))


class _Code:
    """The executable bytes of an image, and what in them refers to some ascending spans that do not touch."""

    def __init__(self, image: ElfImage, wanted: Sequence[Span]) -> None:
        self.image = image
        self.wanted = wanted
        self.hull = Span(wanted[0].start, wanted[-1].end)
        self.is_fixed = image.header.type == c.ET_EXEC

    def referrers(self) -> Iterator[Referrer]:
        """Yield the instructions, or what may be ones, that refer to the spans."""
        loads = [load for load in self.image.loads if load.flags & c.PF_X]
        others = [s for s in self.image.sections if s.flags & c.SHF_ALLOC and not s.flags & c.SHF_EXECINSTR]
        data = [*_headers(self.image), *(Span(s.vaddr, s.end_vaddr) for s in others if s.is_stored)]
        finders = {c.EM_X86_64: self._amd64, c.EM_AARCH64: self._aarch64, c.EM_S390: self._s390x}
        find = finders[self.image.arch.elf_machine]
        suspects: dict[int, int] = {}
        code = without([Span(s.vaddr, s.vaddr + s.file_size) for s in loads], data)
        for start, end in code:
            for vaddr, piece in _pieces(self.image, start, end):
                for at, target in find(piece, vaddr):
                    if _is_in(self.wanted, target):
                        suspects.setdefault(at, target)
        if self.image.arch.elf_machine == c.EM_AARCH64:
            yield from (Referrer(at, target) for at, target in suspects.items())
            return
        for window in common(code, ((place - _LEAD, place + 1) for place in suspects)):
            known = self._starts[bisect_left(self._starts, window.start) : bisect_left(self._starts, window.end)]
            for start, end in pairwise(sorted({*window, *known})):
                yield from self._decoded(Span(start, end), suspects)

    def _amd64(self, data: bytes, vaddr: int) -> Iterator[tuple[int, int]]:
        """Yield the places of distances, and where they lead."""
        if self.is_fixed:
            yield from _numbers(data, vaddr, self.hull, "<I" if self.hull.end <= 1 << 32 else "<Q")
        reach = 4 + max(_IMMEDIATE_SIZES)
        halves = _halves(self.hull.start - vaddr - len(data) - reach >> 16, self.hull.end - vaddr >> 16)
        if halves is None:
            return
        for match in re.finditer(_MOD_RM + b"(?=..%b%b)" % halves, data, re.DOTALL):
            at = match.end()
            base = vaddr + at + 4 + _DISTANCE.unpack_from(data, at)[0]
            yield from ((vaddr + at, base + size) for size in _IMMEDIATE_SIZES if _is_in(self.wanted, base + size))

    def _aarch64(self, data: bytes, vaddr: int) -> Iterator[tuple[int, int]]:
        """Yield instructions, and what they refer to; their bits 8 to 23 are bits 5 to 20 of the distance."""
        low, high = self.hull.start - vaddr - len(data), self.hull.end - vaddr
        first = -vaddr % 4
        for at in self._offsets(data, first, max(low, -_NEAR_REACH) >> 5, min(high, _NEAR_REACH) >> 5, _NEAR):
            word = _WORD.unpack_from(data, at)[0]
            distance = (word >> 5 & 0x7FFFF) << 2 | (0 if word >> 24 & 8 else word >> 29 & 3)
            yield vaddr + at, vaddr + at + (distance ^ 0x100000) - 0x100000
        for at in self._offsets(data, first, low >> _PAGE_BITS + 5, (high >> _PAGE_BITS) + 1 >> 5, _ADRP):
            word = _WORD.unpack_from(data, at)[0]
            pages = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
            page = (vaddr + at >> _PAGE_BITS) + (pages ^ 0x100000) - 0x100000 << _PAGE_BITS
            if touches(self.wanted, Span(page, page + (1 << _PAGE_BITS))):
                yield from ((vaddr + at, target) for target in self._in_page(data, at, word & 31, page))

    @staticmethod
    def _offsets(data: bytes, first: int, low: int, high: int, last_byte: bytes) -> Iterator[int]:
        """Yield where there are instructions with such a last byte, and a number from `low` to `high` before it.

        The first instruction starts at the offset `first`.
        """
        halves = _halves(low, high)
        if halves is not None:
            for match in re.finditer(b"%b(?=%b%b)" % (*halves, last_byte), data, re.DOTALL):
                at = match.start() - 1
                if at >= first and (at - first) % 4 == 0:
                    yield at

    def _in_page(self, data: bytes, at: int, register: int, page: int) -> Iterator[int]:
        """Yield what is added to an address of a page by the instructions after its ADRP.

        Where nothing is, the whole page counts.
        """
        is_used = False
        for (word,) in _WORD.iter_unpack(data[at + 4 : at + min(_OVERLAP, (len(data) - at) // 4 * 4)]):
            if word >> 5 & 31 != register:
                continue
            number = word >> 10 & 0xFFF
            if word & 0x7FC00000 == 0x11000000:
                # ADD (immediate), not shifted.
                target = page + number
            elif word & 0x3B000000 == 0x39000000:
                # Loads and stores with an unsigned offset, which counts units of the size; 16 bytes are an exception.
                target = page + (number << (4 if word & 0xC4800000 == 0x04800000 else word >> 30))
            else:
                continue
            is_used = True
            yield target
        if not is_used:
            yield from (max(span.start, page) for span in self.wanted if touches([span], Span(page, page + 4096)))

    def _s390x(self, data: bytes, vaddr: int) -> Iterator[tuple[int, int]]:
        """Yield the places of distances, and where they lead."""
        halves = _halves(self.hull.start - vaddr - len(data) >> 17, self.hull.end - vaddr >> 17)
        if halves is None:
            return
        for first, kinds in _RELATIVE_LONG:
            second = _byte_class(register << 4 | kind for register in range(16) for kind in kinds)
            for match in re.finditer(
                re.escape(bytes([first])) + b"(?=%b%b%b..)" % (second, halves[1], halves[0]), data, re.DOTALL
            ):
                at = match.start()
                if (vaddr + at) % 2 == 0:
                    yield vaddr + at + 2, vaddr + at + 2 * int.from_bytes(data[at + 2 : at + 6], "big", signed=True)

    def _decoded(self, window: Span, suspects: Mapping[int, int]) -> Iterator[Referrer]:
        """Yield the instructions in some addresses, or what may be ones, that refer to the spans.

        `suspects` maps places of numbers to what these would mean.
        """
        is_s390x = self.image.arch.elf_machine == c.EM_S390
        decode, step, largest = (_decode_s390x, 2, 6) if is_s390x else (self._decode_amd64, 1, 15)
        index = bisect_left(self._starts, window.start)
        is_known = self._starts[index : index + 1] == [window.start]
        possible = {window.start} if is_known else {*range(window.start, window.start + largest, step)}
        data = self._bytes(window.start, window.end + largest)
        while (start := min(possible)) < window.end:
            possible.remove(start)
            end, offset = start, start - window.start
            # One at a time, as long as there are other ways.
            for vaddr, size, targets in decode(data[offset : offset + _LEAD], start, 1 if possible else 0):
                yield from (Referrer(vaddr, target) for target in targets if _is_in(self.wanted, target))
                end = vaddr + size
                if not data[vaddr - window.start]:
                    # Zeros may fill, but `00 41 57` is an instruction, too.
                    possible.add(vaddr + step)
                if possible:
                    break
            if start < end:
                possible.add(end)
            elif not possible:
                # No way is left.
                possible.update(range(start + step, start + largest + 1, step))
                unknown = range(start, min(start + largest, window.end))
                yield from (Referrer(place, suspects[place]) for place in unknown if place in suspects)

    def _decode_amd64(self, data: bytes, vaddr: int, count: int) -> Iterator[Decoded]:
        """Yield the instructions at an address, up to the first bytes that are none; at most `count`, if not 0."""
        for at, size, _, operands in self._disassembler.disasm_lite(data, vaddr, count):
            targets = [at + size + int(sign + number, 0) for sign, number in _RELATIVE.findall(operands)]
            numbers = _NUMBER.findall(_RELATIVE.sub("", operands)) if self.is_fixed else ()
            yield Decoded(at, size, [*targets, *(int(number, 0) for number in numbers)])

    def _bytes(self, start: int, end: int) -> bytes:
        """Return the bytes of code at addresses, up to the end of their segment."""
        ends = [load.vaddr + load.file_size for load in self.image.loads if load.vaddr <= start]
        return self.image.bytes_at(start, min(end, max(ends, default=0)) - start) or b""

    @cached_property
    def _disassembler(self) -> Any:  # noqa: ANN401 - capstone has no types
        return open_disassembler(AMD64_DISASSEMBLER, "what code refers to is found")

    @cached_property
    def _starts(self) -> list[int]:
        """The starts of functions that the table of FDEs has, ascending (LSB, "Exception Frame Header")."""
        for header in (s for s in self.image.segments if s.type == c.PT_GNU_EH_FRAME):
            data = self.image.bytes_at(header.vaddr, header.file_size) or b""
            if len(data) >= 12 and data[:4] == b"\1\x1b\3\x3b":
                table = memoryview(data)[12 : 12 + 8 * struct.unpack_from(self.image.byte_order + "I", data, 8)[0]]
                pairs = struct.iter_unpack(self.image.byte_order + "ii", table[: len(table) // 8 * 8])
                return sorted(header.vaddr + start for start, _ in pairs)
        return []


def _decode_s390x(data: bytes, vaddr: int, _count: int) -> Iterator[Decoded]:
    """Yield the instructions at an address: the first two bits tell the size."""
    at = 0
    while at < len(data) and at + (size := (2, 4, 4, 6)[data[at] >> 6]) <= len(data):
        is_relative = any(data[at] == first and data[at + 1] & 15 in kinds for first, kinds in _RELATIVE_LONG)
        distance = int.from_bytes(data[at + 2 : at + 6], "big", signed=True)
        yield Decoded(vaddr + at, size, [vaddr + at + 2 * distance] if is_relative else [])
        at += size
