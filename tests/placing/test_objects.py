# SPDX-License-Identifier: Apache-2.0
"""Objects with a section and its relocations: all that was there stays in its place, and can come back."""

import struct
from contextlib import nullcontext

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.elf.headers import ElfSection, FileHeader, parse_file_header, parse_section_headers
from cfi2sframe.emit import check, emit
from cfi2sframe.errors import Cfi2SFrameError, EmbedError
from cfi2sframe.placing import objects
from cfi2sframe.placing.objects import ObjectRelocation
from tests.support.elf.edit import SECTION_HEADER, File
from tests.support.elf.elf_asm import Section, Symbol, elf_file
from tests.support.elf.samples import object_file, push_fp
from tests.support.placing.embedded import converted, emitted
from tests.support.placing.emitted import (
    FILE_HEADER_SIZE,
    GOLDEN,
    GOLDEN_NAMES,
    SHT_GNU_SFRAME,
    SHT_PROGBITS,
    SHT_RELA,
    assert_kept,
    headers_of,
    named,
    relas_of,
)

SHN_LORESERVE, SHN_XINDEX = 0xFF00, 0xFFFF
SHF_ALLOC, SHF_INFO_LINK = 0x2, 0x40
#: PC-relative ones of 32 bits, as versions before 3 have starts, and of 64.
RELOCATION_TYPES = {AMD64: (2, 24), AARCH64_LE: (261, 260), S390X: (5, 23)}
RECORD_SIZES = {1: 17, 2: 20, 3: 16}
SECTION = bytes(range(40))
RELOCATIONS = (ObjectRelocation(28, 24, 1, 0x10), ObjectRelocation(44, 24, 1, -8))


def two_functions(arch: Arch) -> bytes:
    return object_file(arch, {".text": (push_fp(arch, 0), push_fp(arch, 64)), ".text.unlikely": (push_fp(arch, 16),)})


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_all_that_was_there_stays(name: str, version: int) -> None:
    old = (GOLDEN / name).read_bytes()
    image = load(old)
    if (image.arch, version) == (S390X, 1):
        pytest.skip("version 1 does not define it")
    conversion = convert(image, version=version)
    if not conversion.data:
        # Rows that the version cannot express.
        assert version < 3
        return
    new = emitted(conversion)
    assert_kept(old, new)
    headers = headers_of(new)
    section, rela = named(headers, ".sframe"), named(headers, ".rela.sframe")
    assert (section.type, section.flags, section.vaddr, section.alignment) == (SHT_GNU_SFRAME, SHF_ALLOC, 0, 8)
    assert (rela.type, rela.flags, rela.entry_size, rela.alignment) == (SHT_RELA, SHF_INFO_LINK, 24, 8)
    assert headers[rela.info] is section
    assert headers[rela.link].name == ".symtab"
    assert section.file_offset % 8 == rela.file_offset % 8 == 0


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("arch", RELOCATION_TYPES, ids=lambda arch: arch.name)
def test_one_relocation_for_each_function_in_order(arch: Arch, version: int) -> None:
    if (arch, version) == (S390X, 1):
        pytest.skip("version 1 does not define it")
    old = two_functions(arch)
    new = converted(old, version)
    frame = [(rela.symbol, rela.addend) for rela in relas_of(old, ".rela.eh_frame")]
    assert len({symbol for symbol, _ in frame}) == 2
    relas = relas_of(new, ".rela.sframe")
    assert [(rela.symbol, rela.addend) for rela in relas] == frame
    assert [rela.offset for rela in relas] == [28 + RECORD_SIZES[version] * index for index in range(3)]
    assert {rela.type for rela in relas} == {RELOCATION_TYPES[arch][version == 3]}
    section = named(headers_of(new), ".sframe").content
    # The relocation carries the whole value: the field itself is 0, as assemblers leave it.
    width = 8 if version == 3 else 4
    assert all(section[rela.offset : rela.offset + width] == bytes(width) for rela in relas)


