# SPDX-License-Identifier: Apache-2.0
"""A file that is written is compared with what was there: whatever else has changed is noticed, and not written."""

from typing import NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PF_R, PF_W, PF_X, PT_PHDR, SHT_GNU_SFRAME, SHT_NULL
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import check_insertion, plan_insertion
from cfi2sframe.placing.observed import expect_equal
from cfi2sframe.placing.place import Placement
from cfi2sframe.placing.removal import check_removal
from tests.support.elf.edit import PROGRAM_HEADER, SECTION_HEADER, File
from tests.support.placing.embedded import LARGE, SMALL, embedded, linked_program, sframe, take_out, without_record


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
def test_each_change_is_noticed(edit: Edit, *, is_removal: bool) -> None:
    """In each section, and in each header that leads somewhere, but for what nobody reads."""
    data = edit.bare if is_removal else edit.full
    edit.check(data, is_removal=is_removal)
    image, places = load(data), list[int]()
    for number, segment in enumerate(image.segments):
        # The sizes of PT_PHDR: an original may have stated wrong ones.
        unread = {"filesz", "memsz"} if is_removal and segment.type == PT_PHDR else set()
        fields = PROGRAM_HEADER.keys() - {"type", "flags", *unread}
        places += [image.header.program_headers_offset + 56 * number + PROGRAM_HEADER[name][1] for name in fields]
    for section in image.sections:
        places += [section.file_offset + section.size // 2] * section.is_stored
        fields = {"offset"} if section.type == SHT_NULL else {"type", "size", "offset"}
        places += [image.header.section_headers_offset + 64 * section.index + SECTION_HEADER[f][1] for f in fields]
    for place in places:
        with pytest.raises(EmbedError):
            edit.check(flipped(data, place), is_removal=is_removal)


@each_direction
def test_the_rest_of_a_symbol_table_is_compared(*, is_removal: bool) -> None:
    """A damaged section header may end in the midst of a symbol."""
    file = File(linked_program().read_bytes())
    file.section(".symtab").size -= 5
    edit = Edit(bytes(file), *embedded(bytes(file), SMALL))
    written = edit.bare if is_removal else edit.full
    symbols = File(written).section(".symtab")
    with pytest.raises(EmbedError, match="the end of a symbol table changed"):
        edit.check(flipped(written, symbols.offset + symbols.size - 1), is_removal=is_removal)


def test_what_is_still_there_is_noticed(edit: Edit) -> None:
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(edit.full, edit.full)


def test_one_byte_more_is_noticed(edit: Edit) -> None:
    with pytest.raises(EmbedError, match="it is not the original"):
        check_removal(edit.full, edit.bare + b"\0")


def test_another_section_is_not_mistaken_for_it(edit: Edit) -> None:
    """A damaged name or type makes a second SFrame section: it is not known which one to remove."""
    for fields in ({"name": File(edit.full).section(".sframe").name}, {"type": SHT_GNU_SFRAME}):
        file = File(edit.full)
        file.section(".rodata").set(**fields)
        with pytest.raises(EmbedError):
            take_out(bytes(file))


def test_a_table_moves_only_as_a_whole() -> None:
    """The hash table leads to more symbols than the section header of .dynsym tells."""
    file = File(linked_program("lld").read_bytes())
    assert ".dynsym" in plan_insertion(bytes(file), LARGE).moved
    file.section(".dynsym").size = 24 * 4
    assert ".dynsym" not in plan_insertion(bytes(file), LARGE).moved


def test_no_other_rights_of_the_program_headers_are_allowed(edit: Edit) -> None:
    """PF_X is cleared, and removal gives it back where it was."""
    for written, is_removal, rights in (
        *((edit.full, False, rights) for rights in (PF_X, 0, PF_R | PF_W, PF_R | PF_W | PF_X)),
        (edit.bare, True, PF_R | PF_W),
    ):
        file = File(written)
        file.segment(PT_PHDR).flags = rights
        with pytest.raises(EmbedError, match="PT_PHDR is missing, changed"):
            edit.check(bytes(file), is_removal=is_removal)
