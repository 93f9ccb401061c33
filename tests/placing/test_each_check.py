# SPDX-License-Identifier: Apache-2.0
"""Each check of the judge of rewritten files refuses a fault of its own."""

import struct
from collections.abc import Callable
from typing import Final

import pytest

from cfi2sframe.constants import elf as c
from cfi2sframe.errors import EmbedError
from tests.support.placing.embedded import SH_ADDR, SH_FLAGS, SH_NAME, SH_OFFSET, SH_SIZE, SH_TYPE
from tests.support.placing.planted import (
    DATA,
    DT_DEBUG,
    DT_OTHER,
    E_ENTRY,
    E_FLAGS,
    E_PHENTSIZE,
    E_SHOFF,
    E_SHSTRNDX,
    PT_GNU_STACK,
    PT_OTHER,
    PT_SFRAME,
    RODATA,
    SH_ADDRALIGN,
    SH_INFO,
    SH_LINK,
    TEXT,
    Fault,
    Pair,
    address_of,
    another_section,
    both,
    by_hand,
    content,
    elsewhere_copy,
    entry,
    fields,
    fixed,
    flipped,
    full,
    grown_data,
    header,
    headerless,
    junk_at_old,
    leads_to_old,
    moved,
    moved_table,
    needs,
    new_load,
    other_header,
    overwrites,
    put_section,
    relocation_to,
    remapped,
    retype,
    section,
    slack,
    swap,
    where,
)


@pytest.mark.parametrize("make", [slack, moved, headerless, by_hand])
def test_pairs_without_a_fault(make: Callable[[], Pair]) -> None:
    make().check()


