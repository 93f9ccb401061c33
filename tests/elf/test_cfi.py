# SPDX-License-Identifier: Apache-2.0
"""Where CFI lies in a file: sections of each kind, relocated, compressed, or found through PT_GNU_EH_FRAME."""

import struct
import sys
import zlib
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from cfi2sframe import abi, load
from cfi2sframe.abi.amd64 import R_X86_64_PC32
from cfi2sframe.constants import elf as c
from cfi2sframe.conversion.sources import find_cfi
from cfi2sframe.dwarf.numbers import PointerBases
from cfi2sframe.elf.cfi import CfiKind, CfiSection, relocated_bytes
from cfi2sframe.elf.image import ElfImage, SectionOffset
from cfi2sframe.errors import ElfError, RequestError
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.entries import CfiTable, parse_entries
from tests.support.elf.edit import File
from tests.support.elf.samples import FRAME_VADDR, TEXT_VADDR, linked_file
from tests.support.needs import need, run
from tests.support.placing.embedded import without_section_headers

ALLOC_CODE = c.SHF_ALLOC | c.SHF_EXECINSTR
CIE = asm.Cie(instructions=(asm.def_cfa(7, 8),))
BODY = (asm.advance0(1), asm.def_cfa_offset(16), asm.offset(6, 2))


class Target(NamedTuple):
    """An ABI, and its relocation types: 4 and 8 bytes, absolute and relative."""

    machine: int
    little_endian: bool
    absolute: dict[int, tuple[int, ...]]
    relative: dict[int, tuple[int, ...]]
    unknown: int

    @property
    def order(self) -> Literal["little", "big"]:
        return "little" if self.little_endian else "big"


AMD64 = Target(c.EM_X86_64, True, {4: (10, 11), 8: (1,)}, {4: (2, 4), 8: (24,)}, 9)
AARCH64 = Target(c.EM_AARCH64, True, {4: (258,), 8: (257,)}, {4: (261,), 8: (260,)}, 259)
AARCH64_BE = AARCH64._replace(little_endian=False)
S390X = Target(c.EM_S390, False, {4: (4,), 8: (22,)}, {4: (5,), 8: (23,)}, 3)
TARGETS = {"amd64": AMD64, "aarch64": AARCH64, "aarch64-be": AARCH64_BE, "s390x": S390X}
each_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)

TEXT = asm.Section(".text", b"\xc3" * 0x40, flags=ALLOC_CODE, align=16)
TEXT_B = asm.Section(".text.b", b"\xc3" * 0x20, flags=ALLOC_CODE, align=16)
SYMBOLS = (
    asm.Symbol(".text", 0, 0, c.STT_SECTION, ".text"),
    asm.Symbol(".text.b", 0, 0, c.STT_SECTION, ".text.b"),
    asm.Symbol("function", 8, 8, 0x12, ".text"),
    asm.Symbol("elsewhere", 0, 0, 0x10, ""),
    asm.Symbol("far", 1 << 40, 0, 0x10, "*ABS*"),
)


def relocatable(
    target: Target, data: bytes, *relocations: asm.Relocation, name: str = ".eh_frame", flags: int = c.SHF_ALLOC
) -> ElfImage:
    """An object with one section of CFI and relocations of it."""
    sections = (TEXT, TEXT_B, asm.Section(name, data, flags=flags, align=8))
    machine, little = target.machine, target.little_endian
    return load(asm.elf_file(machine, sections, little_endian=little, symbols=SYMBOLS, relocations=relocations))


def only(sections: tuple[CfiSection, ...]) -> CfiSection:
    (section,) = sections
    return section


def sections_of(image: ElfImage, kind: CfiKind | None = None) -> tuple[CfiSection, ...]:
    found = find_cfi(image, kind)
    assert found.unread == ()
    return tuple(section for section in found.sections if isinstance(section, CfiSection))


def parse(image: ElfImage, section: CfiSection) -> CfiTable:
    return parse_entries(section, PointerBases(image.byte_order, section.table_vaddr, lambda _: None))


