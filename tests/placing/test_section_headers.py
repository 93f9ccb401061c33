# SPDX-License-Identifier: Apache-2.0
"""Section headers right after the program headers, as Go's linker writes them: they move, and leave room."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load, verify
from cfi2sframe.api import decode_existing
from tests.support.embedded import converted, take_out, write
from tests.support.needs import attempt, need

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
E_SHOFF = 40
TEXT_OFFSET = 0x1000


@pytest.mark.parametrize("filling", [b"\0", b"X", b"Z"])
def test_section_headers_move(tmp_path: Path, filling: bytes) -> None:
    """What no header describes between them and the code is free, whatever patchelf has filled it with."""
    need("x86_64-linux-gnu-gcc")
    (tmp_path / "start.s").write_text(SOURCE)
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
