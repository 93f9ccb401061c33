# SPDX-License-Identifier: Apache-2.0
"""Search a linked file for what may refer to a few of its bytes, other than by headers, dynamic entries and symbols.

These are the forms that compilers and linkers write, wherever a segment is loaded. `tests/elf/test_readers.py` has a
program for each of them:

    form                             where           written for
    relocation                       data            pointers in files at any address; also SHT_RELR, Android's RELR
    address, 8 bytes, aligned        data            files at fixed addresses
    the same, not aligned; 4 bytes   data, rare      packed records, assembly
    address, 4 bytes                 code            operands of AMD64 at fixed addresses, literals
    distance from itself, 4 or 8     data, rare      relative pointers: vtables of LLVM, tables of Swift and Linux
    distance from the GOT, 8         data, code      @GOTOFF: the large code models, s390x
    distance from the instruction    code of AMD64   a ModRM byte, then the distance; an immediate may follow
    ADR, LDR (literal), ADRP         AArch64
    MOVZ and MOVK                    AArch64         fixed addresses, the large code model
    LARL and other relative ones     s390x

Code is all of an executable segment, data is all that is loaded. Bytes are matched, so chance matches count, too. Only
code of AMD64 is decoded around a match, since bytes inside of many instructions match. Rare forms, and addresses near
the wanted bytes, count only on request: tables of Unicode, of Go and of character sets are full of such numbers.

Not found: an address that a program computes from another one, a distance that is stored as a difference to a third
address, and what a compiler adds to an address beyond the margins below.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, Literal, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries, dynamic_tables, has_packed_relocations, words_of
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.operands import Amd64Code, aarch64_operands, distances, s390x_operands
from cfi2sframe.range_map import Span, touches, united, without

#: Bytes before and after the wanted ones that count, too: code also reads an array from its end, or by an index that
#: starts at 1 (LLVM at -O1, GCC at -Os).
_BEFORE: Final = 16
_AFTER: Final = 1
#: Bytes that are searched at one time: few enough that distances into a span have few upper halves.
_PIECE_SIZE: Final = 1 << 16
#: Bytes of the next piece that are added, for the longest number and for what follows an ADRP.
_OVERLAP: Final = 1 << 8
#: Program headers that readers follow to their bytes.
_LED_TO: Final = frozenset({c.PT_DYNAMIC, c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY, c.PT_GNU_EH_FRAME})
#: Dynamic entries that lead to tables of loaders, and the names of other tables that are read in their own format.
_TABLES: Final = (c.DT_HASH, c.DT_GNU_HASH, c.DT_SYMTAB, c.DT_STRTAB, c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED, c.DT_RELA)
_TABLE_NAMES: Final = (".eh_frame", ".gopclntab")


class Referrer(NamedTuple):
    """The address of a word, or of a number in an instruction, that may refer to the address `target`."""

    vaddr: int
    target: int


def referrers(image: ElfImage, spans: Iterable[tuple[int, int]], *, rare: bool = True) -> Iterator[Referrer]:
    """Yield what may refer to any address of some spans `[start, end)`, in one of the forms above; some twice.

    `rare`: also in the rare forms, or to addresses just beside. Raises `ElfError` where a table of relocations leaves
    the file, `InputError` where capstone is needed and cannot be loaded.
    """
    asked = united(spans)
    if not asked:
        return
    wanted = united((start - _BEFORE, end + _AFTER) for start, end in asked) if rare else asked
    yield from relocated(image, wanted)
    yield from _ReferrerSearch(image, wanted, rare=rare).matches(asked)


def relocated(image: ElfImage, spans: Iterable[tuple[int, int]]) -> list[Referrer]:
    """Return the addresses in some spans that relative relocations store, and those at which any relocation stores.

    Android's packed relocations are not read: where there are any, the first address is returned. Raises `ElfError`
    where a table leaves the file.
    """
    wanted = united(spans)
    if wanted and has_packed_relocations(image):
        return [Referrer(wanted[0].start, wanted[0].start)]
    first, end = (wanted[0].start, wanted[-1].end) if wanted else (0, 0)
    stored = list[Referrer]()
    for table in dynamic_tables(image) if wanted else ():
        stored += _compact(image, list(table.packed()), Span(first, end))
        places, infos, addends = table.columns()
        stored += [Referrer(place, place) for place in places if first <= place < end]
        leading = [n for n, addend in enumerate(addends) if first <= addend < end]
        stored += [
            Referrer(places[n], addends[n]) for n in leading if infos[n] & 0xFFFFFFFF == image.arch.relative_relocation
        ]
    return [referrer for referrer in stored if _is_in(wanted, referrer.target)]


def _compact(image: ElfImage, packed: Sequence[tuple[int, int]], hull: Span) -> Iterator[Referrer]:
    """Yield what `relocated` returns, for compact relocations (SHT_RELR): relocated words have the addends."""
    words = []
    for load in image.loads if packed else ():
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


def _is_in(spans: Sequence[Span], vaddr: int) -> bool:
    return touches(spans, Span(vaddr, vaddr + 1))


class _ReferrerSearch:
    """A search of an image's loaded bytes for what may refer to some ascending spans that do not touch."""

    def __init__(self, image: ElfImage, wanted: Sequence[Span], *, rare: bool) -> None:
        self.image = image
        self.wanted = wanted
        self.rare = rare
        self.amd64 = Amd64Code(image, rare=rare)
        self.order = image.byte_order
        self.is_fixed = image.header.type == c.ET_EXEC
        #: The possible origins of @GOTOFF: `_GLOBAL_OFFSET_TABLE_` is in one of these sections.
        gots = [section.vaddr for name in (".got", ".got.plt") for section in image.sections_named(name)]
        self.gots = {*gots, dynamic_entries(image).get(c.DT_PLTGOT, 0)} - {0}

    def matches(self, apart: Iterable[Span]) -> Iterator[Referrer]:
        """Yield what may refer to the spans, from all loaded addresses except those `apart`."""
        apart = [*apart, *self._read_otherwise()]
        for load in self.image.loads:
            for start, end in without([load.stored_vaddrs], apart):
                for vaddr in range(start, end, _PIECE_SIZE):
                    data = self.image.bytes_at(vaddr, min(_PIECE_SIZE + _OVERLAP, end - vaddr)) or b""
                    yield from self._data(data, vaddr)
                    if load.flags & c.PF_X:
                        yield from self._code(data, vaddr)

    def _read_otherwise(self) -> list[Span]:
        """Return the addresses of headers, and of tables that are read in their own format.

        Headers name sections on purpose. Tables are full of small numbers, which as distances lead nearby.
        """
        dynamic = dynamic_entries(self.image)
        starts = {dynamic.get(tag) for tag in _TABLES}
        tables = [Span(s.vaddr, s.end_vaddr) for s in self.image.segments if s.type in _LED_TO]
        tables += [
            Span(section.vaddr, section.end_vaddr)
            for section in self.image.sections
            if section.flags & c.SHF_ALLOC and (section.vaddr in starts or section.name in _TABLE_NAMES)
        ]
        header = self.image.header
        headers = (
            Span(0, FILE_HEADER_SIZE),
            _span(header.program_headers_offset, PROGRAM_HEADER_SIZE * header.program_header_count),
            _span(header.section_headers_offset, SECTION_HEADER_SIZE * header.section_header_count),
        )
        return [*tables, *self.image.segment_map.vaddrs_of(headers)]

    def _data(self, data: bytes, vaddr: int) -> Iterator[Referrer]:
        """Yield numbers that are addresses, or distances from themselves or from the GOT."""
        code = self.image.code_range_of(vaddr)
        has_rare = self.rare and not (code is not None and self.image.sections and vaddr + len(data) <= code.end_vaddr)
        # From 8 bytes to their lower half.
        shift = 4 if self.order == ">" else 0
        for start, end in self.wanted:
            if self.is_fixed:
                for at in _numbers(data, start, end, self.order, 4):
                    (number,) = struct.unpack_from(self.order + "I", data, at)
                    address = start + (number - start & 0xFFFFFFFF)
                    if self._may_be_address(data, at, vaddr + at, address):
                        yield Referrer(vaddr + at, address)
            for base in self.gots:
                for at in _numbers(data, start - base, end - base, self.order, 8):
                    if (vaddr + at) % 4 == 0 or self.image.may_execute(vaddr + at):
                        (number,) = struct.unpack_from(self.order + "q", data, at)
                        yield Referrer(vaddr + at + shift, base + number)
            # The lower half of 8 big-endian bytes counts from the place of the upper one.
            for at, number in distances(data, vaddr, Span(start, end + shift), self.order) if has_rare else ():
                place = vaddr + at
                if number and place % 4 == 0 and self._may_be_data(place):
                    yield from self._wanted(place, place + number)
                    yield from self._wanted(place, place - shift + number)

    def _may_be_address(self, data: bytes, at: int, place: int, address: int) -> bool:
        """Return whether 4 bytes, which are the lower half of an address, may stand for it."""
        if self._whole(data, at) == address and (self.rare or place % 4 == 0):
            return True
        if address >> 32:
            return False
        if self.rare and place % 4 == 0 and self._may_be_data(place):
            return True
        if not self.image.may_execute(place):
            return False
        if self.image.arch.elf_machine != c.EM_X86_64:
            return place % self.image.arch.instruction_alignment == 0
        return self.amd64.is_operand(place, address)

    def _may_be_data(self, place: int) -> bool:
        """Return whether a place is outside of sections with code: executable segments have data, too."""
        return not self.image.sections or self.image.code_range_of(place) is None

    def _whole(self, data: bytes, at: int) -> int | None:
        """Return the signed number of 8 bytes whose lower half is at an offset; None where there is none."""
        first = at - 4 if self.order == ">" else at
        return struct.unpack_from(self.order + "q", data, first)[0] if 0 <= first <= len(data) - 8 else None

    def _code(self, data: bytes, vaddr: int) -> Iterator[Referrer]:
        """Yield operands that are distances, or parts of an address."""
        for span in self.wanted:
            if self.image.arch.elf_machine == c.EM_X86_64:
                operands = self.amd64.operands(data, vaddr, span)
            elif self.image.arch.elf_machine == c.EM_AARCH64:
                operands = aarch64_operands(self.image, data, vaddr, span, is_fixed=self.is_fixed)
            else:
                operands = s390x_operands(data, vaddr, span)
            yield from (Referrer(place, target) for place, target in operands)

    def _wanted(self, place: int, target: int) -> Iterator[Referrer]:
        if _is_in(self.wanted, target):
            yield Referrer(place, target)


def _span(start: int, size: int) -> Span:
    return Span(start, start + size)


def _numbers(data: bytes, start: int, end: int, order: str, size: int) -> Iterator[int]:
    """Yield the offsets of numbers, wherever they start, whose value (modulo their size) is in `[start, end)`.

    They have `size` bytes: the more, the faster the search.
    """
    byte_order: Literal["little", "big"] = "little" if order == "<" else "big"
    mask = (1 << 8 * size) - 1
    for high in range(start >> 8, (end - 1 >> 8) + 1):
        packed = (high << 8 & mask).to_bytes(size, byte_order)
        # Its bytes but for the lowest one.
        rest, skipped = (packed[1:], 1) if order == "<" else (packed[:-1], 0)
        at = data.find(rest, skipped)
        while 0 <= at <= len(data) - size + skipped:
            number = int.from_bytes(data[at - skipped : at - skipped + size], byte_order)
            if number - start & mask < end - start:
                yield at - skipped
            at = data.find(rest, at + 1)
