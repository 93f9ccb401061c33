# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers: what follows them moves, or their segment grows; and what rights they have."""

import struct
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from cfi2sframe.constants.elf import PF_R, PF_X, PT_GNU_PROPERTY, PT_PHDR
from cfi2sframe.placing.linked import plan_insertion
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    LARGE,
    P_FILESZ,
    P_FLAGS,
    SMALL,
    converted,
    embed,
    linked_program,
    segment_header,
    take_out,
    write,
)


def test_the_segment_of_the_program_headers_grows_over_zeros(tmp_path: Path) -> None:
    """As of valgrind's tools, which have notes only after their program headers, and megabytes of .bss."""
    need("gcc")
    source, original, converted = tmp_path / "program.c", tmp_path / "original", tmp_path / "converted"
    code = 'static char zeroed[64 << 20];\nvoid _start(void) { __asm__("syscall" :: "a"(231), "D"(zeroed[9])); }\n'
    source.write_text(code)
    flags = ("-static", "-nostdlib", "-Wl,-z,separate-code", "-Wl,--build-id=sha1", "-s")
    assert attempt("gcc", *flags, "-o", original, source).status == 0
    assert not embed(original, converted, LARGE).warnings
    assert converted.stat().st_size < original.stat().st_size + LARGE + 2 * 4096
    assert (attempt(original).status, attempt(converted).status) == (0, 0)
    assert take_out(converted.read_bytes()) == original.read_bytes()


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_table_of_program_headers_is_not_executable(tmp_path: Path, size: int) -> None:
    """Older GNU ld wrote PT_PHDR with the rights of the code in its segment: cleared, and restored by removal."""
    data = bytearray(linked_program("bfd", "pie", "noseparate").read_bytes())
    at = segment_header(load(bytes(data)), PT_PHDR)
    struct.pack_into("<I", data, at + P_FLAGS, PF_R | PF_X)
    old, converted = write(tmp_path / "old", bytes(data)), tmp_path / "converted"
    embed(old, converted, size)
    assert [s.flags for s in load(str(converted)).segments if s.type == PT_PHDR] == [PF_R]
    assert attempt(converted) == attempt(old)
    assert take_out(converted.read_bytes()) == data


def test_what_was_never_mapped_is_asked_of_nobody(tmp_path: Path) -> None:
    """A program at fixed addresses has numbers that are addresses of the new segment, and of zeros before it."""
    old = write(tmp_path / "old", linked_program("bfd", "nopie", "noseparate").read_bytes())
    assert attempt("strip", old).status == 0
    data = bytearray(old.read_bytes())
    plan = plan_insertion(bytes(data), LARGE)
    (section,) = load(bytes(data)).sections_named(".data")
    struct.pack_into("<QQ", data, section.file_offset, plan.block.vaddr, plan.section_vaddr)
    assert embed(write(old, bytes(data)), tmp_path / "new", LARGE).section_vaddr == plan.section_vaddr
    assert take_out((tmp_path / "new").read_bytes()) == data


@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("sizes", [(0, 0), (56, 56), (1 << 12, 1 << 12), (56, 1 << 12)])
def test_the_wrong_size_of_a_table_of_program_headers_comes_back(
    tmp_path: Path, sizes: tuple[int, int], *, is_stripped: bool
) -> None:
    """LIEF leaves the size of PT_PHDR as it was, and no loader reads it. A stripped file's table moves to the end."""
    old, converted = write(tmp_path / "old", linked_program("bfd", "pie", "noseparate").read_bytes()), tmp_path / "new"
    if is_stripped:
        assert attempt("strip", old).status == 0
    data = bytearray(old.read_bytes())
    if is_stripped:
        # What is not known does not move, nor does what it covers.
        struct.pack_into("<I", data, segment_header(load(bytes(data)), PT_GNU_PROPERTY), 0x6ABCDEF0)
    struct.pack_into("<QQ", data, segment_header(load(bytes(data)), PT_PHDR) + P_FILESZ, *sizes)
    plan = embed(write(old, bytes(data)), converted, LARGE)
    assert ("the program headers moved" in plan.description) == is_stripped
    segments = load(str(converted)).segments
    assert [s.memory_size for s in segments if s.type == PT_PHDR] == [56 * len(segments)]
    assert attempt(converted) == attempt(old)
    assert take_out(converted.read_bytes()) == data


START = """\
.globl _start
_start:
  .cfi_startproc
  .cfi_undefined 16
  call work
  mov $60, %eax
  xor %edi, %edi
  syscall
  .cfi_endproc
work:
  .cfi_startproc
  push %rbx
  .cfi_def_cfa_offset 16
  .cfi_offset 3, -16
  pop %rbx
  .cfi_def_cfa_offset 8
  ret
  .cfi_endproc
"""


E_SHOFF = 40
TEXT_OFFSET = 0x1000


@pytest.mark.parametrize("filling", [b"\0", b"X", b"Z"])
def test_section_headers_move(tmp_path: Path, filling: bytes) -> None:
    """They follow the program headers, as Go's linker writes them: they move, and leave room.

    What no header describes between them and the code is free, whatever patchelf has filled it with.
    """
    need("x86_64-linux-gnu-gcc")
    (tmp_path / "start.s").write_text(START)
    flags = ["-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,-Ttext=0x401000"]
    result = attempt("x86_64-linux-gnu-gcc", *flags, "-o", tmp_path / "program", tmp_path / "start.s")
    assert result.status == 0, result.err
    # The segment with the headers is mapped to the end of the code, and the section headers end the file.
    data = bytearray((tmp_path / "program").read_bytes())
    header = load(bytes(data)).header
    headers = data[header.section_headers_offset :]
    start = 64 + 56 * header.program_header_count
    assert not any(data[start:TEXT_OFFSET])
    data[start:TEXT_OFFSET] = headers + filling * (TEXT_OFFSET - start - len(headers))
    struct.pack_into("<Q", data, E_SHOFF, start)
    original = bytes(data[: header.section_headers_offset])
    out = converted(original)
    assert (
        attempt(write(tmp_path / "program", original)).status == attempt(write(tmp_path / "converted", out)).status == 0
    )
    image = load(out)
    assert verify(image, decode_existing(image)).is_clean
    assert image.header.section_headers_offset >= len(original)
    assert image.header.program_header_count > header.program_header_count
    assert take_out(out) == original
