# SPDX-License-Identifier: Apache-2.0
"""Which section is the SFrame section, for whoever reads, replaces or removes it."""

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode_existing
from cfi2sframe.constants import elf as c
from cfi2sframe.errors import EmbedError, InputError
from cfi2sframe.placing import removal
from cfi2sframe.placing.linked import plan_insertion
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import push_fp

VADDR = 0x401000
FRAME = asm.EhFrame((push_fp(AMD64, VADDR), asm.Terminator()), VADDR + 0x100).assemble()
CODE = asm.Section(".text", b"\x90" * 0x20, flags=c.SHF_ALLOC | c.SHF_EXECINSTR, addr=VADDR)
EH_FRAME = asm.Section(".eh_frame", FRAME, flags=c.SHF_ALLOC, addr=VADDR + 0x100, align=8)


def linked(*more: asm.Section) -> bytes:
    sections = (CODE, EH_FRAME, *more)
    segment = asm.Segment(c.PT_LOAD, 5, tuple(section.name for section in sections), headers=True)
    return asm.elf_file(AMD64.elf_machine, sections, file_type=c.ET_DYN, segments=(segment,))


@pytest.mark.parametrize(
    ("name", "kind", "is_one"),
    [
        (".sframe", c.SHT_GNU_SFRAME, True),
        (".sframe", c.SHT_PROGBITS, True),
        (".sframe", c.SHT_NOTE, False),
        (".sframe", c.SHT_NOBITS, False),
        (".other", c.SHT_GNU_SFRAME, True),
        (".other", c.SHT_PROGBITS, False),
    ],
)
def test_by_its_type_and_name(name: str, kind: int, is_one: bool) -> None:  # noqa: FBT001 - a column of the table
    content = b"" if kind == c.SHT_NOBITS else convert(load(linked(), "bare")).data
    image = load(linked(asm.Section(name, content, kind, c.SHF_ALLOC, VADDR + 0x1000, align=8)), "file")
    assert image.has_sframe == is_one == (image.sframe_section is not None)
    assert bool(plan_insertion(image.data, len(convert(image).data)).cleared) == is_one
    if is_one:
        assert decode_existing(image).functions
        assert removal.remove(image.data).content
        return
    for work in (lambda: decode_existing(image), lambda: removal.remove(image.data)):
        with pytest.raises((EmbedError, InputError), match=r"no \.sframe section"):
            work()