GROWN: Final = 0x400000 + 64 + 56 * 3 + 8
FAULTS: Final = [
    # The file header, and the section
    Fault("it has a section", slack, lambda pair: retype(PT_GNU_STACK, PT_SFRAME)(pair.bare)),
    Fault("not one SFrame section", slack, full(retype(PT_GNU_STACK, PT_SFRAME))),
    Fault("not one SFrame section", headerless, full(retype(PT_SFRAME, PT_OTHER))),
    Fault("lead to different places", slack, full(fields(PT_SFRAME, vaddr=8))),
    Fault("lead to different places", slack, full(fields(PT_SFRAME, offset=8))),
    Fault("the file header changed", slack, full(header(E_FLAGS, 1, "<I"))),
    Fault("the file header changed", slack, full(header(E_ENTRY, 1))),
    Fault("the file header changed", slack, full(header(9, 1, "<B"))),
    # Program headers
    Fault("PT_GNU_STACK is missing, changed", slack, full(retype(PT_GNU_STACK, 0))),
    Fault("PT_GNU_STACK is missing, changed", slack, full(fields(PT_GNU_STACK, flags=1))),
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
    Fault(
        "PT_INTERP is missing",
        headerless,
        lambda pair: pair.full.flip(pair.full.get(pair.full.segment(c.PT_INTERP) + 8)),
    ),
    Fault("PT_INTERP is missing", headerless, elsewhere_copy),
    Fault(
        "PT_GNU_PROPERTY is missing",
        headerless,
        lambda pair: pair.full.flip(pair.full.get(pair.full.segment(c.PT_GNU_PROPERTY) + 8) + 20),
    ),
    Fault(f"a {PT_OTHER} leads to what is elsewhere", headerless, other_header),
    Fault("PT_PHDR leads elsewhere", slack, full(fields(c.PT_PHDR, offset=8))),
    Fault("PT_PHDR leads elsewhere", slack, full(fields(c.PT_PHDR, vaddr=8, paddr=8))),
    Fault("PT_PHDR leads elsewhere", slack, both(fields(c.PT_PHDR, vaddr=8, paddr=8))),
    # Dynamic entries
    Fault("there are other dynamic entries", slack, full(entry(DT_DEBUG, 0x6000000F, 0))),
    Fault("the dynamic entry 0x15 changed", slack, full(entry(DT_DEBUG, DT_DEBUG, 1))),
    Fault("the dynamic entry 0xc changed", slack, full(lambda file: file.add(file.dynamic(c.DT_INIT) + 8, 1))),
    *(
        Fault(f"0x{tag:x} leads nowhere", headerless, leads_to_old(tag))
        for tag in (c.DT_INIT, c.DT_PLTGOT, c.DT_HASH, 32, 34, 38, 0x6FFFFEF0, 0x6FFFFE00)
    ),
    Fault("a table of the dynamic loader changed", lambda: headerless("mold"), full()),
    Fault("0x1000000 is not mapped", headerless, full(entry(c.DT_GNU_HASH, c.DT_GNU_HASH, 1 << 24))),
    # Memory
    Fault("segments overlap", by_hand, lambda pair: new_load(pair, DATA - 0x800)),
    Fault("segments overlap", by_hand, lambda pair: new_load(pair, TEXT - 0x1000)),
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
    Fault("parts of the file overlap", slack, both(section(".comment", SH_OFFSET, -8))),
    Fault("extends past the end", slack, both(put_section(".rodata", SH_OFFSET, 1 << 30))),
    # Sections
    Fault("sh_link of .dynsym changed", slack, full(section(".dynsym", SH_LINK, 1, "<I"))),
    Fault("sh_info of .dynsym changed", slack, full(section(".dynsym", SH_INFO, 1, "<I"))),
    Fault("sh_info of .rela.plt changed", slack, full(section(".rela.plt", SH_INFO, 1, "<I"))),
    Fault(
        "sh_offset of .comment changed",
        slack,
        lambda pair: (
            both(put_section(".comment", SH_SIZE, 0))(pair),
            put_section(".comment", SH_OFFSET, 0)(pair.full),
        ),
    ),
    *(
        Fault(f"{name} may not move", slack, full(section(name, SH_ADDR, 0x1000)))
        for name in (".data", ".text", ".comment")
    ),
    Fault(
        ".rodata may not move",
        slack,
        lambda pair: (both(section(".rodata", SH_FLAGS, 1))(pair), section(".rodata", SH_ADDR, 16)(pair.full)),
    ),
    Fault(".rodata is not mapped", slack, full(section(".rodata", SH_ADDR, 0x1000))),
    Fault(".rodata is not mapped", slack, full(section(".rodata", SH_OFFSET, 16))),
    Fault(".rodata is not mapped", slack, lambda pair: section(".rodata", SH_ADDR, 0x1000)(pair.bare)),
    Fault(".interp is misaligned", moved, both(put_section(".interp", SH_ADDRALIGN, 1 << 20))),
    *(Fault("lists of indices", moved, both(put_section(".comment", SH_TYPE, kind, "<I"))) for kind in (17, 18)),
    Fault("other names", slack, full(content(".shstrtab"))),
    Fault("the bytes of .comment changed", slack, full(content(".comment"))),
    Fault("the bytes of .interp changed", moved, full(content(".interp"))),
    Fault(
        "is loaded, is not what DT_SYMTAB leads to",
        moved,
        lambda pair: both(lambda file: file.put(E_ENTRY, where(pair, ".dynsym")))(pair),
    ),
    Fault(
        "is loaded, is not what DT_SYMTAB leads to",
        moved,
        both(lambda file: file.add(file.dynamic(c.DT_SYMTAB) + 8, 24)),
    ),
    Fault("section .rodata is missing, or changed", slack, full(section(".rodata", SH_SIZE, 1))),
    *(
        Fault("section .rodata is missing, or changed", slack, full(section(".rodata", field, 1, form)))
        for field, form in ((SH_TYPE, "<I"), (SH_FLAGS, "<Q"), (SH_ADDRALIGN, "<Q"), (56, "<Q"), (SH_NAME, "<I"))
    ),
    Fault("there are other new sections", slack, full(another_section)),
    Fault("symbol 1 changed", slack, full(content(".dynsym", 24))),
    # What does not parse
    Fault("it is no ELF64 file", slack, full(header(4, -1, "<B"))),
    Fault("it is no ELF64 file", slack, full(header(5, 2, "<B"))),
    Fault("extends past the end", slack, full(header(E_SHOFF, 1 << 40))),
    Fault("headers of another size", slack, full(header(E_PHENTSIZE, 8, "<H"))),
    Fault("headers of another size", slack, full(header(E_PHENTSIZE + 4, -8, "<H"))),
    Fault("a section name is outside its table", slack, full(section(".rodata", SH_NAME, 1 << 20, "<I"))),
    Fault("does not parse", slack, full(header(E_SHSTRNDX, 1 << 10, "<H"))),
]


@pytest.mark.parametrize("number", range(len(FAULTS)), ids=lambda number: FAULTS[number].message)
def test_a_fault_is_refused(number: int) -> None:
    message, make, plant = FAULTS[number]
    pair = make()
    plant(pair)
    with pytest.raises(EmbedError, match=message):
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
            *(fields(*each, vaddr=1, paddr=1) for each in ((c.PT_LOAD, 3), (PT_SFRAME, 0))),
            fields(c.PT_LOAD, 3, align=-0x1000),
        ),
    ),
    (slack, both(needs(1))),
    (headerless, leads_to_old(DT_OTHER)),
    (headerless, leads_to_old(0x60000010)),
    # Sizes and PF_X of PT_PHDR, which nobody reads
    (slack, full(fields(c.PT_PHDR, filesz=56, memsz=56, flags=1))),
    # Producers that have other types for the section
    (slack, full(put_section(".sframe", SH_TYPE, c.SHT_PROGBITS, "<I"))),
    (slack, full(retype(PT_SFRAME, PT_SFRAME))),
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
