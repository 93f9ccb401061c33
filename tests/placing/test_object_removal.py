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
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import Relocation, Section, Symbol, elf_file
from tests.support.elf.samples import object_file, push_fp
from tests.support.placing.embedded import converted, take_out, without_record
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
    file = File(converted(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}, more=(comment,))))
    record = record_span(bytes(file))
    assert record is not None
    assert record.start == file.header.shoff + 64 * file.header.shnum
    # Its header was another one.
    file.section(".text").flags ^= SHF_WRITE
    content = bytes(file[record.start : record.end])
    for end in (record.start, record.start + 1):
        file.section(".comment").offset = end - len(comment.data)
        assert (content in take_out(bytes(file))) == (end > record.start)


def test_what_is_left_of_the_section_is_seen_by_the_check() -> None:
    """Where no record tells the original."""
    full = load(without_record(converted((GOLDEN / GOLDEN_NAMES[0]).read_bytes())))
    bare = bytearray(take_out(bytes(full.data)))
    objects.check_removal(full, load(bytes(bare)))
    (section,) = full.sections_named(".sframe")
    bare[section.file_offset] = 1
    with pytest.raises(EmbedError, match="something is left of the section"):
        objects.check_removal(full, load(bytes(bare)))


def grouped(**groups: tuple[int, ...]) -> bytes:
    """Return a converted object with a group for each name, of these members; 0 is its SFrame section."""
    names = [f".{name}" for name in groups]
    file = File(converted(object_file(AMD64, dict.fromkeys((".text", *names), (push_fp(AMD64, 0),)))))
    number = next(section.index for section in load(bytes(file)).sections if section.is_sframe)
    for name, members in zip(names, groups.values(), strict=True):
        file += bytes(-len(file) % 4)
        content = struct.pack(f"<{len(members) + 1}I", 1, *(member or number for member in members))
        file.section(name).set(type=SHT_GROUP, flags=0, addr=0, offset=len(file), size=len(content))
        file += content
    return bytes(file)


def test_a_section_group_loses_the_section() -> None:
    """As any other member whose header becomes inactive."""
    bare = load(take_out(grouped(group=(0, 1))))
    group = next(section for section in bare.sections if section.type == SHT_GROUP)
    assert struct.unpack("<2I", bare.section_bytes(group)) == (1, 1)


def test_a_group_of_nothing_else_goes_and_other_groups_stay() -> None:
    """GNU strip 2.40 takes an object with a group without members for none, if this program made it so."""
    bare = load(take_out(grouped(group=(0,), group2=())))
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