def places(image: ElfImage) -> list[SectionOffset]:
    """Where the functions of all FDEs of an image start."""
    found = []
    for section in sections_of(image):
        table = parse(image, section)
        assert table.failures == ()
        found += [image.place(fde.pc_begin_vaddr) for fde in table.fdes]
    return found


# --- Relocations --------------------------------------------------------------------------------------------


@each_target
@pytest.mark.parametrize("symbol", ["function", ".text.b"])
@pytest.mark.parametrize("addend", [0, 5, -3])
def test_each_relocation_type(target: Target, symbol: str, addend: int) -> None:
    """S + A for absolute ones, S + A - P for relative ones, and not a byte beside the field."""
    for size, types in [*target.absolute.items(), *target.relative.items()]:
        for kind in types:
            relocation = asm.Relocation(".eh_frame", 4, symbol, kind, addend)
            image = relocatable(target, b"\xee" * 20, relocation)
            section = only(sections_of(image))
            value = image.sections[1].vaddr + 8 if symbol == "function" else image.sections[2].vaddr
            value += addend
            if kind in target.relative[size]:
                value -= section.vaddr + 4
            field = (value & ((1 << 8 * size) - 1)).to_bytes(size, target.order)
            assert section.data == b"\xee" * 4 + field + b"\xee" * (16 - size)
            assert {offset: (r.type, r.addend) for offset, r in section.relocations.items()} == {4: (kind, addend)}
            assert section.unresolved == frozenset()
            assert relocated_bytes(image, image.sections[3]) == section.data


@each_target
def test_what_cannot_be_resolved_is_noted_and_left_alone(target: Target) -> None:
    (word, *_), (relative, *_) = target.absolute[4], target.relative[4]
    data = bytes(range(32))
    image = relocatable(
        target,
        data,
        asm.Relocation(".eh_frame", 0, "elsewhere", relative),
        asm.Relocation(".eh_frame", 8, "function", target.unknown),
        asm.Relocation(".eh_frame", 29, "function", word),
        asm.Relocation(".eh_frame", 1 << 40, "function", word),
    )
    section = only(sections_of(image))
    assert section.data == data
    assert section.relocations == {}
    assert section.unresolved == {0, 8, 29, 1 << 40}


@each_target
@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize(("symbol", "addend"), [("far", 0), ("function", 1 << 33), ("function", -(1 << 33))])
def test_overflow(target: Target, is_relative: bool, symbol: str, addend: int) -> None:  # noqa: FBT001
    types = target.relative if is_relative else target.absolute
    for kind in types[4]:
        image = relocatable(target, bytes(16), asm.Relocation(".eh_frame", 12, symbol, kind, addend))
        with pytest.raises(ElfError) as caught:
            sections_of(image)
        assert str(caught.value) == f".rela.eh_frame+0xc: relocation type {kind} overflows 4 bytes"
    for kind in types[8]:
        image = relocatable(target, bytes(16), asm.Relocation(".eh_frame", 8, symbol, kind, addend))
        assert only(sections_of(image)).data[8:] != bytes(8)


def test_relocations_of_a_linked_file_are_not_applied() -> None:
    """Option --emit-relocs of ld keeps them; the bytes are final."""
    sections = (
        asm.Section(".text", b"\xc3" * 16, flags=ALLOC_CODE, addr=0x401200),
        asm.Section(".eh_frame", b"\xee" * 8, flags=c.SHF_ALLOC, addr=0x402300),
    )
    symbols = (asm.Symbol("function", 0x401200, 16),)
    relocations = (asm.Relocation(".eh_frame", 0, "function", R_X86_64_PC32),)
    data = asm.elf_file(c.EM_X86_64, sections, file_type=c.ET_EXEC, symbols=symbols, relocations=relocations)
    section = only(sections_of(load(data)))
    assert (section.data, section.vaddr, section.relocations) == (b"\xee" * 8, 0x402300, {})
    image = load(data)
    assert relocated_bytes(image, image.sections[2]) == b"\xee" * 8


