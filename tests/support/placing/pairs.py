# SPDX-License-Identifier: Apache-2.0
"""Pairs of a linked file without a section and with it."""

import struct
from functools import cache
from typing import Final, NamedTuple

from cfi2sframe.abi import AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.pyelftools_view import FileView
from tests.support.elf import edit
from tests.support.elf.elf_asm import Section, Segment, elf_file
from tests.support.placing.embedded import (
    LARGE,
    SMALL,
    embedded,
    linked_program,
    sframe,
    take_out,
    without_record,
    without_section_headers,
)

#: A type of program headers that nobody knows.
PT_OTHER: Final = 0x70000007


class File(edit.File):
    """The bytes of a linked file."""

    def dynamic(self, tag: int) -> int:
        """Return the file offset of a dynamic entry."""
        start = self.segment(c.PT_DYNAMIC).offset
        return next(at for at in range(start, len(self), 16) if self.get(at) == tag)

    def get(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self, at)[0])

    def put(self, at: int, *values: int) -> None:
        struct.pack_into(f"<{len(values)}Q", self, at, *values)

    def at(self, vaddr: int) -> int:
        """Return the file offset of an address."""
        offset = FileView(bytes(self)).offset_of(vaddr)
        assert offset is not None
        return offset


class Pair(NamedTuple):
    """A file without a section and with it."""

    bare: File
    full: File

    def check(self, *, by_others: bool = False) -> None:
        expect_equal(bytes(self.bare), bytes(self.full), by_others=by_others)

    def place_of(self, kind: int) -> int:
        """Return the address to which a program header led in the file without the section."""
        return self.bare.segment(kind).vaddr

    def vaddr_of(self, name: str) -> int:
        """Return where a section was."""
        return self.bare.section(name).addr


@cache
def _linked(linker: str, kind: str, size: int) -> tuple[bytes, bytes]:
    data = linked_program(linker, kind).read_bytes()
    return data, without_record(embedded(data, size)[1])


def slack() -> Pair:
    """Nothing is elsewhere."""
    return Pair(*map(File, _linked("bfd", "pie", SMALL)))


def inactive() -> Pair:
    """The last section header was there before, without a type, as removal without a record leaves others."""
    full = _linked("bfd", "pie", SMALL)[1]
    pair = Pair(File(take_out(full)), File(full))
    pair.bare.header.shnum += 1
    return pair


def moved() -> Pair:
    """.interp, notes, the hash table and the symbols of the loader are elsewhere, in a new segment."""
    return Pair(*map(File, _linked("mold", "pie", LARGE)))


def fixed() -> Pair:
    """Notes are elsewhere, of a program at fixed addresses."""
    return Pair(*map(File, _linked("mold", "nopie", LARGE)))


def headerless(linker: str = "bfd") -> Pair:
    """Only .interp and notes are elsewhere, and no section headers tell what was there."""
    bare, full = _linked(linker, "pie", LARGE)
    symbols = File(bare).section(".dynsym")
    place = slice(symbols.offset, symbols.offset + symbols.size)
    pair = Pair(*(File(without_section_headers(data)) for data in (bare, full)))
    if linker == "bfd":
        # They have indices of sections.
        pair.full[place] = pair.bare[place]
    return pair


RODATA, TEXT, DATA, BLOCK = 0x400800, 0x402000, 0x404800, 0x420000


def by_hand(
    *,
    block: int = BLOCK,
    at: int = 3,
    kind: int = c.ET_EXEC,
    with_phdr: bool = False,
    more: int = 0,
    alignment: int = 0x1000,
    data: bytes = b"\1" * 16,
) -> Pair:
    """A static program without section headers, with room after its program headers; the section is at `block`."""
    shift = 0x1000 if more else 0
    sections = [
        Section(".rodata", bytes(0x200).ljust(0x700, b"\3"), flags=c.SHF_ALLOC, addr=RODATA + shift),
        Section(".text", bytes(0x200) + b"\x90" * 0x1600, flags=c.SHF_ALLOC | c.SHF_EXECINSTR, addr=TEXT + shift),
        Section(".data", data, flags=c.SHF_ALLOC | c.SHF_WRITE, addr=DATA + shift, nobits_size=0x40),
    ]
    segments = [
        *[Segment(c.PT_PHDR, c.PF_R, (".rodata",), headers=True, align=8)] * with_phdr,
        Segment(c.PT_LOAD, c.PF_R, (".rodata",), headers=True, align=alignment),
        Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text",), align=alignment),
        Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".data",), align=alignment),
        *[Segment(PT_OTHER, 0, (".text",))] * more,
    ]
    made = Section(".sframe", sframe(SMALL), flags=c.SHF_ALLOC, addr=block)
    added = [Segment(c.PT_LOAD, c.PF_R, (".sframe",)), Segment(c.PT_GNU_SFRAME, c.PF_R, (".sframe",), align=8)]
    files = []
    for news in ([], added):
        parts = (*sections[:at], *[made] * bool(news), *sections[at:])
        content = elf_file(
            AMD64.elf_machine, parts, file_type=kind, entry_vaddr=TEXT, section_headers=False,
            segments=(*segments[: at + with_phdr], *news[:1], *segments[at + with_phdr :], *news[1:]),
        )  # fmt: skip
        files.append(File(content))
        if with_phdr:
            files[-1].segment(c.PT_PHDR).set(offset=64, vaddr=0x400040, paddr=0x400040)
    return Pair(*files)
