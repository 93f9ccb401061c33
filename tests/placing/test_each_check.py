# SPDX-License-Identifier: Apache-2.0
"""Each check of the judge of rewritten files refuses a fault of its own."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.errors import EmbedError
from tests.support.placing.pairs import (
    BLOCK,
    DATA,
    PT_OTHER,
    RODATA,
    TEXT,
    File,
    Pair,
    by_hand,
    fixed,
    headerless,
    inactive,
    moved,
    slack,
)

#: Tags of dynamic entries: the second is that of a number, since it is odd.
DT_DEBUG, DT_OTHER = 21, 33


class Fault(NamedTuple):
    """A part of the message of the check, the files, and the fault."""

    message: str
    make: Callable[[], Pair]
    plant: Callable[[Pair], object]


# Faults of one file


def fields(kind: int, number: int = 0, **deltas: int) -> Callable[[File], object]:
    """Return the fault of a program header, of which some fields are larger."""
    return lambda file: file.segment(kind, number).add(**deltas)


def retype(kind: int, new: int, number: int = 0) -> Callable[[File], object]:
    return lambda file: file.segment(kind, number).set(type=new)


def section(name: str, /, **deltas: int) -> Callable[[File], object]:
    """Return the fault of a section header, of which some fields are larger."""
    return lambda file: file.section(name).add(**deltas)


def put_section(name: str, /, **values: int) -> Callable[[File], object]:
    return lambda file: file.section(name).set(**values)


def header(**deltas: int) -> Callable[[File], object]:
    return lambda file: file.header.add(**deltas)


def flipped(vaddr: int) -> Callable[[File], object]:
    return lambda file: file.flip(file.at(vaddr))


def content(name: str, delta: int = 1) -> Callable[[File], object]:
    """Return the fault of a byte of a section."""
    return lambda file: file.flip(file.section(name).offset + delta)


def led_to(kind: int, delta: int = 0) -> Callable[[File], object]:
    """Return the fault of a byte that a program header leads to."""
    return lambda file: file.flip(file.segment(kind).offset + delta)


def entry(tag: int, new: int, value: int) -> Callable[[File], object]:
    """Return the fault of another dynamic entry in the place of one."""
    return lambda file: file.put(file.dynamic(tag), new, value)


def ident(at: int, value: int) -> Callable[[File], object]:
    return lambda file: file.__setitem__(at, value)


def needs(level: int) -> Callable[[File], object]:
    """Return the fault of a property that asks for a processor, which glibc reads of a PT_NOTE alone."""

    def plant(file: File) -> None:
        start = file.segment(c.PT_GNU_PROPERTY).offset
        struct.pack_into("<I4xI", file, start + 16, 0xC0008002, level)

    return plant


def another_section(file: File) -> None:
    """The table of section headers, which ends the file, has one more."""
    file.extend(file[file.section(".comment").place :][:64])
    file.header.shnum += 1


def swap(file: File) -> None:
    """Exchange the last two program headers that are not of the section."""
    first, second = file.segment(c.PT_GNU_STACK).place, file.segment(c.PT_GNU_RELRO).place
    file[first : first + 56], file[second : second + 56] = file[second : second + 56], file[first : first + 56]


def elsewhere_copy(file: File) -> None:
    """PT_INTERP leads to the same bytes in the file, which are not at its address."""
    segment = file.segment(c.PT_INTERP)
    copy = file[segment.offset : segment.offset + segment.filesz]
    segment.offset = len(file)
    file.extend(copy)


def grown_data(file: File) -> None:
    """Zeros that an allocator takes become bytes of the file that are none."""
    fields(c.PT_LOAD, 2, filesz=0x60, memsz=0x30)(file)
    flipped(DATA + 0x50)(file)


# Faults of a pair


def full(*plants: Callable[[File], object]) -> Callable[[Pair], None]:
    """Return faults of the file with the section."""

    def plant(pair: Pair) -> None:
        for each in plants:
            each(pair.full)

    return plant


def both(*plants: Callable[[File], object]) -> Callable[[Pair], None]:
    """Return faults of either file."""

    def plant(pair: Pair) -> None:
        for each in plants:
            each(pair.bare)
            each(pair.full)

    return plant


def remapped(pair: Pair) -> None:
    """The end of the code is in a read-only segment; give it a pair `by_hand(at=2)`."""
    text = pair.full.segment(c.PT_LOAD, 1).add(filesz=-0x800, memsz=-0x800)
    values = {name: getattr(text, name) + 0x1000 for name in ("offset", "vaddr", "paddr")}
    pair.full.segment(c.PT_LOAD, 2).set(**values, filesz=0x800, memsz=0x800)


def leads_to_old(tag: int) -> Callable[[Pair], None]:
    """Return the fault of a dynamic entry that leads to where .interp was, in both files."""
    return lambda pair: both(entry(DT_DEBUG, tag, pair.place_of(c.PT_INTERP)))(pair)


def other_header(pair: Pair) -> None:
    """A header of a kind that nobody follows leads to where .interp was."""
    vaddr = pair.place_of(c.PT_INTERP)
    for file in pair:
        values = {"vaddr": vaddr, "paddr": vaddr, "offset": file.at(vaddr)}
        file.segment(c.PT_GNU_STACK).set(type=PT_OTHER, **values, filesz=4, memsz=4)


def junk_at_old(pair: Pair) -> None:
    """Other bytes are where the property note was, after the new program headers."""
    note = pair.bare.segment(c.PT_GNU_PROPERTY)
    pair.full[note.offset + note.filesz - 2] ^= 0x15


def new_load(vaddr: int) -> Callable[[Pair], None]:
    """Return the fault of a new segment that is at another address, with all that leads to the section."""
    delta = vaddr - BLOCK
    each = ((c.PT_LOAD, 3), (c.PT_GNU_SFRAME, 0))
    return full(*(fields(kind, number, vaddr=delta, paddr=delta) for kind, number in each))


def moved_table(vaddr: int | None = None) -> Callable[[Pair], None]:
    """Return the fault of program headers that are at an address of zeros, or after all that is loaded."""

    def plant(pair: Pair) -> None:
        file = pair.full
        table = file[64 : 64 + 56 * file.header.phnum]
        offset = len(file) if vaddr is None else file.at(vaddr)
        file[64 : 64 + len(table)] = pair.bare[64 : 64 + len(table)]
        file[offset : offset + len(table)] = table
        file.header.phoff = offset
        if struct.unpack_from("<I", table)[0] == c.PT_PHDR:
            file.segment(c.PT_PHDR).set(offset=offset, vaddr=vaddr or 0, paddr=vaddr or 0)

    return plant


def overwrites(pair: Pair) -> None:
    """The section is where the segment with headers had a byte."""
    both(fields(c.PT_LOAD, 0, filesz=0x100, memsz=0x100))(pair)
    retype(c.PT_LOAD, 0, 1)(pair.full)
    flipped(RODATA + 0x7A0)(pair.bare)


def relocation_to(name: str) -> Callable[[Pair], None]:
    """Return the fault of a relocation that stores an address in where a section was."""

    def plant(pair: Pair) -> None:
        vaddr = pair.vaddr_of(name) + 1
        for file in pair:
            start = file.section(".rela.dyn").offset
            at = next(at for at in range(start, len(file), 24) if file.get(at + 8) == AMD64.relative_relocation)
            file.put(at + 16, vaddr)

    return plant


def address_of(name: str) -> Callable[[Pair], None]:
    """Return the fault of a number in .data that is where a section was."""
    return lambda pair: both(lambda file: file.put(file.section(".data").offset + 8, pair.vaddr_of(name)))(pair)


@pytest.mark.parametrize("make", [slack, inactive, moved, headerless, by_hand])
def test_pairs_without_a_fault(make: Callable[[], Pair]) -> None:
    make().check()


GROWN: Final = 0x400000 + 64 + 56 * 3 + 8
FAULTS: Final = [
    # The file header, and the section
    Fault("it has a section", slack, lambda pair: retype(c.PT_GNU_STACK, c.PT_GNU_SFRAME)(pair.bare)),
    Fault("not one SFrame section", slack, full(retype(c.PT_GNU_STACK, c.PT_GNU_SFRAME))),
    Fault("not one SFrame section", headerless, full(retype(c.PT_GNU_SFRAME, PT_OTHER))),
    Fault("lead to different places", slack, full(fields(c.PT_GNU_SFRAME, vaddr=8))),
    Fault("lead to different places", slack, full(fields(c.PT_GNU_SFRAME, offset=8))),
    Fault("the file header changed", slack, full(header(flags=1))),
    Fault("the file header changed", slack, full(header(entry=1))),
    Fault("the file header changed", slack, full(ident(9, 1))),
    # Program headers
    Fault("PT_GNU_STACK is missing, changed", slack, full(retype(c.PT_GNU_STACK, 0))),
    Fault("PT_GNU_STACK is missing, changed", slack, full(fields(c.PT_GNU_STACK, flags=1))),
    Fault("is missing, changed, or in another order", slack, full(swap)),
    Fault("PT_LOAD is missing", slack, full(fields(c.PT_LOAD, 1, align=0x1000))),
    Fault("PT_LOAD is missing", slack, full(fields(c.PT_LOAD, 1, flags=2))),
    Fault("a program header is new", slack, lambda pair: retype(c.PT_GNU_RELRO, 0)(pair.bare)),
    Fault("a new segment is not read-only", by_hand, full(fields(c.PT_LOAD, 3, flags=c.PF_W))),
    Fault("a new segment is not read-only", by_hand, full(fields(c.PT_LOAD, 3, flags=c.PF_X))),
    Fault("PT_PHDR is missing", slack, full(fields(c.PT_PHDR, align=8))),
    Fault("PT_PHDR is missing", slack, full(fields(c.PT_PHDR, paddr=8))),
    Fault("PT_PHDR is missing", slack, full(retype(c.PT_PHDR, 0))),
    *(Fault("PT_NOTE is missing", slack, both(needs(level))) for level in (2, 3, 4)),
    Fault("PT_INTERP is missing", headerless, full(fields(c.PT_INTERP, paddr=8))),
    Fault("PT_INTERP is missing", headerless, full(fields(c.PT_INTERP, flags=2))),
    Fault("PT_INTERP is missing", headerless, full(fields(c.PT_INTERP, memsz=1))),
    Fault("PT_INTERP is missing", headerless, both(fields(c.PT_INTERP, memsz=1))),
    Fault("PT_INTERP is missing", headerless, full(led_to(c.PT_INTERP))),
    Fault("PT_INTERP is missing", headerless, full(elsewhere_copy)),
    Fault("PT_GNU_PROPERTY is missing", headerless, full(led_to(c.PT_GNU_PROPERTY, 20))),
    Fault(f"a {PT_OTHER} leads to what is elsewhere", headerless, other_header),
    Fault("PT_PHDR leads elsewhere", slack, full(fields(c.PT_PHDR, offset=8))),
    Fault("PT_PHDR leads elsewhere", slack, full(fields(c.PT_PHDR, vaddr=8, paddr=8))),
    Fault("PT_PHDR leads elsewhere", slack, both(fields(c.PT_PHDR, vaddr=8, paddr=8))),
    # Dynamic entries
    Fault("there are other dynamic entries", slack, full(entry(DT_DEBUG, 0x6000000F, 0))),
    Fault("the dynamic entry 0x15 changed", slack, full(entry(DT_DEBUG, DT_DEBUG, 1))),
    Fault("the dynamic entry 0xc changed", slack, full(entry(c.DT_INIT, c.DT_INIT, 1))),
    *(
        Fault(f"0x{tag:x} leads nowhere", headerless, leads_to_old(tag))
        for tag in (c.DT_INIT, c.DT_PLTGOT, c.DT_HASH, 32, 34, 38, 0x6FFFFEF0, 0x6FFFFE00)
    ),
    # Not where the table of program headers grows.
    Fault(
        "0xc leads nowhere",
        moved,
        lambda pair: both(entry(DT_DEBUG, c.DT_INIT, pair.vaddr_of(".note.ABI-tag") + 16))(pair),
    ),
    Fault("a table of the dynamic loader changed", lambda: headerless("mold"), full()),
    Fault("0x1000000 is not mapped", headerless, full(entry(c.DT_GNU_HASH, c.DT_GNU_HASH, 1 << 24))),
    # Memory
    Fault("segments overlap", by_hand, new_load(DATA - 0x800)),
    Fault("segments overlap", by_hand, new_load(TEXT - 0x1000)),
    Fault("segments overlap", by_hand, full(fields(c.PT_LOAD, 3, memsz=-8))),
    Fault("a segment leaves the file", by_hand, full(fields(c.PT_LOAD, 3, filesz=1 << 30, memsz=1 << 30))),
    Fault("a segment is misaligned", by_hand, full(fields(c.PT_LOAD, 3, align=(1 << 30) - 0x1000))),
    Fault("is not mapped as it was", slack, full(fields(c.PT_LOAD, 3, memsz=-1))),
    Fault("is not mapped as it was", lambda: by_hand(at=2), remapped),
    Fault("on changed", by_hand, full(flipped(TEXT + 0x17FF))),
    Fault("on changed", by_hand, full(flipped(DATA))),
    Fault("on changed", by_hand, full(fields(c.PT_LOAD, 2, filesz=0x30), flipped(DATA + 0x20))),
    Fault("something else is where a section was", headerless, junk_at_old),
    Fault("in the last page of writable data", lambda: by_hand(block=DATA + 0x100), full()),
    Fault("in the last page of writable data", lambda: by_hand(block=DATA + 0x700), full()),
    Fault("in the last page of writable data", by_hand, full(grown_data)),
    Fault("shares a page with the one before", lambda: by_hand(block=TEXT + 0x1900, at=2), full()),
    Fault("shares a page with the one before", lambda: by_hand(block=TEXT + 0x17F8 + 0x7F8, at=2), full()),
    Fault("something was where the section is", lambda: by_hand(block=RODATA + 0x780, at=1), overwrites),
    # Where loaders find the program headers
    Fault("moved away from the ELF header", lambda: by_hand(with_phdr=True), moved_table(RODATA)),
    Fault("another AT_PHDR", by_hand, moved_table()),
    Fault("another AT_PHDR", by_hand, moved_table(TEXT)),
    Fault("more than a page", lambda: by_hand(more=69), full()),
    Fault("more than a page", lambda: by_hand(more=70), full()),
    # What refers to bytes that are others
    Fault("refers to", lambda: by_hand(data=struct.pack("<QQ", GROWN, 1)), full()),
    Fault("refers to", fixed, address_of(".note.gnu.build-id")),
    *(
        Fault("refers to", moved, relocation_to(name))
        for name in (".interp", ".note.gnu.property", ".gnu.hash", ".dynsym", ".note.gnu.build-id")
    ),
    # The layout of the file
    Fault("parts of the file overlap", slack, both(section(".comment", offset=-8))),
    Fault("extends past the end", slack, both(put_section(".rodata", offset=1 << 30))),
    # Sections
    Fault("sh_link of .dynsym changed", slack, full(section(".dynsym", link=1))),
    Fault("sh_info of .dynsym changed", slack, full(section(".dynsym", info=1))),
    Fault("sh_info of .rela.plt changed", slack, full(section(".rela.plt", info=1))),
    Fault(
        "sh_offset of .comment changed",
        slack,
        lambda pair: (both(put_section(".comment", size=0))(pair), put_section(".comment", offset=0)(pair.full)),
    ),
    *(
        Fault(f"{name} may not move", slack, full(section(name, addr=0x1000)))
        for name in (".data", ".text", ".comment")
    ),
    Fault(
        ".rodata may not move",
        slack,
        lambda pair: (both(section(".rodata", flags=1))(pair), section(".rodata", addr=16)(pair.full)),
    ),
    Fault(".rodata is not mapped", slack, full(section(".rodata", addr=0x1000))),
    Fault(".rodata is not mapped", slack, full(section(".rodata", offset=16))),
    Fault(".rodata is not mapped", slack, lambda pair: section(".rodata", addr=0x1000)(pair.bare)),
    Fault(".interp is misaligned", moved, both(put_section(".interp", addralign=1 << 20))),
    *(Fault("lists of indices", moved, both(put_section(".comment", type=kind))) for kind in (17, 18)),
    Fault("other names", slack, full(content(".shstrtab"))),
    Fault("the bytes of .comment changed", slack, full(content(".comment"))),
    Fault("the bytes of .interp changed", moved, full(content(".interp"))),
    Fault(
        "is loaded, is not what DT_SYMTAB leads to",
        moved,
        lambda pair: both(lambda file: file.header.set(entry=pair.vaddr_of(".dynsym")))(pair),
    ),
    Fault(
        "is loaded, is not what DT_SYMTAB leads to",
        moved,
        both(lambda file: file.put((at := file.dynamic(c.DT_SYMTAB)) + 8, file.get(at + 8) + 24)),
    ),
    *(
        Fault("section .rodata is missing, or changed", slack, full(section(".rodata", **{field: 1})))
        for field in ("size", "type", "flags", "addralign", "entsize", "name")
    ),
    Fault("a section changed", inactive, full(section(".rodata", size=1))),
    # Where the section is, was another one.
    Fault("section  is missing, or changed", inactive, lambda pair: pair.bare.section(-1).set(type=c.SHT_NOTE)),
    Fault("there are other new sections", slack, full(another_section)),
    Fault("symbol 1 changed", slack, full(content(".dynsym", 24))),
    # What does not parse
    Fault("it is no ELF64 file", slack, full(ident(4, 1))),
    Fault("it is no ELF64 file", slack, full(ident(5, 3))),
    Fault("extends past the end", slack, full(header(shoff=1 << 40))),
    Fault("headers of another size", slack, full(header(phentsize=8))),
    Fault("headers of another size", slack, full(header(shentsize=-8))),
    Fault("a section name is outside its table", slack, full(section(".rodata", name=1 << 20))),
    Fault("does not parse", slack, full(header(shstrndx=1 << 10))),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.message)
def test_a_fault_is_refused(fault: Fault) -> None:
    pair = fault.make()
    fault.plant(pair)
    with pytest.raises(EmbedError, match=fault.message):
        pair.check()


#: What is allowed, next to what is refused.
ALLOWED: Final[list[tuple[Callable[[], Pair], Callable[[Pair], object]]]] = [
    *((lambda count=count: by_hand(more=count), full()) for count in (68, 71)),
    (by_hand, moved_table(RODATA)),
    (lambda: by_hand(kind=c.ET_DYN), moved_table(TEXT)),
    (lambda: by_hand(data=struct.pack("<QQ", GROWN + 0x200, 1)), full()),
    # Numbers that are the address of what loaders follow headers and entries to
    *((fixed, address_of(name)) for name in (".interp", ".gnu.hash")),
    (
        by_hand,
        full(
            *(fields(*each, vaddr=1, paddr=1) for each in ((c.PT_LOAD, 3), (c.PT_GNU_SFRAME, 0))),
            fields(c.PT_LOAD, 3, align=-0x1000),
        ),
    ),
    (slack, both(needs(1))),
    (headerless, leads_to_old(DT_OTHER)),
    (headerless, leads_to_old(0x60000000)),
    # A part of an entry at the end of the dynamic section
    (slack, both(fields(c.PT_DYNAMIC, filesz=-8, memsz=-8))),
    # Sizes and PF_X of PT_PHDR, which nobody reads
    (slack, full(fields(c.PT_PHDR, filesz=56, memsz=56, flags=1))),
    # Producers that have other types for the section
    (slack, full(put_section(".sframe", type=c.SHT_PROGBITS))),
    (slack, full(retype(c.PT_GNU_SFRAME, c.PT_GNU_SFRAME))),
]


@pytest.mark.parametrize(("make", "plant"), ALLOWED)
def test_what_is_no_fault(make: Callable[[], Pair], plant: Callable[[Pair], object]) -> None:
    pair = make()
    plant(pair)
    pair.check()


def test_files_of_others() -> None:
    """What earlier releases wrote may lack PT_PHDR of a static program, or have moved its program headers."""
    pair = by_hand(with_phdr=True)
    moved_table(RODATA)(pair)
    pair.check(by_others=True)
    pair = by_hand(with_phdr=True)
    retype(c.PT_PHDR, 0)(pair.full)
    pair.check(by_others=True)
    with pytest.raises(EmbedError, match="PT_PHDR is missing"):
        pair.check()
    pair = slack()
    retype(c.PT_PHDR, 0)(pair.full)
    with pytest.raises(EmbedError, match="PT_PHDR is missing"):
        pair.check(by_others=True)
