# SPDX-License-Identifier: Apache-2.0
"""Sections that this program did not write: only what decodes as SFrame, and is nothing else, is cleared."""

import struct
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import emit, load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.errors import SectionError
from cfi2sframe.placing.linked import plan_insertion
from tests.support.cli import run
from tests.support.elf.edit import File
from tests.support.needs import attempt
from tests.support.placing.embedded import (
    converted,
    linked_of,
    linked_program,
    take_out,
    without_record,
    without_section_headers,
    write,
)

#: A program that prints bytes of a section with the name.
NAMED: Final = """\
__asm__(".section .sframe,\\"a\\",@progbits\\ntext: .asciz \\"a drawing\\"\\n.text\\n");
extern const char text[] __attribute__((visibility("hidden")));
int puts(const char *);
int main(void) { return puts(text) < 0; }
"""


def test_what_only_has_the_name_stays(tmp_path: Path) -> None:
    """It may be anything, and nothing would bring it back; in a directory, such a file is skipped."""
    program = tmp_path / "tree" / "program"
    program.parent.mkdir()
    linked_of(tmp_path, NAMED).rename(program)
    before = program.read_bytes()
    for words in (("remove",), ("--replace",), ()):
        assert run(*words, "--in-place", program).status == 3
        assert run(*words, "--in-place", program.parent).status == 0
        assert program.read_bytes() == before
    assert attempt(program).out == "a drawing\n"


@pytest.mark.parametrize("what", ["code", "names", "headers", "interpreter"])
def test_a_header_that_leads_to_something_else(what: str) -> None:
    """A forged PT_GNU_SFRAME over the entry point, the loader's names, the program headers, or what one leads to."""
    data = linked_program().read_bytes()
    file = File(without_section_headers(data) if what in ("names", "interpreter") else data)
    image = load(bytes(file))
    vaddr = {
        "code": image.header.entry_vaddr,
        "names": dynamic_entries(image)[c.DT_STRTAB],
        "headers": image.header.program_headers_offset,
        "interpreter": file.segment(c.PT_INTERP).vaddr,
    }[what]
    offset = image.segment_map.offset_of(vaddr, 32)
    assert offset is not None
    segment = file.segment(c.PT_GNU_STACK).set(type=c.PT_GNU_SFRAME, flags=c.PF_R, offset=offset, align=8)
    segment.set(vaddr=vaddr, paddr=vaddr, filesz=32, memsz=32)
    for work in (lambda: take_out(bytes(file)), lambda: plan_insertion(bytes(file), 32)):
        with pytest.raises(SectionError, match="is also something else"):
            work()


def test_a_section_is_replaced_where_it_is() -> None:
    """If the new one is not larger. Otherwise it goes elsewhere, but not if a symbol leads to it."""
    full = without_record(converted(linked_program().read_bytes()))
    old = load(full).sframe_section
    assert old is not None
    plan = plan_insertion(full, old.size)
    assert plan.section_vaddr == old.vaddr
    assert plan.description.startswith("in the place of the old one")
    assert plan_insertion(full, old.size + 8).section_vaddr != old.vaddr
    data = bytearray(full)
    (table,) = load(full).sections_named(".symtab")
    struct.pack_into("<Q", data, table.file_offset + 24 + 8, old.vaddr)
    struct.pack_into("<B", data, table.file_offset + 24 + 4, 1)
    assert plan_insertion(bytes(data), old.size).section_vaddr == old.vaddr
    with pytest.raises(SectionError, match=r"a symbol leads to its \.sframe section"):
        plan_insertion(bytes(data), old.size + 8)
    assert plan_insertion(bytes(data), old.size + 8, replaces=True).section_vaddr != old.vaddr


@pytest.mark.parametrize("place", [0, 2, 28 + 12])
def test_a_damaged_section_is_not_cleared(place: int) -> None:
    """Neither its magic number, nor its version, nor a function can be damaged."""
    file = File(without_record(converted(linked_program().read_bytes())))
    at = file.section(".sframe").offset + place
    file[at : at + 4] = b"\xff" * 4
    with pytest.raises(SectionError, match="no SFrame section that is whole"):
        emit.remove(load(bytes(file)))


def test_zeros_are_no_section(tmp_path: Path) -> None:
    """They are what an earlier removal has left."""
    bare = take_out(without_record(converted(linked_program().read_bytes())))
    path = write(tmp_path / "program", bare)
    assert run("--in-place", path).status == 0
    assert attempt(path) == attempt(linked_program())
