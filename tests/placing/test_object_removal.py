# SPDX-License-Identifier: Apache-2.0
"""Removal from objects: what was there is back, in groups and among symbols, too."""

import struct

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import SHF_WRITE, SHT_GROUP
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import objects
from cfi2sframe.placing.undo import record_span
from tests.support.elf.elf_asm import Relocation, Section, Symbol, elf_file
from tests.support.elf.samples import object_file, push_fp
from tests.support.placing.embedded import (
    SH_FLAGS,
    SH_OFFSET,
    SH_TYPE,
    converted,
    section_header,
    take_out,
    without_record,
)
from tests.support.placing.emitted import GOLDEN, GOLDEN_NAMES, assert_kept, headers_of


@pytest.mark.parametrize("name", GOLDEN_NAMES)
def test_removal_restores_the_object(name: str) -> None:
    """Or its sections, after another tool: the file has grown by a byte, which no header describes."""
    old = (GOLDEN / name).read_bytes()
    assert take_out(converted(old)) == old
    new = take_out(converted(old) + b"\0")
    assert_kept(old, new)
    assert len(headers_of(new)) == len(headers_of(old))
    for bare in (old, new):
        with pytest.raises(EmbedError, match=r"no \.sframe section"):
            take_out(bare)


def test_a_record_ends_an_object_unless_a_header_describes_it() -> None:
    """It starts where the section headers end; one that no longer fits goes, or is content of a section."""
    comment = Section(".comment", b"text")
    data = bytearray(converted(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}, more=(comment,))))
    image, record = load(bytes(data)), record_span(bytes(data))
    assert record is not None
    assert record.start == image.header.section_headers_offset + 64 * len(image.sections)
    # Its header was another one.
    data[section_header(image, ".text") + SH_FLAGS] ^= SHF_WRITE
    content = bytes(data[record.start : record.end])
    for end in (record.start, record.start + 1):
        struct.pack_into("<Q", data, section_header(image, ".comment") + SH_OFFSET, end - len(comment.data))
        assert (content in take_out(bytes(data))) == (end > record.start)


def test_what_is_left_of_the_section_is_seen_by_the_check() -> None:
    """Where no record tells the original."""
    full = load(without_record(converted((GOLDEN / GOLDEN_NAMES[0]).read_bytes())))
    bare = bytearray(take_out(bytes(full.data)))
    objects.check_removal(full, load(bytes(bare)))
    (section,) = full.sections_named(".sframe")
    bare[section.file_offset] = 1
    with pytest.raises(EmbedError, match="something is left of the section"):
        objects.check_removal(full, load(bytes(bare)))


def test_a_section_group_loses_the_section() -> None:
    """As any other member whose header becomes inactive."""
    out = bytearray(converted(object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".group": (push_fp(AMD64, 0),)})))
    image = load(bytes(out))
    number = next(s.index for s in image.sections if s.is_sframe)
    out += bytes(-len(out) % 4)
    struct.pack_into("<IQQQQ", out, section_header(image, ".group") + SH_TYPE, SHT_GROUP, 0, 0, len(out), 12)
    out += struct.pack("<III", 1, number, 1)
    bare = load(take_out(bytes(out)))
    group = next(section for section in bare.sections if section.type == SHT_GROUP)
    assert struct.unpack("<2I", bare.section_bytes(group)) == (1, 1)


def test_a_group_of_nothing_else_goes_and_other_groups_stay() -> None:
    """GNU strip 2.40 takes an object with a group without members for none, if this program made it so."""
    two = {".text": (push_fp(AMD64, 0),), ".group": (push_fp(AMD64, 0),), ".group2": (push_fp(AMD64, 0),)}
    out = bytearray(converted(object_file(AMD64, two)))
    number = next(s.index for s in load(bytes(out)).sections if s.is_sframe)
    for name, words in ((".group", (1, number)), (".group2", (1,))):
        out += bytes(-len(out) % 4)
        place = section_header(load(bytes(out)), name) + SH_TYPE
        struct.pack_into("<IQQQQ", out, place, SHT_GROUP, 0, 0, len(out), 4 * len(words))
        out += struct.pack(f"<{len(words)}I", *words)
    bare = load(take_out(bytes(out)))
    assert [(s.name, s.size) for s in bare.sections if s.type == SHT_GROUP] == [(".group2", 4)]


@pytest.mark.parametrize(("is_local", "has_relocation"), [(True, False), (True, True), (False, False)])
def test_a_symbol_in_the_section_goes_with_it(*, is_local: bool, has_relocation: bool) -> None:
    """Unless something needs it: it is global, or a relocation of another section names it."""
    sections = (Section(".text", b"\x90" * 8), Section(".sframe", bytes(40)))
    symbols = (Symbol("inside", section=".sframe", info=0 if is_local else 0x10),)
    relocations = (Relocation(".text", 0, "inside", 1),) if has_relocation else ()
    old = elf_file(AMD64.elf_machine, sections, symbols=symbols, relocations=relocations)
    if has_relocation or not is_local:
        with pytest.raises(EmbedError, match=r"cannot be removed"):
            objects.remove(old)
        return
    bare = load(take_out(old))
    assert not bare.has_sframe
    assert [symbol.name for symbol in bare.symbols(bare.symbol_tables[0])] == ["", ""]