# --- FDEs of objects ----------------------------------------------------------------------------------------


def two_frames(count: int, *more: asm.Section) -> bytes:
    """Return an object with two sections of CFI, as of COMDAT groups, with as many equal relocations each."""
    frame = asm.EhFrame((asm.Fde(CIE, 0, 8, BODY),))
    first = asm.Section(".eh_frame", frame.assemble(), flags=c.SHF_ALLOC, align=8)
    # The writer knows sections by name: one gets its real name when the file is there.
    second = first._replace(name=".eh_framX", type=c.SHT_X86_64_UNWIND)
    relocations = [
        asm.Relocation(section.name, frame.offsets()[1] + 8, symbol, R_X86_64_PC32, addend)
        for section, symbol, addend in ((first, ".text", 4), (second, ".text.b", 8))
        for _ in range(count)
    ]
    symbols = (*SYMBOLS, *(asm.Symbol(f"{n}", 0, 0, c.STT_FUNC, ".text") for n in range(count)))
    sections = (TEXT, first, TEXT_B, second, *more)
    data = asm.elf_file(c.EM_X86_64, sections, symbols=symbols, relocations=tuple(relocations))
    return data.replace(b".eh_framX", b".eh_frame")


def test_several_sections_of_eh_frame() -> None:
    """The relocations of each are its own."""
    image = load(two_frames(1))
    found = sections_of(image)
    assert [section.vaddr for section in found] == [image.sections[2].vaddr, image.sections[4].vaddr]
    assert places(image) == [SectionOffset(1, ".text", 4), SectionOffset(3, ".text.b", 8)]


@pytest.mark.parametrize("stretched", [(6, 7), (5, 8)], ids=["relocations", "symbols"])
def test_tables_that_share_their_bytes(stretched: tuple[int, int]) -> None:
    """A thousand tables over the same bytes would be a thousand times the work."""
    file = File(two_frames(500, asm.Section(".again", b"", c.SHT_SYMTAB, entsize=24)))
    # The second section's relocations get symbols of their own.
    file.section(7).link = 5
    for index in stretched:
        assert len(sections_of(load(bytes(file)))) == 2
        file.section(index).set(offset=64, size=24000)
    with pytest.raises(ElfError, match=f"48000 bytes of such sections in a file of {len(file)} bytes"):
        sections_of(load(bytes(file)))


@each_target
def test_debug_frame_of_an_object(target: Target) -> None:
    """Its CIE pointers are relocated too, against the section itself, and its addresses are absolute."""
    cie = asm.Cie(3, "")
    other = asm.Cie(3, "", ra_register=5)
    entries = (cie, other, asm.Fde(other, 0, 8, BODY), asm.Fde(cie, 0, 8, BODY))
    frame = asm.EhFrame(entries, little_endian=target.little_endian, debug_frame=True)
    data, offsets = bytearray(frame.assemble()), frame.offsets()
    relocations = []
    for fde_offset, cie_offset, addend in ((offsets[2], offsets[1], 0x10), (offsets[3], offsets[0], 0x20)):
        data[fde_offset + 4 : fde_offset + 8] = b"\xee" * 4
        relocations += [
            asm.Relocation(".debug_frame", fde_offset + 4, ".debug_frame", target.absolute[4][0], cie_offset),
            asm.Relocation(".debug_frame", fde_offset + 8, ".text", target.absolute[8][0], addend),
        ]
    sections = (TEXT, TEXT_B, asm.Section(".debug_frame", bytes(data), align=8))
    image = load(
        asm.elf_file(
            target.machine,
            sections,
            little_endian=target.little_endian,
            symbols=(*SYMBOLS, asm.Symbol(".debug_frame", 0, 0, c.STT_SECTION, ".debug_frame")),
            relocations=tuple(relocations),
        )
    )
    section = only(sections_of(image))
    assert (section.kind, section.vaddr) == ("debug_frame", 0)
    assert [fde.cie.ra_register for fde in parse(image, section).fdes] == [5, 16]
    assert places(image) == [SectionOffset(1, ".text", 0x10), SectionOffset(1, ".text", 0x20)]


