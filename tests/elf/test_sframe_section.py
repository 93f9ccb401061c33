# SPDX-License-Identifier: Apache-2.0
"""Which section is the SFrame section: everything that asks gets the same answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe import convert
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode_existing
from cfi2sframe.elf import constants as c
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import emit
from cfi2sframe.errors import EmbedError, InputError
from cfi2sframe.placing.objects import remove_from_object
from cfi2sframe.placing.remove import remove_section
from cfi2sframe.report.size import measure
from cfi2sframe.sframe.model import Section as SectionRecord
from cfi2sframe.trace import FileStore
from tests.support import cfi_asm as asm
from tests.support.elf_asm import Section, Segment, Symbol, elf_file
from tests.support.samples import push_fp

if TYPE_CHECKING:
    from collections.abc import Callable

VADDR, CODE_SIZE = 0x401000, 0x20
#: Types of a section called `.sframe`, and whether it is one.
TYPES = ((c.SHT_GNU_SFRAME, True), (c.SHT_PROGBITS, True), (c.SHT_NOTE, False), (c.SHT_NOBITS, False))


def file_with(name: str, kind: int, *, is_object: bool) -> ElfImage:
    """Return a file with a function, its CFI, and a section of a name and type that holds a real SFrame section."""
    bare = _file((), is_object=is_object)
    content = convert(bare).data
    section = Section(name, b"" if kind == c.SHT_NOBITS else content, kind, c.SHF_ALLOC, 0x402000, align=8)
    return _file((section,), is_object=is_object)


def _file(more: tuple[Section, ...], *, is_object: bool) -> ElfImage:
    frame_vaddr = VADDR + 0x100
    frame = asm.EhFrame((push_fp(AMD64, VADDR, CODE_SIZE), asm.Terminator()), frame_vaddr).assemble()
    code = Section(".text", b"\x90" * CODE_SIZE, c.SHT_PROGBITS, c.SHF_ALLOC | c.SHF_EXECINSTR, VADDR)
    sections = (code, Section(".eh_frame", frame, c.SHT_PROGBITS, c.SHF_ALLOC, frame_vaddr, align=8), *more)
    segments = () if is_object else (Segment(c.PT_LOAD, 5, tuple(s.name for s in sections), headers=True),)
    kind = c.ET_REL if is_object else c.ET_DYN
    symbols = (Symbol("function"),) if is_object else ()
    data = elf_file(AMD64.elf_machine, sections, file_type=kind, segments=segments, symbols=symbols)
    return ElfImage(data, "file")


@pytest.mark.parametrize(("kind", "is_one"), TYPES)
def test_a_linked_file(kind: int, is_one: bool) -> None:  # noqa: FBT001 - a column of the table
    image = file_with(".sframe", kind, is_object=False)
    assert image.has_sframe == is_one == (image.sframe_section is not None)
    assert _succeeds(lambda: decode_existing(image), "no .sframe section") == is_one
    plan = emit(convert(image)).plan
    assert plan is not None
    assert plan.is_replacement == is_one
    assert _succeeds(lambda: remove_section(image.data), "no .sframe section") == is_one
    assert (measure(convert(image)).existing_size > 0) == is_one
    file = FileStore().read(bytes(image.data), "file")
    assert isinstance(file.rows, SectionRecord)
    assert (file.source == "file") == is_one


@pytest.mark.parametrize(("kind", "is_one"), TYPES)
def test_an_object(kind: int, is_one: bool) -> None:  # noqa: FBT001 - a column of the table
    image = file_with(".sframe", kind, is_object=True)
    assert image.has_sframe == is_one
    assert _succeeds(lambda: remove_from_object(image.data), "no .sframe section") == is_one


def test_the_type_is_enough() -> None:
    image = file_with(".other", c.SHT_GNU_SFRAME, is_object=False)
    section = image.sframe_section
    assert section is not None
    assert section.name == ".other"
    assert decode_existing(image).functions


def _succeeds(work: Callable[[], object], message: str) -> bool:
    try:
        work()
    except (EmbedError, InputError) as error:
        if message not in str(error):
            raise
        return False
    return True