def test_other_changes_are_seen_by_the_check() -> None:
    """In each section, each field of the section headers, and the file header, but for what nobody reads."""
    result = emit(convert(load(two_functions(AMD64))))
    data = b"".join(result.chunks)
    check(result, load(data))
    image = load(data)
    places = {("file header", str(at)): at for at in range(FILE_HEADER_SIZE)}
    for section in image.sections:
        header = image.header.section_headers_offset + 64 * section.index
        places |= {(section.name, field): header + at for field, (_, at) in SECTION_HEADER.items()}
        # In the middle of .sframe is the start of a function, which its relocation overwrites.
        parts = {"first": 0, "last": section.size - 1} | ({} if section.is_sframe else {"middle": section.size // 2})
        stored = section.is_stored and section.size
        places |= {(section.name, part): section.file_offset + at for part, at in parts.items() if stored}
    unseen = set()
    for place, at in places.items():
        changed = data[:at] + bytes([data[at] ^ 0x40]) + data[at + 1 :]
        try:
            check(result, load(changed))
        except Cfi2SFrameError:
            continue
        unseen.add(place)
    of_section = {(".sframe", field) for field in ("addr", "link", "info", "entsize")}
    assert unseen == {("", "size"), *of_section, (".rela.sframe", "addr"), (".rela.sframe", "addralign")}


def test_a_name_that_would_become_another_is_seen_by_the_check() -> None:
    """That of a header that leads behind the names, where new ones are added."""
    old = File(two_functions(AMD64))
    size = old.section(".shstrtab").size
    for offset, is_right in ((size - 1, True), (size, False), (size + 8, False)):
        old.section(1).name = offset
        result = emit(convert(load(bytes(old))))
        with nullcontext() if is_right else pytest.raises(EmbedError, match="section 1 differs"):
            check(result, load(b"".join(result.chunks)))


@pytest.mark.parametrize("arch", RELOCATION_TYPES, ids=lambda arch: arch.name)
def test_replacing_gives_the_same(arch: Arch) -> None:
    old = two_functions(arch)
    again = convert(load(converted(old, 2)))
    assert emitted(again) == converted(old)


def test_a_sum_that_wraps_around_is_refused() -> None:
    """The field of the FDE has 32 bits, in which it is the function's start; that of version 3 has 64."""
    old = bytearray(two_functions(AMD64))
    addend_offset = named(headers_of(bytes(old)), ".rela.eh_frame").file_offset + 16
    emit(convert(load(bytes(old))))
    old[addend_offset + 4] = 1
    conversion = convert(load(bytes(old)))
    assert len(conversion.section) == 3
    with pytest.raises(EmbedError, match="a symbol of the function at 0x10000 is far outside its section"):
        emit(conversion)


def test_a_symbol_with_the_index_of_the_new_section_is_refused() -> None:
    """A damaged symbol in the section after the last would become a symbol in .sframe."""
    old = File(elf_file(AMD64.elf_machine, (Section(".text", b"\x90" * 8),), symbols=(Symbol("f"),)))
    at = old.section(".symtab").offset + 24 + 6
    struct.pack_into("<H", old, at, old.header.shnum)
    with pytest.raises(EmbedError, match=r"a symbol is in section \d+, which does not exist"):
        objects.insert(bytes(old), SECTION, ())
    struct.pack_into("<H", old, at, 0xFFF1)
    assert named(headers_of(b"".join(objects.insert(bytes(old), SECTION, ()))), ".sframe").content == SECTION


def _with_sections(count: int, *, names_last: bool) -> bytes:
    """Return an object of `count` sections, nearly all of them empty; the section names can be in the last."""
    small = elf_file(AMD64.elf_machine, (Section(".text", b"\x90" * 16, flags=6),), symbols=(Symbol("f"),))
    header = parse_file_header(small)
    sections = list(parse_section_headers(small, header))
    names = sections.pop()
    fill = [ElfSection(1, SHT_PROGBITS, 0, 0, 64, 0, 0, 0, 1, 0)] * (count - len(sections) - 1)
    sections = [*sections, *fill, names] if names_last else [*sections, names, *fill]
    index = sections.index(names)
    sections[0] = sections[0]._replace(
        size=count if count >= SHN_LORESERVE else 0, link=index if index >= SHN_LORESERVE else 0
    )
    header = FileHeader(*header)._replace(
        section_header_count=0 if count >= SHN_LORESERVE else count,
        section_names_index=SHN_XINDEX if index >= SHN_LORESERVE else index,
        section_headers_offset=len(small) + -len(small) % 8,
    )
    table = b"".join(section.pack("<") for section in sections)
    return header.pack() + small[FILE_HEADER_SIZE:] + bytes(-len(small) % 8) + table


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("count", "names_last"),
    [(SHN_LORESERVE - 3, False), (SHN_LORESERVE - 2, True), (SHN_LORESERVE, False), (SHN_LORESERVE + 1, True)],
)
def test_many_sections(count: int, *, names_last: bool) -> None:
    """From 0xff00 sections on the count is in the null section; both ways over that boundary."""
    old = _with_sections(count, names_last=names_last)
    new = b"".join(objects.insert(old, SECTION, RELOCATIONS))
    header = parse_file_header(new)
    sections = parse_section_headers(new, header)
    assert len(sections) == count + 2
    assert header.section_header_count == (count + 2 if count + 2 < SHN_LORESERVE else 0)
    assert sections[0].size == (count + 2 if count + 2 >= SHN_LORESERVE else 0)
    old_sections = parse_section_headers(old, parse_file_header(old))
    changed = [i for i, (a, b) in enumerate(zip(old_sections, sections, strict=False)) if a != b and i]
    # Of the old ones, only the names have grown.
    assert changed == [count - 1 if names_last else 4]
    assert sections[0].link == old_sections[0].link
    assert sections[-1].info == count
    assert new[sections[-2].file_offset :][: len(SECTION)] == SECTION
    removed = b"".join(objects.remove(new).content)
    again = parse_section_headers(removed, parse_file_header(removed))
    assert again[0] == old_sections[0]
    assert len(again) == count
    assert parse_file_header(removed).section_header_count == parse_file_header(old).section_header_count


@pytest.mark.parametrize("version", [1, 2, 3])
def test_an_object_never_shares_rows(version: int) -> None:
    """GNU ld reserves room for what it reads and writes each function's rows: shared ones would not fit."""
    section = named(headers_of(converted(two_functions(AMD64), version)), ".sframe").content
    place = 12 if version == 3 else 8
    offsets = [struct.unpack_from("<I", section, 28 + RECORD_SIZES[version] * index + place)[0] for index in range(3)]
    assert len(set(offsets)) == 3