# --- Which section ------------------------------------------------------------------------------------------

FDE_BYTES = asm.EhFrame((asm.Fde(CIE, 0x1000, 8, BODY), asm.Terminator())).assemble()
DEBUG_BYTES = asm.EhFrame(
    (asm.Fde(CIE._replace(version=3, augmentation=""), 0x1000, 8, BODY),), debug_frame=True
).assemble()
EH_FRAME = asm.Section(".eh_frame", FDE_BYTES, flags=c.SHF_ALLOC)
DEBUG_FRAME = asm.Section(".debug_frame", DEBUG_BYTES)


def with_sections(*sections: asm.Section) -> ElfImage:
    return load(asm.elf_file(c.EM_X86_64, (TEXT, *sections)))


def kinds(image: ElfImage, kind: CfiKind | None = None) -> list[str]:
    return [section.kind for section in sections_of(image, kind)]


def test_all_sources_the_best_first() -> None:
    both = with_sections(DEBUG_FRAME, EH_FRAME)
    assert kinds(both) == ["eh_frame", "debug_frame"]
    assert kinds(both, "eh_frame") == ["eh_frame"]
    assert kinds(both, "debug_frame") == ["debug_frame"]
    assert kinds(with_sections(DEBUG_FRAME)) == ["debug_frame"]


@pytest.mark.parametrize(
    "useless",
    [
        EH_FRAME._replace(data=bytes(4)),
        EH_FRAME._replace(data=bytes(12)),
        EH_FRAME._replace(data=b""),
        # As in files of debug information that strip has made.
        EH_FRAME._replace(data=b"", type=c.SHT_NOBITS, nobits_size=64),
        EH_FRAME._replace(flags=0),
    ],
    ids=["terminator", "terminators", "empty", "nobits", "not-loaded"],
)
def test_eh_frame_without_fdes(useless: asm.Section) -> None:
    assert kinds(with_sections(useless, DEBUG_FRAME)) == ["debug_frame"]
    with pytest.raises(RequestError, match=r"^no \.eh_frame section$"):
        sections_of(with_sections(useless, DEBUG_FRAME), "eh_frame")
    with pytest.raises(ElfError, match=r"^no call frame information: no \.eh_frame, \.debug_frame or \.gopclntab; "):
        sections_of(with_sections(useless))


@pytest.mark.parametrize(
    ("sections", "table"),
    [((), None), ((".got",), 0), ((".got.plt",), 0), ((".got", ".got.plt"), 1), ((".got.plt", ".got"), 0)],
)
def test_what_data_relative_pointers_count_from(sections: tuple[str, ...], table: int | None) -> None:
    tables = tuple(asm.Section(name, bytes(16), flags=c.SHF_ALLOC | c.SHF_WRITE) for name in sections)
    image = with_sections(EH_FRAME, *tables)
    expected = None if table is None else image.sections[3 + table].vaddr
    assert only(sections_of(image)).table_vaddr == expected


def test_a_section_that_leaves_the_file() -> None:
    file = File(bytes(with_sections(EH_FRAME).data))
    file.section(".eh_frame").size = 1 << 20
    with pytest.raises(ElfError, match=r"^\.eh_frame: truncated"):
        sections_of(load(bytes(file)))


# --- Compression --------------------------------------------------------------------------------------------


def compressed(packed: bytes, size: int, *, method: int = c.ELFCOMPRESS_ZLIB, order: str = "<") -> asm.Section:
    header = struct.pack(order + "IIQQ", method, 0, size, 8)
    return asm.Section(".debug_frame", header + packed, flags=c.SHF_COMPRESSED)


