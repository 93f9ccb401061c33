# SPDX-License-Identifier: Apache-2.0
"""Programs with an embedded section: they run as before, find it mapped, and are restored by removal."""

import struct
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from cfi2sframe.constants.elf import PF_R, PF_X, PT_LOAD, PT_PHDR
from cfi2sframe.placing import head
from cfi2sframe.placing.linked import plan_insertion
from cfi2sframe.placing.place import Placement
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    KINDS,
    LARGE,
    LINKERS,
    P_FLAGS,
    SMALL,
    VARIANTS,
    checksum,
    converted,
    embed,
    linked_program,
    mapped,
    segment_header,
    sframe,
    take_out,
    write,
)

#: Only the table of a stripped program may move to the end of the file, and most programs have a better way.
AT_END = "table at end"


def made(linker: str, kind: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program of a variant, or a stripped one of which nothing may move."""
    if variant == AT_END:
        monkeypatch.setattr(head, "movable_sections", lambda *_words: frozenset())
    return linked_program(linker, kind, "stripped" if variant == AT_END else variant)


def check_program(original: Path, folder: Path, size: int) -> Placement:
    """Put a section into a program, run that, and take the section out again."""
    converted = folder / "converted"
    plan = embed(original, converted, size)
    has_moved = "program headers moved" in plan.description
    assert any("strip must have run before" in warning for warning in plan.warnings) == has_moved
    assert attempt(original).status == 0
    assert attempt(converted) == attempt(original)
    assert mapped(converted) == [("main", size, checksum(sframe(size)))]
    restored = write(folder / "restored", take_out(converted.read_bytes()))
    assert mapped(restored) == []
    assert restored.read_bytes() == original.read_bytes()
    return plan


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("variant", [*VARIANTS, AT_END])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_runs_as_before_and_finds_the_section(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, linker: str, kind: str, variant: str, size: int
) -> None:
    original = made(linker, kind, variant, monkeypatch)
    plan = check_program(original, tmp_path, size)
    if kind == "static" and size == LARGE and linker == "gold" and variant not in ("stripped", AT_END):
        # Before they are stripped, these have room for one program header, and not for two.
        assert plan.description.startswith("into the last segment, on the page after .bss")
    assert plan.warnings or (linker, variant, size) != ("bfd", AT_END, LARGE)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_a_new_segment_begins_on_a_page(tmp_path: Path, linker: str, kind: str) -> None:
    """OpenJDK's reader of core dumps compares its size in pages with that of the mapping, where it is read-only."""
    original = linked_program(linker, kind, "stripped")
    embed(original, tmp_path / "converted", LARGE)
    before, after = (
        [s for s in load(str(p)).segments if s.type == PT_LOAD] for p in (original, tmp_path / "converted")
    )
    assert len(after) == len(before) + 1
    assert after[-1].file_offset % 4096 == after[-1].vaddr % 4096 == 0


def test_unused_bytes_rather_than_a_new_segment(tmp_path: Path) -> None:
    """What would move does not fit there too; without the PT_NOTE that repeats PT_GNU_PROPERTY, nothing moves."""
    original = linked_program()
    data = original.read_bytes()
    sizes = range(4096, 0, -32)
    size = next(size for size in sizes if "unused bytes" in plan_insertion(data, size).description)
    plan = check_program(original, tmp_path, size)
    assert not plan.moved
    assert "the PT_NOTE that repeats PT_GNU_PROPERTY is gone" in plan.description


SIZES = [(LARGE, SMALL), (LARGE, LARGE), (SMALL, LARGE), (LARGE, 2 * LARGE)]


@pytest.mark.parametrize(("first", "second"), SIZES)
@pytest.mark.parametrize(("kind", "variant"), [(kind, "stripped") for kind in KINDS] + [("pie", AT_END)])
def test_replacing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, variant: str, first: int, second: int
) -> None:
    original, replaced = made("bfd", kind, variant, monkeypatch), tmp_path / "replaced"
    embed(original, replaced, first)
    embed(replaced, replaced, second)
    assert attempt(replaced) == attempt(original)
    assert mapped(replaced) == [("main", second, checksum(sframe(second)))]
    embed(original, tmp_path / "direct", second)
    assert replaced.read_bytes() == (tmp_path / "direct").read_bytes()


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


def test_a_symbol_table_right_after_what_is_loaded(tmp_path: Path) -> None:
    """Sections move, so symbols change; and the new segment is inserted where the symbol table starts."""
    need("objcopy")
    bare, converted = tmp_path / "bare", tmp_path / "converted"
    assert attempt("objcopy", "-R", ".comment", linked_program(), bare).status == 0
    plan = embed(bare, converted, LARGE)
    assert plan.moved
    assert next(s for s in plan.file.sections if s.name == ".symtab").file_offset == plan.file.loaded_end
    assert attempt(converted).status == attempt(bare).status
    assert take_out(converted.read_bytes()) == bare.read_bytes()


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
