# SPDX-License-Identifier: Apache-2.0
"""What a removal leaves is compared with what was there: whatever else has changed is noticed, and not written."""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import emit as emitting
from cfi2sframe import load
from cfi2sframe.cli import main
from cfi2sframe.elf.constants import (
    PT_DYNAMIC,
    PT_GNU_PROPERTY,
    PT_INTERP,
    PT_NOTE,
    PT_PHDR,
    SHT_GNU_SFRAME,
)
from cfi2sframe.elf.contents import Joined
from cfi2sframe.errors import Cfi2SFrameError, EmbedError
from cfi2sframe.placing.linked import check_removal, plan_embedding, self_check, write_embedding
from cfi2sframe.placing.remove import remove_section
from tests.support.embedded import LARGE, SMALL, embed, sframe, take_out, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.elf.image import ElfImage

#: Where in Elf64_Phdr the offset, the address and the sizes are.
P_OFFSET, P_VADDR, P_PADDR, P_FILESZ, P_MEMSZ, P_ALIGN = 8, 16, 24, 32, 40, 48
SH_NAME, SH_TYPE, SH_OFFSET, SH_SIZE = 0, 4, 24, 32
#: GNU_PROPERTY_X86_ISA_1_NEEDED, and bits of it: of any processor, and of one with AVX-512.
ISA_NEEDED: Final = struct.pack("<II", 0xC0008002, 4)
ISA_BASELINE, ISA_V4 = 1, 8


@pytest.fixture(params=[SMALL, LARGE], ids=["slack", "new segment"])
def converted(request: pytest.FixtureRequest, program: Callable[..., Path], tmp_path: Path) -> bytes:
    embed(program(), tmp_path / "converted", request.param)
    return (tmp_path / "converted").read_bytes()


def segment_header(image: ElfImage, kind: int) -> int:
    """File offset of the first program header of a type."""
    number = next(number for number, segment in enumerate(image.segments) if segment.type == kind)
    return image.header.program_headers_offset + 56 * number


def section_header(image: ElfImage, name: str) -> int:
    """File offset of the header of a section."""
    return image.header.section_headers_offset + 64 * next(s.index for s in image.sections if s.name == name)


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0x40]) + data[place + 1 :]


@pytest.mark.parametrize(
    "name", [".interp", ".note.gnu.build-id", ".gnu.hash", ".dynsym", ".dynstr", ".text", ".rodata", ".data", ".symtab"]
)
def test_changed_bytes_are_noticed(converted: bytes, name: str) -> None:
    bare = take_out(converted)
    section = next(s for s in load(bare).sections if s.name == name)
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(converted, flipped(bare, section.file_offset + section.size // 2))


@pytest.mark.parametrize("kind", [PT_PHDR, PT_INTERP, PT_DYNAMIC, PT_NOTE, PT_GNU_PROPERTY])
@pytest.mark.parametrize("field", [P_OFFSET, P_VADDR, P_PADDR, P_FILESZ, P_ALIGN])
def test_changed_program_headers_are_noticed(converted: bytes, kind: int, field: int) -> None:
    bare = take_out(converted)
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(converted, flipped(bare, segment_header(load(bare), kind) + field))


def test_changed_section_headers_are_noticed(converted: bytes) -> None:
    bare = take_out(converted)
    for section in load(bare).sections[1:]:
        for field in (SH_TYPE, SH_SIZE):
            with pytest.raises(Cfi2SFrameError):
                check_removal(converted, flipped(bare, section_header(load(bare), section.name) + field))
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(converted, flipped(bare, load(bare).header.section_headers_offset + SH_OFFSET))
    with pytest.raises(EmbedError, match="fails its re-read"):
        check_removal(flipped(converted, load(converted).header.section_headers_offset + SH_OFFSET), bare)


@pytest.mark.parametrize("bit", [0, 7])
def test_a_damaged_record_is_not_followed(converted: bytes, program: Callable[..., Path], bit: int) -> None:
    """The section becomes zeros, except with the record of another original that would give the same file.

    That differs in bytes that nothing has, or in PT_PHDR, which is written anew; a wrong one is refused.
    """
    original, end = program().read_bytes(), load(converted).header.section_headers_offset
    start = converted.rindex(original[:24], 0, end)
    sizes = Counter[int]()
    for place in range(start, end, 7):
        data = bytearray(converted)
        data[place] ^= 1 << bit
        try:
            sizes[len(take_out(bytes(data)))] += 1
        except EmbedError:
            sizes[0] += 1
    assert set(sizes) <= {len(original), len(converted), 0}
    assert sizes[len(converted)] > 0.9 * (end - start) / 7


def test_what_is_still_there_is_noticed(converted: bytes) -> None:
    with pytest.raises(EmbedError, match="still there"):
        check_removal(converted, converted)


def test_another_section_is_not_mistaken_for_it(converted: bytes) -> None:
    """A damaged name or type makes a second SFrame section: it is not known which one to remove."""
    image = load(converted)
    names = image.sections[image.header.section_names_index]
    name = converted.index(b"\0.sframe\0", names.file_offset) + 1 - names.file_offset
    for field, value in ((SH_NAME, name), (SH_TYPE, SHT_GNU_SFRAME)):
        data = bytearray(converted)
        struct.pack_into("<I", data, section_header(image, ".rodata") + field, value)
        with pytest.raises(EmbedError):
            take_out(bytes(data))


def test_a_table_moves_only_as_a_whole(program: Callable[..., Path]) -> None:
    """The hash table leads to more symbols than the section holds that would move."""
    data = bytearray(program("lld").read_bytes())
    plan = plan_embedding(bytes(data), LARGE)
    assert ".dynsym" in set(plan.moved)
    self_check(data, b"".join(write_embedding(plan, sframe(LARGE))), plan)
    header = section_header(load(bytes(data)), ".dynsym")
    struct.pack_into("<Q", data, header + SH_SIZE, 24 * 4)
    plan = plan_embedding(bytes(data), LARGE)
    with pytest.raises(EmbedError, match=r"larger than \.dynsym, which moved"):
        self_check(data, b"".join(write_embedding(plan, sframe(LARGE))), plan)


@pytest.mark.parametrize("verifies", [True, False])
def test_the_command_compares_before_it_writes(
    converted: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, verifies: bool
) -> None:
    def remove_wrongly(image: ElfImage) -> Joined:
        bare = b"".join(remove_section(image.data))
        text = next(s for s in load(bare).sections if s.name == ".text")
        return Joined([flipped(bare, text.file_offset)])

    monkeypatch.setattr(emitting, "remove", remove_wrongly)
    path = tmp_path / "program"
    write(path, converted)
    status = main(["remove", "--in-place", str(path), *([] if verifies else ["--no-verify"])])
    assert status == (3 if verifies else 0)
    assert (path.read_bytes() == converted) == verifies
