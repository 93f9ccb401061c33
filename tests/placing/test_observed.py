# SPDX-License-Identifier: Apache-2.0
"""A file that is written is compared with what was there: whatever else has changed is noticed, and not written."""

import struct
from collections import Counter
from typing import NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PF_R, PF_W, PF_X, PT_PHDR, SHT_GNU_SFRAME, SHT_NULL
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import check_insertion, plan_insertion
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.place import Placement
from cfi2sframe.placing.removal import check_removal
from cfi2sframe.placing.undo import record_span
from tests.support.placing.embedded import (
    LARGE,
    P_ALIGN,
    P_FILESZ,
    P_FLAGS,
    P_MEMSZ,
    P_OFFSET,
    P_PADDR,
    P_VADDR,
    SH_NAME,
    SH_OFFSET,
    SH_SIZE,
    SH_TYPE,
    SMALL,
    embedded,
    linked_program,
    section_header,
    segment_header,
    sframe,
    take_out,
    without_record,
)


class Edit(NamedTuple):
    """A file without a section and with it."""

    bare: bytes
    plan: Placement
    full: bytes

    def check(self, written: bytes, *, is_removal: bool) -> None:
        """Check what is written in place of one of them."""
        if is_removal:
            # Without its record, which would tell at once that this is not the original.
            expect_equal(written, without_record(self.full))
        else:
            check_insertion(written, self.plan, sframe(self.plan.section_size))


@pytest.fixture(params=[SMALL, LARGE], ids=["slack", "new segment"])
def edit(request: pytest.FixtureRequest) -> Edit:
    data = linked_program().read_bytes()
    return Edit(data, *embedded(data, request.param))


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


each_direction = pytest.mark.parametrize("is_removal", [False, True], ids=["insertion", "removal"])


