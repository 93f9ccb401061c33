# SPDX-License-Identifier: Apache-2.0
"""Pairs of a linked file without a section and with it, and faults to plant in them."""

import struct
from collections.abc import Callable
from functools import cache
from typing import Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.headers import ElfSection
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.pyelftools_view import FileView
from tests.support.elf.elf_asm import Section, Segment, elf_file
from tests.support.placing.embedded import (
    LARGE,
    P_ALIGN,
    P_FILESZ,
    P_FLAGS,
    P_MEMSZ,
    P_OFFSET,
    P_PADDR,
    P_VADDR,
    SMALL,
    embedded,
    linked_program,
    section_header,
    sframe,
    without_record,
    without_section_headers,
)  # fmt: skip

E_ENTRY, E_PHOFF, E_SHOFF, E_FLAGS, E_PHENTSIZE, E_PHNUM, E_SHSTRNDX = 24, 32, 40, 48, 54, 56, 62
SH_LINK, SH_INFO, SH_ADDRALIGN = 40, 44, 48
#: A type of program headers that nobody knows, and of dynamic entries: with an odd tag, a number.
PT_OTHER, DT_OTHER = 0x70000007, 33
PT_SFRAME: Final = 0x6474E554
PT_GNU_STACK: Final = 0x6474E551
DT_DEBUG: Final = 21


class File(bytearray):
    """The bytes of a file, with its headers found by what they are of."""

    def segment(self, kind: int, number: int = 0) -> int:
        """Return the file offset of a program header."""
        (start,), (count,) = (struct.unpack_from(form, self, at) for form, at in (("<Q", E_PHOFF), ("<H", E_PHNUM)))
        found = [at for at in range(start, start + 56 * count, 56) if struct.unpack_from("<I", self, at)[0] == kind]
        return found[number]

    def section(self, name: str) -> int:
        """Return the file offset of a section header."""
        return section_header(load(bytes(self)), name)

    def named(self, name: str) -> ElfSection:
        return next(section for section in load(bytes(self)).sections if section.name == name)

    def dynamic(self, tag: int) -> int:
        """Return the file offset of a dynamic entry."""
        (start,) = struct.unpack_from("<Q", self, self.segment(c.PT_DYNAMIC) + P_OFFSET)
        return next(at for at in range(start, len(self), 16) if struct.unpack_from("<Q", self, at)[0] == tag)

    def get(self, at: int) -> int:
        return int(struct.unpack_from("<Q", self, at)[0])

    def put(self, at: int, value: int, form: str = "<Q") -> None:
        struct.pack_into(form, self, at, value)

    def add(self, at: int, value: int, form: str = "<Q") -> None:
        self.put(at, struct.unpack_from(form, self, at)[0] + value, form)

    def flip(self, at: int) -> None:
        self[at] ^= 0x40

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


@cache
def _linked(linker: str, size: int) -> tuple[bytes, bytes]:
    data = linked_program(linker).read_bytes()
    return data, without_record(embedded(data, size)[1])


def slack() -> Pair:
    """Nothing is elsewhere."""
    return Pair(*map(File, _linked("bfd", SMALL)))


def moved() -> Pair:
    """.interp, notes, the hash table and the symbols of the loader are elsewhere, in a new segment."""
    return Pair(*map(File, _linked("mold", LARGE)))


def headerless(linker: str = "bfd") -> Pair:
    """Only .interp and notes are elsewhere, and no section headers tell what was there."""
    bare, full = _linked(linker, LARGE)
    (symbols,) = (section.file_span for section in load(bare).sections if section.name == ".dynsym")
    pair = Pair(*(File(without_section_headers(data)) for data in (bare, full)))
    if linker == "bfd":
        # They have indices of sections.
        pair.full[symbols.start : symbols.end] = pair.bare[symbols.start : symbols.end]
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
    added = [Segment(c.PT_LOAD, c.PF_R, (".sframe",)), Segment(PT_SFRAME, c.PF_R, (".sframe",), align=8)]
    files = []
    for news in ([], added):
        parts = (*sections[:at], *[made] * bool(news), *sections[at:])
        content = elf_file(
            AMD64.elf_machine, parts, file_type=kind, entry_vaddr=TEXT, section_headers=False,
            segments=(*segments[: at + with_phdr], *news[:1], *segments[at + with_phdr :], *news[1:]),
        )  # fmt: skip
        file = File(content)
        if with_phdr:
            for field, value in ((P_OFFSET, 64), (P_VADDR, 0x400040), (P_PADDR, 0x400040)):
                file.put(file.segment(c.PT_PHDR) + field, value)
        files.append(file)
    return Pair(*files)


