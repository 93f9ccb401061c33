# SPDX-License-Identifier: Apache-2.0
"""`trace` on cores that claim more than they hold: each run keeps to the bound, and reports what it left out."""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.elf import constants as c
from cfi2sframe.trace.frame import Frame
from tests.support.bounds import run_within_bound
from tests.support.raw_sframe import RawFunction
from tests.support.trace.core_files import (
    BIAS,
    PAGE,
    TEXT_VADDR,
    CoreFile,
    Load,
    Mapped,
    note,
    program,
    program_mappings,
    status,
)
from tests.support.trace.stacks import STACK, raw_section, words_row
from tests.test_demangle import HOSTILE

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = pytest.mark.fuzz

FRAME: Final = Frame(BIAS + TEXT_VADDR, STACK, 0)
#: One return address after the other: each word of a stack is a frame.
DEEP: Final = struct.pack("<Q", BIAS + TEXT_VADDR + 0x100)
AREA: Final = 0x6000_0000_0000


def run(folder: Path, core: bytes, *words: str, files: int = 0) -> BoundedRun:
    """Trace a core; `files` are the bytes of the files that it names."""
    (folder / "core").write_bytes(core)
    return run_within_bound("trace", folder / "core", *words, input_size=len(core) + files)


def deep_core(folder: Path, thread_count: int, frame_count: int, symbol: str = "first") -> tuple[bytes, int]:
    """Return a core whose threads share a stack, and the size of its program, in which every word is a frame."""
    function = RawFunction(TEXT_VADDR, 0x10000, words_row("<", 0, (8,)), 1)
    path = folder / "program"
    path.write_bytes(program(AMD64, raw_section(AMD64, 3, (function,)), first=symbol))
    frames = tuple((n + 1, FRAME) for n in range(thread_count))
    core = CoreFile(AMD64, frames, (Load(STACK, DEEP * frame_count),), program_mappings(str(path)))
    return core.assemble(), path.stat().st_size


