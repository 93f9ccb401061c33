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


@pytest.mark.parametrize("filling", [b"\0", b"X", b"Z"])
def test_section_headers_move(like_go: Path, tmp_path: Path, filling: bytes) -> None:
    """What no header describes between them and the code is free, whatever patchelf has filled it with."""
    original = bytearray(like_go.read_bytes())
    old_end = number(original, E_SHOFF, "Q") + SECTION_HEADER_SIZE * number(original, E_SHNUM, "H")
    original[old_end:TEXT_OFFSET] = filling * (TEXT_OFFSET - old_end)
    write(like_go, bytes(original))
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
    assert number(data, E_PHNUM, "H") > number(original, E_PHNUM, "H")
    assert b"".join(remove(image)) == original