@each_target
def test_zlib(target: Target) -> None:
    """The plain form is relocated."""
    packed = compressed(zlib.compress(bytes(64)), 64, order="<" if target.little_endian else ">").data
    assert len(packed) < 56
    relocation = asm.Relocation(".debug_frame", 56, "function", target.absolute[8][0])
    image = relocatable(target, packed, relocation, name=".debug_frame", flags=c.SHF_COMPRESSED)
    found = only(sections_of(image))
    assert found.kind == "debug_frame"
    assert found.data == bytes(56) + (image.sections[1].vaddr + 8).to_bytes(8, target.order)


@pytest.mark.parametrize("lie", [-1, 1, -len(DEBUG_BYTES), 1000])
def test_a_size_that_is_not_the_contents(lie: int) -> None:
    size = len(DEBUG_BYTES) + lie
    section = compressed(zlib.compress(DEBUG_BYTES), size)
    with pytest.raises(ElfError, match=rf"^\.debug_frame: decompresses to \d+ bytes, not to the {size} that"):
        sections_of(with_sections(section))


def test_damaged_content_at_every_byte() -> None:
    """The checksum at the end covers the content: any damage is noticed, or changes nothing."""
    packed = zlib.compress(DEBUG_BYTES)
    for position in range(len(packed)):
        damaged = bytearray(packed)
        damaged[position] ^= 0x55
        with pytest.raises(ElfError, match=r"^\.debug_frame: (damaged compressed section|decompresses to)"):
            sections_of(with_sections(compressed(bytes(damaged), len(DEBUG_BYTES))))


def test_zstd_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    section = compressed(b"\x28\xb5\x2f\xfd", 4, method=c.ELFCOMPRESS_ZSTD)
    with pytest.raises(ElfError, match=r"^\.debug_frame: compressed with zstd; the package zstandard is needed"):
        sections_of(with_sections(section))