def with_headers(core: bytes, headers: list[tuple[int, int, int, int]]) -> bytes:
    """Return a core with these program headers (type, file offset, address, size) instead of its own."""
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, 6, offset, vaddr, 0, size, size, 4) for kind, offset, vaddr, size in headers
    )
    changed = bytearray(core + bytes(-len(core) % 8))
    struct.pack_into("<Q", changed, 32, len(changed))
    struct.pack_into("<H", changed, 56, len(headers))
    return bytes(changed + table)


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_threads_that_share_a_stack(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Threads times frames: 100 of 4,000 each in 68 KB."""
    core, _ = deep_core(tmp_path, 100, 4000)
    done = run(tmp_path, core, *words)
    assert done.status == 0
    assert "the frames take more work than" in done.out
    # The first threads are whole, and all are there.
    if not words:
        assert done.out.count("end: unreadable-memory") >= 2
        assert done.out.count("\nend: limit: after 1 frame: ") >= 90
        assert done.out.count("thread ") == 100


def test_an_ordinary_deep_stack_is_whole(tmp_path: Path) -> None:
    """What bounds the threads above lets the deepest stack pass that memory can hold, in every one of some threads."""
    count = 20_000
    stacks = tuple(Load(STACK + (n << 24), (DEEP + bytes(8)) * count) for n in range(4))
    function = RawFunction(TEXT_VADDR, 0x10000, words_row("<", 0, (16,)), 1)
    path = tmp_path / "program"
    path.write_bytes(program(AMD64, raw_section(AMD64, 3, (function,))))
    frames = tuple((n + 1, Frame(BIAS + TEXT_VADDR, STACK + (n << 24) - 8, 0)) for n in range(4))
    done = run(tmp_path, CoreFile(AMD64, frames, stacks, program_mappings(str(path))).assemble())
    assert done.out.count("end: unreadable-memory") == 4
    assert done.out.count("\n#") > 4 * count


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_a_long_name_in_every_frame(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A symbol of 30 KB in 8,000 frames."""
    core, size = deep_core(tmp_path, 1, 8000, "a" * 30_000)
    done = run(tmp_path, core, *words, files=size)
    assert "of 8,001 frames; the names in the frames take more memory than" in done.out


@pytest.mark.parametrize("name", ["substitutions", "conversions"])
def test_a_name_that_doubles(tmp_path: Path, name: str) -> None:
    core, _ = deep_core(tmp_path, 1, 10, HOSTILE[name])
    done = run(tmp_path, core)
    assert f" {HOSTILE[name]}+0x" in done.out


def test_notes_that_are_listed_again_and_again(tmp_path: Path) -> None:
    empty = struct.pack("<III", 0, 0, 1) * 2000
    notes = note("<", b"CORE", 1, status(AMD64, 1, FRAME)) + empty
    core = CoreFile(AMD64, ((1, FRAME),), (Load(0, notes),)).assemble()
    offset = core.index(notes)
    done = run(tmp_path, with_headers(core, [(c.PT_NOTE, offset, 0, len(notes))] * 1000))
    assert done.status == 3
    assert "its segments overlap" in done.err


def test_memory_that_is_listed_again_and_again(tmp_path: Path) -> None:
    """A program in memory of 200 MiB, in a core of 100 KB."""
    core = CoreFile(AMD64, ((1, FRAME),), (Load(BIAS, program(AMD64, b"")[:PAGE]), Load(0, bytes(1 << 16)))).assemble()
    notes_size, offset = len(core) - (1 << 16) - PAGE - 64 - 56 * 3, len(core) - (1 << 16)
    headers = [(c.PT_NOTE, 64 + 56 * 3, 0, notes_size)]
    headers += [(c.PT_LOAD, offset, BIAS + (n << 16), 1 << 16) for n in range(600)]
    done = run(tmp_path, with_headers(core, headers))
    assert done.status == 3
    assert "its segments overlap: they claim 39," in done.err


def test_programs_in_memory_that_share_their_bytes(tmp_path: Path) -> None:
    """500 program headers, each at a page of its own, and all of the same 64 KiB."""
    count, size = 500, 1 << 16
    pages = b"".join(elf_headers(BIAS + n * 0x200, [(AREA, size, c.PT_LOAD)]) for n in range(count))
    mapped = tuple(Mapped(BIAS + n * 0x200, BIAS + (n + 1) * 0x200, 0, f"/none/{n}") for n in range(count))
    frames = tuple((n + 1, FRAME._replace(pc=BIAS + n * 0x200)) for n in range(count))
    core = CoreFile(AMD64, frames, (Load(BIAS, pages), Load(AREA, eh_frame_like(size))), mapped)
    done = run(tmp_path, core.assemble())
    assert done.status == 0
    assert done.out.count("its bytes are not in memory, or too many") > count // 2


def elf_headers(address: int, segments: list[tuple[int, int, int]]) -> bytes:
    """Return 512 bytes of a program's headers in memory: a first page, and segments (address, size, type) elsewhere."""
    table = struct.pack("<IIQQQQQQ", c.PT_LOAD, 4, 0, address, 0, 0x200, 0x200, 8)
    table += b"".join(struct.pack("<IIQQQQQQ", kind, 5, 0x200, at, 0, size, size, 8) for at, size, kind in segments)
    head = b"\x7fELF\x02\x01\x01" + bytes(9)
    head += struct.pack(
        "<HHIQQQIHHHHHH", c.ET_DYN, AMD64.elf_machine, 1, 0, 64, 0, 0, 64, 56, len(table) // 56, 64, 0, 0
    )
    return (head + table).ljust(0x200, b"\0")


def eh_frame_like(size: int) -> bytes:
    """Return bytes that look like CFI worth reading."""
    return (struct.pack("<II", 16, 0) + b"\1zR\0\1\x78\x10\1\x1b".ljust(12, b"\0")) * (size // 20 + 1)


def test_headers_in_memory_that_are_read_again_and_again(tmp_path: Path) -> None:
    """A file that is mapped 20,000 times, always where 128 program headers lie, 100 of them of notes."""
    segments = [(BIAS, 0x10000, c.PT_NOTE)] * 100
    headers = elf_headers(BIAS, segments)
    table_end = 64 + 56 * (len(segments) + 1)
    page = headers[:table_end] + struct.pack("<III", 0, 0, 1) * 5000
    mapped = tuple(Mapped(BIAS, BIAS + n + 1, 0, "") for n in range(20_000))
    core = CoreFile(AMD64, ((1, FRAME._replace(pc=BIAS)),), (Load(BIAS, page.ljust(0x10000, b"\0")),), mapped)
    done = run(tmp_path, core.assemble())
    assert done.status == 0
    assert "end: " in done.out


@pytest.mark.parametrize("words", [(), ("--json",)], ids=["text", "json"])
def test_a_long_path_in_every_ending(tmp_path: Path, words: tuple[str, ...]) -> None:
    """A path of 400 KB, none of it printable, for which 1,000 threads end."""
    mapped = (Mapped(BIAS, BIAS + PAGE, 0, "/" + "\x1b" * 400_000),)
    frames = tuple((n + 1, FRAME._replace(pc=BIAS + n)) for n in range(1000))
    done = run(tmp_path, CoreFile(AMD64, frames, mapped=mapped).assemble(), *words)
    assert done.status == 0
    assert "unusable-module" in done.out
    assert "\x1b" not in done.out


def test_a_hole_of_terabytes(tmp_path: Path) -> None:
    """Notes and memory in holes of a sparse file: only stored bytes count as its size."""
    core = CoreFile(AMD64, ((1, FRAME),)).assemble()
    core = with_headers(core, [(c.PT_NOTE, 64 + 56, 0, 1 << 40), (c.PT_LOAD, 1 << 41, STACK, 1 << 41)])
    with open(tmp_path / "core", "wb") as file:
        file.write(core)
        try:
            os.ftruncate(file.fileno(), 1 << 42)
        except OSError:
            pytest.skip("the file system holds no file of 4 TiB")
    done = run_within_bound("trace", tmp_path / "core", input_size=len(core))
    assert done.status == 3
    assert "the notes of the core take more work than" in done.err


def test_symbol_tables_that_share_their_bytes(tmp_path: Path) -> None:
    """Section headers of 64 bytes, each of the same table of 60 KB."""
    data = bytearray(
        program(AMD64, raw_section(AMD64, 3, (RawFunction(TEXT_VADDR, 0x100, words_row("<", 0, (8,)), 1),)))
    )
    headers_offset, count = struct.unpack_from("<Q", data, 40)[0], struct.unpack_from("<H", data, 60)[0]
    headers = bytes(data[headers_offset : headers_offset + 64 * count])
    symbols = next(n for n in range(count) if struct.unpack_from("<I", headers, 64 * n + 4)[0] == c.SHT_SYMTAB)
    table = b"".join(struct.pack("<IBBHQQ", 1, 2, 0, 3, TEXT_VADDR + n, 1) for n in range(2500))
    header = bytearray(headers[64 * symbols : 64 * symbols + 64])
    struct.pack_into("<QQ", header, 24, len(data), len(table))
    data += table
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<H", data, 60, count + 800)
    data += headers + bytes(header) * 800
    (tmp_path / "program").write_bytes(data)
    core = CoreFile(AMD64, ((1, FRAME),), (Load(STACK, DEEP * 10),), program_mappings(str(tmp_path / "program")))
    done = run(tmp_path, core.assemble(), files=len(data))
    assert done.status == 0
    assert "first+0x0" in done.out
