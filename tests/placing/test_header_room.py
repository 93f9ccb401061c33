# SPDX-License-Identifier: Apache-2.0
"""Room for more program headers: what follows them moves, or their segment grows; and what rights they have."""

import struct
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from cfi2sframe.constants.elf import PF_R, PF_X, PT_GNU_PROPERTY, PT_PHDR
from cfi2sframe.placing.linked import plan_insertion
from tests.support.elf.edit import File
from tests.support.needs import attempt, need, run
from tests.support.placing.embedded import (
    LARGE,
    SMALL,
    SOURCES,
    converted,
    linked_of,
    linked_program,
    round_trip,
    take_out,
    write,
)


def test_the_segment_of_the_program_headers_grows_over_zeros(tmp_path: Path) -> None:
    """As of valgrind's tools, which have notes only after their program headers, and megabytes of .bss."""
    code = 'static volatile char z[64 << 20];\nvoid _start(void) { __asm__("syscall" :: "a"(231), "D"(z[9])); }\n'
    original = linked_of(tmp_path, code, "-static", "-nostdlib", "-Wl,-z,separate-code", "-Wl,--build-id=sha1", "-s")
    assert not round_trip(original, tmp_path, LARGE).warnings
    assert (tmp_path / "converted").stat().st_size < original.stat().st_size + LARGE + 2 * 4096
    assert attempt(original).status == 0


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_table_of_program_headers_is_not_executable(tmp_path: Path, size: int) -> None:
    """Older GNU ld wrote PT_PHDR with the rights of the code in its segment: cleared, and restored by removal."""
    file = File(linked_program("bfd", "pie", "noseparate").read_bytes())
    file.segment(PT_PHDR).flags = PF_R | PF_X
    round_trip(write(tmp_path / "old", file), tmp_path, size)
    assert [s.flags for s in load(str(tmp_path / "converted")).segments if s.type == PT_PHDR] == [PF_R]


def test_what_was_never_mapped_is_asked_of_nobody(tmp_path: Path) -> None:
    """A program at fixed addresses has numbers that are addresses of the new segment, and of zeros before it."""
    old = write(tmp_path / "old", linked_program("bfd", "nopie", "noseparate").read_bytes())
    run("strip", old)
    file = File(old.read_bytes())
    plan = plan_insertion(bytes(file), LARGE)
    struct.pack_into("<QQ", file, file.section(".data").offset, plan.block.vaddr, plan.section_vaddr)
    assert round_trip(write(old, file), tmp_path, LARGE).section_vaddr == plan.section_vaddr


@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("sizes", [(0, 0), (56, 56), (1 << 12, 1 << 12), (56, 1 << 12)])
def test_the_wrong_size_of_a_table_of_program_headers_comes_back(
    tmp_path: Path, sizes: tuple[int, int], *, is_stripped: bool
) -> None:
    """LIEF leaves the size of PT_PHDR as it was, and no loader reads it. A stripped file's table moves to the end."""
    old = write(tmp_path / "old", linked_program("bfd", "pie", "noseparate").read_bytes())
    if is_stripped:
        run("strip", old)
    file = File(old.read_bytes())
    if is_stripped:
        # What is not known does not move, nor does what it covers.
        file.segment(PT_GNU_PROPERTY).type = 0x6ABCDEF0
    file.segment(PT_PHDR).set(filesz=sizes[0], memsz=sizes[1])
    plan = round_trip(write(old, file), tmp_path, LARGE)
    assert ("the program headers moved" in plan.description) == is_stripped
    segments = load(str(tmp_path / "converted")).segments
    assert [s.memory_size for s in segments if s.type == PT_PHDR] == [56 * len(segments)]


TEXT_OFFSET = 0x1000


@pytest.mark.parametrize("filling", [b"\0", b"X", b"Z"])
def test_section_headers_move(tmp_path: Path, filling: bytes) -> None:
    """They follow the program headers, as Go's linker writes them: they move, and leave room.

    What no header describes between them and the code is free, whatever patchelf has filled it with.
    """
    flags = ["-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,-Ttext=0x401000"]
    run(need("x86_64-linux-gnu-gcc"), *flags, "-o", tmp_path / "program", SOURCES / "start.s")
    # The segment with the headers is mapped to the end of the code, and the section headers end the file.
    data = File((tmp_path / "program").read_bytes())
    header = load(bytes(data)).header
    headers = data[header.section_headers_offset :]
    start = 64 + 56 * header.program_header_count
    assert not any(data[start:TEXT_OFFSET])
    data[start:TEXT_OFFSET] = headers + filling * (TEXT_OFFSET - start - len(headers))
    data.header.shoff = start
    original = bytes(data[: header.section_headers_offset])
    out = converted(original)
    for name, content in (("program", original), ("converted", out)):
        assert attempt(write(tmp_path / name, content)).status == 0
    image = load(out)
    assert verify(image, decode_existing(image)).is_clean
    assert image.header.section_headers_offset >= len(original)
    assert image.header.program_header_count > header.program_header_count
    assert take_out(out) == original
