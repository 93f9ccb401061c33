# SPDX-License-Identifier: Apache-2.0
"""Files that must not be rewritten are refused with a reason, and files that are only unusual are not."""

import struct
from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_LOAD, PT_NOTE, SHF_ALLOC
from cfi2sframe.elf.headers import parse_file_header, parse_program_headers
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import open_linked
from cfi2sframe.placing.linked import plan_insertion
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    LARGE,
    P_ALIGN,
    P_FILESZ,
    P_MEMSZ,
    P_PADDR,
    P_VADDR,
    SH_ADDR,
    SH_FLAGS,
    SH_NAME,
    SH_OFFSET,
    embedded,
    linked_program,
    section_header,
    segment_header,
    take_out,
    write,
)


def _refusal(data: bytes | bytearray) -> str:
    with pytest.raises(EmbedError) as caught:
        plan_insertion(data, LARGE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("number", "field", "value", "message"),
    [
        (0, P_MEMSZ, 0x3000, "the segments at 0x0 and 0x1000 overlap"),
        (0, P_MEMSZ, 1, "smaller in memory than in the file"),
        (0, P_ALIGN, 3, "is aligned to 3 bytes"),
        (0, P_ALIGN, 1 << 31, "is aligned to 2147483648 bytes"),
        (1, P_VADDR, 0x1001, "not congruent to its file offset"),
        (2, P_VADDR, 0, "not in address order"),
        (1, P_PADDR, 0x1000000, "kernel or firmware"),
        (1, P_FILESZ, 1 << 40, "extends past the end of the file"),
        (1, P_VADDR, 1 << 63, "in the upper half of the address space"),
    ],
)
def test_segments(number: int, field: int, value: int, message: str) -> None:
    data = bytearray(linked_program().read_bytes())
    indices = [i for i, segment in enumerate(load(bytes(data)).segments) if segment.type == PT_LOAD]
    # An address is in two fields.
    values = (value, value) if field == P_VADDR else (value,)
    struct.pack_into(f"<{len(values)}Q", data, 64 + 56 * indices[number] + field, *values)
    assert message in _refusal(data)


@pytest.mark.parametrize(
    ("name", "field", "code", "value", "message"),
    [
        (".text", SH_ADDR, "Q", 0x123450, "is in no segment: the section table does not fit the content"),
        (
            ".comment",
            SH_OFFSET,
            "Q",
            1 << 40,
            "extends past the end of the file: the section table does not fit the content",
        ),
        (".bss", SH_OFFSET, "Q", 1 << 63, "which no file can have"),
        (".comment", SH_OFFSET, "Q", 32, "the ELF header and section .comment overlap"),
        (".comment", SH_NAME, "I", 1 << 20, "a section name is outside the section name table"),
        (".comment", 48, "Q", 1 << 22, "is aligned to 4194304 bytes, which would need as much padding"),
    ],
)
def test_sections(name: str, field: int, code: str, value: int, message: str) -> None:
    data = bytearray(linked_program().read_bytes())
    struct.pack_into(f"<{code}", data, section_header(load(bytes(data)), name) + field, value)
    assert message in _refusal(data)


def test_an_allocated_section_that_nothing_loads() -> None:
    """It has no address, as objcopy adds it, and starts where the last segment ends in the file, or later."""
    data = bytearray(linked_program().read_bytes())
    image = load(bytes(data))
    comment, at = next(image.sections_named(".comment")), section_header(image, ".comment")
    end = max(segment.file_span.end for segment in image.loads)
    assert comment.file_offset == end
    for vaddr, start, is_mapped in ((0, end, True), (8, end, False), (0, end - 1, False)):
        struct.pack_into("<QQQ", data, at + SH_FLAGS, SHF_ALLOC, vaddr, start)
        if is_mapped:
            assert open_linked(bytes(data)).loaded_end == end + comment.size
        else:
            assert "section .comment is in no segment" in _refusal(data)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    data = linked_program().read_bytes()
    refusal = _refusal(data + b"PK\3\4 an archive")
    assert "appended after the ELF data" in refusal
    # convert and remove share it.
    assert "adding or removing a section" in refusal
    aligned = bytearray(data)
    struct.pack_into("<Q", aligned, segment_header(load(data), PT_NOTE) + P_ALIGN, 1 << 22)
    assert "a segment is aligned to 4194304 bytes" in _refusal(aligned)
    need("objcopy")
    assert (
        attempt("objcopy", "--only-keep-debug", linked_program("bfd", "pie", "debug"), tmp_path / "debug").status == 0
    )
    assert _refusal((tmp_path / "debug").read_bytes())


def test_without_section_headers(tmp_path: Path) -> None:
    """What follows the program headers is unknown: nothing moves, and the table goes to the end."""
    data = linked_program().read_bytes()
    header = parse_file_header(data)
    end = max(s.file_offset + s.file_size for s in parse_program_headers(data, header))
    bare = header._replace(section_headers_offset=0, section_header_count=0, section_names_index=0)
    stripped = bare.pack() + data[64:end]
    plan, rewritten = embedded(stripped, LARGE)
    assert "do not strip the file again" in plan.warnings[0]
    for changed in (rewritten, take_out(rewritten)):
        assert attempt(write(tmp_path / "changed", changed)) == attempt(linked_program())