@each_direction
def test_changed_bytes_are_noticed(edit: Edit, *, is_removal: bool) -> None:
    data = edit.bare if is_removal else edit.full
    edit.check(data, is_removal=is_removal)
    for section in load(data).sections:
        if section.is_stored:
            with pytest.raises(EmbedError, match="fails its re-read"):
                edit.check(flipped(data, section.file_offset + section.size // 2), is_removal=is_removal)


@each_direction
@pytest.mark.parametrize("field", [P_OFFSET, P_VADDR, P_PADDR, P_FILESZ, P_MEMSZ, P_ALIGN])
def test_changed_program_headers_are_noticed(edit: Edit, field: int, *, is_removal: bool) -> None:
    data = edit.bare if is_removal else edit.full
    image = load(data)
    for number, segment in enumerate(image.segments):
        if is_removal and segment.type == PT_PHDR and field in {P_FILESZ, P_MEMSZ}:
            # Nobody reads it, and an original may have stated a wrong one.
            continue
        with pytest.raises(EmbedError):
            edit.check(flipped(data, image.header.program_headers_offset + 56 * number + field), is_removal=is_removal)


@each_direction
def test_changed_section_headers_are_noticed(edit: Edit, *, is_removal: bool) -> None:
    data = edit.bare if is_removal else edit.full
    image = load(data)
    for section in image.sections:
        for field in (SH_TYPE, SH_SIZE, SH_OFFSET):
            if section.type != SHT_NULL or field == SH_OFFSET:
                with pytest.raises(EmbedError):
                    edit.check(flipped(data, section_header(image, section.name) + field), is_removal=is_removal)


@each_direction
def test_the_rest_of_a_symbol_table_is_compared(*, is_removal: bool) -> None:
    """A damaged section header may end in the midst of a symbol."""
    data = bytearray(linked_program().read_bytes())
    header = section_header(load(bytes(data)), ".symtab")
    struct.pack_into("<Q", data, header + SH_SIZE, struct.unpack_from("<Q", data, header + SH_SIZE)[0] - 5)
    edit = Edit(bytes(data), *embedded(bytes(data), SMALL))
    written = edit.bare if is_removal else edit.full
    symbols = next(section for section in load(written).sections if section.name == ".symtab")
    with pytest.raises(EmbedError, match="the end of a symbol table changed"):
        edit.check(flipped(written, symbols.file_offset + symbols.size - 1), is_removal=is_removal)


@pytest.mark.parametrize("bit", [0, 7])
def test_a_damaged_record_is_not_followed(edit: Edit, bit: int) -> None:
    """The section becomes zeros; without the magic number, there are bytes that no header describes."""
    span = record_span(edit.full)
    assert span is not None
    found = Counter[int]()
    sizes = segment_header(load(edit.bare), PT_PHDR) + P_FILESZ
    rights = segment_header(load(edit.bare), PT_PHDR) + P_FLAGS
    for place in range(*span, 14):
        data = bytearray(edit.full)
        data[place] ^= 1 << bit
        try:
            bare = take_out(bytes(data))
        except EmbedError:
            bare = b""
        # Nobody reads the sizes of PT_PHDR.
        if len(bare) == len(edit.bare) and bare[sizes : sizes + 16] != edit.bare[sizes : sizes + 16]:
            bare = bare[:sizes] + edit.bare[sizes : sizes + 16] + bare[sizes + 16 :]
        # Nor PF_X of it.
        if bare and bare[rights] == edit.bare[rights] | PF_X:
            bare = bare[:rights] + edit.bare[rights : rights + 1] + bare[rights + 1 :]
        # Of the indices, symbols need some only; of the digests, one has no effect on what is restored.
        assert bare == edit.bare or len(bare) in (0, span.start)
        found[len(bare)] += 1
    assert found[span.start] > 2 * found[len(edit.bare)]


def test_what_is_still_there_is_noticed(edit: Edit) -> None:
    with pytest.raises(EmbedError, match="it has a section"):
        expect_equal(without_record(edit.full), without_record(edit.full))
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(edit.full, edit.full)
    with pytest.raises(EmbedError, match="not one SFrame section"):
        expect_equal(edit.bare, edit.bare)


def test_one_byte_more_is_noticed(edit: Edit) -> None:
    with pytest.raises(EmbedError, match="it is not the original"):
        check_removal(edit.full, edit.bare + b"\0")


def test_another_section_is_not_mistaken_for_it(edit: Edit) -> None:
    """A damaged name or type makes a second SFrame section: it is not known which one to remove."""
    image = load(edit.full)
    names = image.sections[image.header.section_names_index]
    name = edit.full.index(b"\0.sframe\0", names.file_offset) + 1 - names.file_offset
    for field, value in ((SH_NAME, name), (SH_TYPE, SHT_GNU_SFRAME)):
        data = bytearray(edit.full)
        struct.pack_into("<I", data, section_header(image, ".rodata") + field, value)
        with pytest.raises(EmbedError):
            take_out(bytes(data))


def test_a_table_moves_only_as_a_whole() -> None:
    """The hash table leads to more symbols than the section header of .dynsym tells."""
    data = bytearray(linked_program("lld").read_bytes())
    assert ".dynsym" in embedded(bytes(data), LARGE)[0].moved
    struct.pack_into("<Q", data, section_header(load(bytes(data)), ".dynsym") + SH_SIZE, 24 * 4)
    assert ".dynsym" not in plan_insertion(bytes(data), LARGE).moved


def with_rights(data: bytes, rights: int) -> bytes:
    at = segment_header(load(data), PT_PHDR) + P_FLAGS
    return data[:at] + struct.pack("<I", rights) + data[at + 4 :]


def test_no_other_rights_of_the_program_headers_are_allowed(edit: Edit) -> None:
    """PF_X is cleared, and removal gives it back where it was."""
    for written, is_removal, rights in (
        *((edit.full, False, rights) for rights in (PF_X, 0, PF_R | PF_W, PF_R | PF_W | PF_X)),
        (edit.bare, True, PF_R | PF_W),
    ):
        with pytest.raises(EmbedError, match="PT_PHDR is missing, changed"):
            edit.check(with_rights(written, rights), is_removal=is_removal)