class Fault(NamedTuple):
    """A part of the message of the check, the files, and the fault."""

    message: str
    make: Callable[[], Pair]
    plant: Callable[[Pair], object]


def fields(kind: int, number: int = 0, **deltas: int) -> Callable[[File], None]:
    """Return the fault of a program header, of which some fields are larger."""

    def plant(file: File) -> None:
        at = file.segment(kind, number)
        for name, delta in deltas.items():
            file.add(at + FIELDS[name], delta, "<I" if name == "flags" else "<Q")

    return plant


FIELDS: Final = {
    "flags": P_FLAGS, "offset": P_OFFSET, "vaddr": P_VADDR, "paddr": P_PADDR, "filesz": P_FILESZ, "memsz": P_MEMSZ,
    "align": P_ALIGN,
}  # fmt: skip


def section(name: str, field: int, delta: int, form: str = "<Q") -> Callable[[File], None]:
    """Return the fault of a section header, of which a field is larger."""
    return lambda file: file.add(file.section(name) + field, delta, form)


def header(field: int, delta: int, form: str = "<Q") -> Callable[[File], None]:
    return lambda file: file.add(field, delta, form)


def full(*plants: Callable[[File], None]) -> Callable[[Pair], None]:
    """Return faults of the file with the section."""

    def plant(pair: Pair) -> None:
        for each in plants:
            each(pair.full)

    return plant


def both(*plants: Callable[[File], None]) -> Callable[[Pair], None]:
    """Return faults of either file."""

    def plant(pair: Pair) -> None:
        for each in plants:
            each(pair.bare)
            each(pair.full)

    return plant


def retype(kind: int, new: int, number: int = 0) -> Callable[[File], None]:
    return lambda file: file.put(file.segment(kind, number), new, "<I")


def entry(tag: int, new: int, value: int) -> Callable[[File], None]:
    """Return the fault of another dynamic entry in the place of one."""

    def plant(file: File) -> None:
        at = file.dynamic(tag)
        file.put(at, new)
        file.put(at + 8, value)

    return plant


def flipped(vaddr: int, delta: int = 0) -> Callable[[File], None]:
    return lambda file: file.flip(file.at(vaddr) + delta)


def remapped(pair: Pair) -> None:
    """The end of the code is in a read-only segment; give it a pair `by_hand(at=2)`."""
    fields(c.PT_LOAD, 1, filesz=-0x800, memsz=-0x800)(pair.full)
    text, new = pair.full.segment(c.PT_LOAD, 1), pair.full.segment(c.PT_LOAD, 2)
    for field in (P_OFFSET, P_VADDR, P_PADDR):
        pair.full.put(new + field, pair.full.get(text + field) + 0x1000)
    for field in (P_FILESZ, P_MEMSZ):
        pair.full.put(new + field, 0x800)


def needs(level: int) -> Callable[[File], None]:
    """Return the fault of a property that asks for a processor, which glibc reads of a PT_NOTE alone."""

    def plant(file: File) -> None:
        start = file.get(file.segment(c.PT_GNU_PROPERTY) + P_OFFSET)
        file.put(start + 16, 0xC0008002, "<I")
        file.put(start + 24, level, "<I")

    return plant


def another_section(file: File) -> None:
    """The table of section headers, which ends the file, has one more."""
    file.extend(file[file.section(".comment") :][:64])
    file.add(60, 1, "<H")


def swap(file: File) -> None:
    """Exchange the last two program headers that are not of the section."""
    first, second = file.segment(PT_GNU_STACK), file.segment(c.PT_GNU_RELRO)
    file[first : first + 56], file[second : second + 56] = file[second : second + 56], file[first : first + 56]


def old_place(pair: Pair, kind: int) -> int:
    """Return where a program header led to in the file without the section."""
    return pair.bare.get(pair.bare.segment(kind) + P_VADDR)


def leads_to_old(tag: int) -> Callable[[Pair], None]:
    """Return the fault of a dynamic entry that leads to where .interp was, in both files."""

    def plant(pair: Pair) -> None:
        vaddr = old_place(pair, c.PT_INTERP)
        both(entry(DT_DEBUG, tag, vaddr))(pair)

    return plant