def zstd(plain: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard", reason="no zstandard: make venv")
    return bytes(zstandard.ZstdCompressor().compress(plain))


def test_zstd() -> None:
    section = compressed(zstd(DEBUG_BYTES), len(DEBUG_BYTES), method=c.ELFCOMPRESS_ZSTD)
    assert only(sections_of(with_sections(section))).data == DEBUG_BYTES


# --- Without section headers --------------------------------------------------------------------------------

HDR_VADDR = FRAME_VADDR + 0x1000


def headerless(*, hdr: bytes | None = None, with_segment: bool = True) -> bytes:
    """A program with .eh_frame found through its header alone; other bytes follow the frames."""
    fdes = tuple(asm.Fde(CIE, TEXT_VADDR + 8 * n, 8, BODY) for n in range(2))
    offsets = asm.EhFrame(fdes, FRAME_VADDR).offsets()[1:]
    if hdr is None:
        table = tuple((fde.pc_begin, FRAME_VADDR + at) for fde, at in zip(fdes, offsets, strict=True))
        hdr = asm.eh_frame_hdr(HDR_VADDR, FRAME_VADDR, table)
    section = asm.Section(".eh_frame_hdr", hdr, flags=c.SHF_ALLOC, addr=HDR_VADDR, align=4)
    segments = (asm.Segment(c.PT_GNU_EH_FRAME, c.PF_R, (".eh_frame_hdr",)),) if with_segment else ()
    entries: tuple[asm.Entry, ...] = (*fdes, asm.Terminator(), asm.Raw(b"\xff" * 24))
    return linked_file(abi.AMD64, entries, more=(section,), segments=segments, section_headers=False)


def test_frames_without_terminator_end_where_their_header_begins(tmp_path: Path) -> None:
    """As of code without start files; gold and mold place the header after the frames."""
    need("ld.gold")
    source, library = tmp_path / "add.c", tmp_path / "add.so"
    source.write_text("int add(int a, int b) { return a + b; }")
    run(need("gcc"), "-shared", "-nostdlib", "-O1", "-fPIC", "-fuse-ld=gold", "-o", library, source)
    images = load(library), load(without_section_headers(library.read_bytes()))
    found = [parse(image, only(sections_of(image))).fdes for image in images]
    assert found[0]
    assert [fde.pc_begin_vaddr for fde in found[1]] == [fde.pc_begin_vaddr for fde in found[0]]


def test_eh_frame_without_section_headers() -> None:
    image = load(headerless())
    section = only(sections_of(image))
    assert (section.name, section.kind, section.vaddr) == (".eh_frame", "eh_frame", FRAME_VADDR)
    assert [fde.pc_begin_vaddr for fde in parse(image, section).fdes] == [TEXT_VADDR, TEXT_VADDR + 8]
    assert kinds(image, "eh_frame") == ["eh_frame"]
    with pytest.raises(RequestError):
        sections_of(image, "debug_frame")


@pytest.mark.parametrize(
    "hdr",
    [
        # No table, a table of another form, and one that is cut off.
        bytes((1, 0x1B, 0xFF, 0xFF)) + struct.pack("<i", FRAME_VADDR - HDR_VADDR - 4),
        bytes((1, 0x1B, 0x03, 0x1B)) + struct.pack("<iI", FRAME_VADDR - HDR_VADDR - 4, 0),
        bytes((1, 0x1B, 0x03, 0x3B)) + struct.pack("<iI", FRAME_VADDR - HDR_VADDR - 4, 0),
        bytes((1, 0x1B, 0x03, 0x3B)) + struct.pack("<iI", FRAME_VADDR - HDR_VADDR - 4, 1000) + bytes(4),
    ],
    ids=["none", "form", "empty", "cut"],
)
def test_a_header_without_a_table_ends_at_the_first_terminator(hdr: bytes) -> None:
    image = load(headerless(hdr=hdr))
    section = only(sections_of(image))
    assert section.must_find_offset == 0
    assert len(parse(image, section).fdes) == 2


@pytest.mark.parametrize(("size", "count"), [(7, None), (8, 0), (11, 0), (12, 0), (19, 0), (20, 1), (27, 1), (28, 2)])
def test_a_header_of_each_size(size: int, count: int | None) -> None:
    """The last of the FDEs in its whole pairs has to be found: the table states two."""
    offsets = asm.EhFrame(tuple(asm.Fde(CIE, TEXT_VADDR + 8 * n, 8, BODY) for n in range(2)), FRAME_VADDR).offsets()
    table = tuple((TEXT_VADDR + 8 * n, FRAME_VADDR + at) for n, at in enumerate(offsets[1:]))
    image = load(headerless(hdr=asm.eh_frame_hdr(HDR_VADDR, FRAME_VADDR, table)[:size]))
    if count is None:
        with pytest.raises(ElfError, match=NO_HEADER):
            sections_of(image)
    else:
        assert only(sections_of(image)).must_find_offset == (0, *offsets[1:])[count]


NO_HEADER = "the PT_GNU_EH_FRAME segment holds no frame header"
OUTSIDE = "PT_GNU_EH_FRAME points to an .eh_frame outside the file's segments"


@pytest.mark.parametrize(
    ("hdr", "message"),
    [
        (bytes((2, 0x1B, 0x03, 0x3B)) + bytes(8), NO_HEADER),
        (bytes((1, 0x1B, 0x03)), NO_HEADER),
        (bytes((1, 0x00, 0xFF, 0xFF)) + bytes(8), "PT_GNU_EH_FRAME+0x1: unknown encoding 0x0 of the .eh_frame pointer"),
        (bytes((1, 0x1B, 0xFF, 0xFF)) + struct.pack("<i", 1 << 24), OUTSIDE),
        (bytes((1, 0x1B, 0xFF, 0xFF)) + struct.pack("<i", -(1 << 31)), OUTSIDE),
    ],
)
def test_frame_headers_that_cannot_be_used(hdr: bytes, message: str) -> None:
    with pytest.raises(ElfError) as caught:
        sections_of(load(headerless(hdr=hdr)))
    assert str(caught.value) == message


def test_neither_section_headers_nor_a_frame_header() -> None:
    with pytest.raises(ElfError, match="no call frame information"):
        sections_of(load(headerless(with_segment=False)))
