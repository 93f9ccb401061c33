# SPDX-License-Identifier: Apache-2.0
"""Files that must not be rewritten are refused with a reason, and a wrong rewrite is noticed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.elf.constants import PT_LOAD
from cfi2sframe.elf.headers import parse_file_header, parse_program_headers, parse_section_headers
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import plan_embedding, self_check, write_embedding
from tests.support.embedded import LARGE, SOURCES, run, sframe, take_out, write
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def image(program: Callable[..., Path]) -> bytearray:
    return bytearray(program().read_bytes())


def _segment_offset(data: bytearray, number: int) -> int:
    """File offset of the program header of the nth PT_LOAD."""
    header = parse_file_header(data)
    indices = [i for i, s in enumerate(parse_program_headers(data, header)) if s.type == PT_LOAD]
    return header.program_headers_offset + 56 * indices[number]


def _refusal(data: bytes | bytearray) -> str:
    with pytest.raises(EmbedError) as caught:
        plan_embedding(data, LARGE)
    return str(caught.value)


def test_relocatable(tmp_path: Path) -> None:
    need("gcc")
    assert run("gcc", "-c", "-o", tmp_path / "plain.o", SOURCES / "plain.c").status == 0
    assert "relocatable" in _refusal((tmp_path / "plain.o").read_bytes())


def test_appended_payload(image: bytearray) -> None:
    assert "follow what the headers describe" in _refusal(bytes(image) + b"PK\3\4 an archive")


def test_overlapping_segments(image: bytearray) -> None:
    offset = _segment_offset(image, 0) + 40
    struct.pack_into("<Q", image, offset, 0x3000)
    assert "overlap" in _refusal(image)


def test_unordered_segments(image: bytearray) -> None:
    first, second = _segment_offset(image, 1), _segment_offset(image, 2)
    image[first : first + 56], image[second : second + 56] = image[second : second + 56], image[first : first + 56]
    assert "not in address order" in _refusal(image)


def test_load_address_of_its_own(image: bytearray) -> None:
    struct.pack_into("<Q", image, _segment_offset(image, 1) + 24, 0x1000000)
    assert "kernel or firmware" in _refusal(image)


def test_segment_beyond_the_file(image: bytearray) -> None:
    struct.pack_into("<Q", image, _segment_offset(image, 1) + 32, len(image) * 2)
    assert "leaves the file" in _refusal(image)


def test_section_table_of_another_file(image: bytearray) -> None:
    header = parse_file_header(image)
    sections = parse_section_headers(image, header)
    number = next(i for i, s in enumerate(sections) if s.flags & 4)
    struct.pack_into("<Q", image, header.section_headers_offset + 64 * number + 16, 0x123450)
    assert "does not fit the content" in _refusal(image)


def test_debug_file(program: Callable[..., Path], tmp_path: Path) -> None:
    need("objcopy")
    assert run("objcopy", "--only-keep-debug", program("bfd", "pie", "debug"), tmp_path / "debug").status == 0
    assert _refusal((tmp_path / "debug").read_bytes())


def test_without_section_headers(program: Callable[..., Path], tmp_path: Path) -> None:
    """What follows the program headers is unknown: nothing moves, and the table goes to the end."""
    data = bytearray(program().read_bytes())
    header = parse_file_header(data)
    end = max(s.file_offset + s.file_size for s in parse_program_headers(data, header))
    bare = header._replace(section_headers_offset=0, section_header_count=0, section_names_index=0)
    stripped = bare.pack() + bytes(data[64:end])
    plan = plan_embedding(stripped, LARGE)
    assert "strip must have run before" in plan.warnings[0]
    rewritten = b"".join(write_embedding(plan, sframe(LARGE)))
    self_check(stripped, rewritten, plan, sframe(LARGE))
    write(tmp_path / "converted", rewritten)
    assert run(tmp_path / "converted") == run(program())
    write(tmp_path / "removed", take_out(rewritten))
    assert run(tmp_path / "removed") == run(program())


@pytest.mark.parametrize("name", [".text", ".rodata", ".eh_frame", ".data", ".dynstr", ".symtab", ".note.gnu.build-id"])
def test_self_check_notices_changed_bytes(image: bytearray, name: str) -> None:
    plan = plan_embedding(image, LARGE)
    rewritten = bytearray(b"".join(write_embedding(plan, sframe(LARGE))))
    self_check(image, rewritten, plan, sframe(LARGE))
    header = parse_file_header(rewritten)
    sections = parse_section_headers(rewritten, header)
    names = sections[header.section_names_index]
    strings = bytes(rewritten[names.file_offset : names.file_offset + names.size])
    section = next(s for s in sections if strings[s.name_offset :].startswith(name.encode() + b"\0"))
    rewritten[section.file_offset + section.size // 2] ^= 0x40
    with pytest.raises(EmbedError):
        self_check(image, rewritten, plan, sframe(LARGE))


def test_self_check_notices_wrong_headers(image: bytearray) -> None:
    plan = plan_embedding(image, LARGE)
    good = b"".join(write_embedding(plan, sframe(LARGE)))
    noticed = 0
    header = parse_file_header(good)
    for number, segment in enumerate(parse_program_headers(good, header)):
        if segment.type not in (PT_LOAD, 0x6474E554):
            continue
        for field in (8, 16, 32):
            bad = bytearray(good)
            bad[header.program_headers_offset + 56 * number + field + 1] ^= 0x80
            with pytest.raises(EmbedError):
                self_check(image, bad, plan, sframe(LARGE))
            noticed += 1
    assert noticed >= 15