def other_header(pair: Pair) -> None:
    """A header of a kind that nobody follows leads to where .interp was."""
    vaddr = old_place(pair, c.PT_INTERP)
    for file in pair:
        at = file.segment(PT_GNU_STACK)
        file.put(at, PT_OTHER, "<I")
        for field in (P_OFFSET, P_VADDR, P_PADDR):
            file.put(at + field, vaddr if field != P_OFFSET else file.at(vaddr))
        for field in (P_FILESZ, P_MEMSZ):
            file.put(at + field, 4)


def junk_at_old(pair: Pair) -> None:
    """Other bytes are where the property note was, after the new program headers."""
    at = pair.bare.segment(c.PT_GNU_PROPERTY)
    pair.full[pair.bare.get(at + P_OFFSET) + pair.bare.get(at + P_FILESZ) - 2] ^= 0x15


def elsewhere_copy(pair: Pair) -> None:
    """PT_INTERP leads to the same bytes in the file, which are not at its address."""
    at = pair.full.segment(c.PT_INTERP)
    start, size = pair.full.get(at + P_OFFSET), pair.full.get(at + P_FILESZ)
    pair.full.put(at + P_OFFSET, len(pair.full))
    pair.full.extend(pair.full[start : start + size])


def grown_data(file: File) -> None:
    """Zeros that an allocator takes become bytes of the file that are none."""
    fields(c.PT_LOAD, 2, filesz=0x60, memsz=0x30)(file)
    file.flip(file.at(DATA + 0x50))


def new_load(pair: Pair, vaddr: int) -> None:
    """The new segment, with all that leads to the section, is at another address."""
    delta = vaddr - BLOCK
    for kind, number in ((c.PT_LOAD, 3), (PT_SFRAME, 0)):
        fields(kind, number, vaddr=delta, paddr=delta)(pair.full)


def moved_table(vaddr: int | None = None) -> Callable[[Pair], None]:
    """Return the fault of program headers that are at an address of zeros, or after all that is loaded."""

    def plant(pair: Pair) -> None:
        file = pair.full
        (count,) = struct.unpack_from("<H", file, E_PHNUM)
        table = file[64 : 64 + 56 * count]
        offset = len(file) if vaddr is None else file.at(vaddr)
        file[64 : 64 + len(table)] = pair.bare[64 : 64 + len(table)]
        file[offset : offset + len(table)] = table
        file.put(E_PHOFF, offset)
        if struct.unpack_from("<I", table)[0] == c.PT_PHDR:
            at = file.segment(c.PT_PHDR)
            for field, value in ((P_OFFSET, offset), (P_VADDR, vaddr or 0), (P_PADDR, vaddr or 0)):
                file.put(at + field, value)

    return plant


def overwrites(pair: Pair) -> None:
    """The section is where the segment with headers had a byte."""
    for file in pair:
        fields(c.PT_LOAD, 0, filesz=0x100, memsz=0x100)(file)
    retype(c.PT_LOAD, 0, 1)(pair.full)
    pair.bare.flip(pair.bare.at(RODATA + 0x7A0))


def relocation_to(name: str) -> Callable[[Pair], None]:
    """Return the fault of a relocation that stores an address in where a section was."""

    def plant(pair: Pair) -> None:
        vaddr = where(pair, name) + 1
        for file in pair:
            table = file.named(".rela.dyn").file_span
            at = next(at for at in range(*table, 24) if file.get(at + 8) == AMD64.relative_relocation)
            file.put(at + 16, vaddr)

    return plant


def fixed() -> Pair:
    """Notes are elsewhere, of a program at fixed addresses."""
    data = linked_program("mold", "nopie").read_bytes()
    return Pair(File(data), File(without_record(embedded(data, LARGE)[1])))


def address_of(name: str) -> Callable[[Pair], None]:
    """Return the fault of a number in .data that is where a section was."""

    def plant(pair: Pair) -> None:
        vaddr = where(pair, name)
        for file in pair:
            file.put(file.named(".data").file_offset + 8, vaddr)

    return plant


def where(pair: Pair, name: str) -> int:
    """Return where a section was."""
    return pair.bare.named(name).vaddr


def content(name: str, delta: int = 1) -> Callable[[File], None]:
    """Return the fault of a byte of a section."""
    return lambda file: file.flip(file.named(name).file_offset + delta)


def put_section(name: str, field: int, value: int, form: str = "<Q") -> Callable[[File], None]:
    return lambda file: file.put(file.section(name) + field, value, form)
