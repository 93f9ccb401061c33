# SPDX-License-Identifier: Apache-2.0
"""Section headers right after the program headers, as Go's linker writes them: they move, and leave room."""

from __future__ import annotations

import platform
import struct
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.api import decode_existing
from cfi2sframe.emit import check, emit, remove
from tests.support.embedded import run, write
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """\
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
E_PHOFF, E_SHOFF, E_PHNUM, E_SHNUM = 32, 40, 56, 60
PROGRAM_HEADER_SIZE, SECTION_HEADER_SIZE = 56, 64
TEXT_OFFSET = 0x1000


def number(data: bytes | bytearray, offset: int, form: str) -> int:
    value: int = struct.unpack_from(f"<{form}", data, offset)[0]
    return value


def table_end(data: bytes | bytearray) -> int:
    return number(data, E_PHOFF, "Q") + PROGRAM_HEADER_SIZE * number(data, E_PHNUM, "H")


@pytest.fixture
def like_go(tmp_path: Path) -> Path:
    """A program whose segment with the headers is mapped to its code, with the section headers in between."""
    if platform.machine() != "x86_64":
        pytest.skip("its source is AMD64's")
    need("cc")
    (tmp_path / "start.s").write_text(SOURCE)
    flags = ["-nostdlib", "-static", "-Wl,--build-id=none", "-Wl,-z,noseparate-code", "-Wl,-Ttext=0x401000"]
    result = run("cc", *flags, "-o", tmp_path / "plain", tmp_path / "start.s")
    assert result.status == 0, result.errors
    data = bytearray((tmp_path / "plain").read_bytes())
    start, size = number(data, E_SHOFF, "Q"), SECTION_HEADER_SIZE * number(data, E_SHNUM, "H")
    target = table_end(data)
    assert target + size < TEXT_OFFSET
    assert not any(data[target:TEXT_OFFSET])
    data[target : target + size] = data[start : start + size]
    struct.pack_into("<Q", data, E_SHOFF, target)
    write(tmp_path / "program", bytes(data[:start]))
    assert run(tmp_path / "program").status == 0
    return tmp_path / "program"


def test_section_headers_move(like_go: Path, tmp_path: Path) -> None:
    original = like_go.read_bytes()
    emitted = emit(convert(load(str(like_go))))
    target = tmp_path / "converted"
    write(target, b"".join(emitted.chunks))
    check(emitted, load(str(target)))
    assert run(target).status == 0
    image = load(str(target))
    assert verify(image, decode_existing(image)).is_clean
    data = target.read_bytes()
    assert number(data, E_SHOFF, "Q") >= len(original)
    assert data[TEXT_OFFSET : TEXT_OFFSET + 32] == original[TEXT_OFFSET : TEXT_OFFSET + 32]
    # What the old section headers leave is zeros, like any gap.
    assert number(data, E_PHNUM, "H") > number(original, E_PHNUM, "H")
    assert not any(data[table_end(data) : TEXT_OFFSET])


def test_removal_leaves_a_program(like_go: Path, tmp_path: Path) -> None:
    """The section headers stay where they went; the program headers are what they were."""
    original = like_go.read_bytes()
    write(tmp_path / "converted", b"".join(emit(convert(load(str(like_go)))).chunks))
    write(tmp_path / "removed", b"".join(remove(load(str(tmp_path / "converted")))))
    assert run(tmp_path / "removed").status == 0
    data = (tmp_path / "removed").read_bytes()
    assert data[64 : table_end(original)] == original[64 : table_end(original)]
    assert number(data, E_SHNUM, "H") == number(original, E_SHNUM, "H")


def test_undescribed_bytes_before_them_stay(like_go: Path) -> None:
    """Bytes between the program headers and them: the room is not free, and there is a page in front instead."""
    data = bytearray(like_go.read_bytes())
    start, size = number(data, E_SHOFF, "Q"), SECTION_HEADER_SIZE * number(data, E_SHNUM, "H")
    data[start + 16 : start + 16 + size] = data[start : start + size]
    data[start : start + 16] = b"\x01" * 16
    struct.pack_into("<Q", data, E_SHOFF, start + 16)
    write(like_go, bytes(data))
    emitted = emit(convert(load(str(like_go))))
    out = b"".join(emitted.chunks)
    check(emitted, load(out))
    page_size = TEXT_OFFSET
    assert out[page_size + start : page_size + start + 16] == b"\x01" * 16
    write(like_go, out)
    assert run(like_go).status == 0
    bare = b"".join(remove(load(out)))
    assert bare[64 : start + 16] == bytes(data[64 : start + 16])
    write(like_go, bare)
    assert run(like_go).status == 0
