# SPDX-License-Identifier: Apache-2.0
"""Sparse files of terabytes: holes are neither read nor written, and add nothing to the size of the input."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.elf.constants import ET_DYN, PT_LOAD
from cfi2sframe.elf.contents import FileBytes, Joined, OpenFile, extents_of, is_equal
from cfi2sframe.elf.headers import parse_file_header, parse_section_headers
from cfi2sframe.elf.load import read_file, stored_size
from tests.support import cfi_asm as asm
from tests.support.bounds import TOO_COSTLY, run_within_bound
from tests.support.jobs import object_of
from tests.support.samples import CODE, FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, push_fp

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.fuzz

SIZE = 4 << 40
BLOCK = 1 << 16


def library() -> bytes:
    """Return a library whose last section is a hole of terabytes, once the file has its size."""
    frame = asm.EhFrame((push_fp(AMD64, TEXT_VADDR), asm.Terminator()), FRAME_VADDR)
    data = bytearray(
        asm.elf_file(
            AMD64.elf_machine,
            (
                asm.Section(".eh_frame", frame.assemble(), 1, SHF_ALLOC, FRAME_VADDR, align=8),
                asm.Section(".text", bytes(0x100), 1, CODE, TEXT_VADDR, align=16),
                asm.Section(".hole", b"hole", 1),
            ),
            file_type=ET_DYN,
            segments=(asm.Segment(PT_LOAD, 4, (".eh_frame",), headers=True), asm.Segment(PT_LOAD, 5, (".text",))),
        )
    )
    header = parse_file_header(data)
    sections = parse_section_headers(data, header)
    index = next(index for index, section in enumerate(sections) if section.size == 4)
    section = sections[index]._replace(file_offset=len(data), size=SIZE // 2)
    at = header.section_headers_offset + 64 * index
    data[at : at + 64] = section.pack(header.byte_order)
    return bytes(data)


def sparse(path: Path, *pieces: tuple[int, bytes], size: int = SIZE) -> Path:
    """Make a file that is a hole but for these pieces."""
    try:
        with path.open("wb") as file:
            for start, data in pieces:
                file.seek(start)
                file.write(data)
            file.truncate(size)
    except OSError as error:
        pytest.skip(f"no such files here: {error}")
    if stored(path) >= size // 2:
        pytest.skip("this file system has no holes")
    return path


def stored(path: Path) -> int:
    return path.stat().st_blocks * 512


def opened(path: Path) -> FileBytes:
    descriptor = os.open(path, os.O_RDONLY)
    size = path.stat().st_size
    return FileBytes(OpenFile(descriptor, extents_of(descriptor, size)), 0, size)


@pytest.mark.parametrize("make", [library, lambda: object_of(3)], ids=["library", "object"])
def test_every_way_to_convert(tmp_path: Path, make: Callable[[], bytes]) -> None:
    path, out = sparse(tmp_path / "file", (0, make())), tmp_path / "out"
    given = stored(path)
    for words, status in (
        (("--check", path), 1),
        ((path, "--emit", "elf", "-o", out), 0),
        (("--in-place", path), 0),
        (("--check", path), 0),
        (("verify", path), 0),
        (("remove", "--in-place", path), 0),
        (("coverage", path), 0),
        # Output to a pipe is read into memory first: so many zeros are more than the file accounts for.
        ((path, "--emit", "elf", "-o", "-"), 3),
    ):
        run = run_within_bound(*words, input_size=given)
        assert (run.status, words) == (status, words), run.err
        # Output that cannot be written as a whole is not written in part.
        assert words[0] != path or not run.out
    for written in (path, out):
        assert SIZE <= written.stat().st_size < SIZE + (1 << 20)
        assert stored(written) < given + (1 << 16)


def test_section_headers_in_a_hole(tmp_path: Path) -> None:
    """There may be as many as the file is long."""
    table, count = 1 << 30, 1 << 34
    header = parse_file_header(object_of(0))._replace(section_headers_offset=table, section_header_count=0)
    # The size of the null section is their number, where they are too many for the header.
    path = sparse(tmp_path / "file", (0, header.pack()), (table, bytes(32) + count.to_bytes(8, "little")))
    run = run_within_bound("--check", path, input_size=stored(path))
    assert run.status == 3
    assert TOO_COSTLY in run.out


def test_holes_add_nothing_to_the_size(tmp_path: Path) -> None:
    path = sparse(tmp_path / "file", (0, object_of(3)))
    assert 0 < stored_size(read_file(str(path))) <= stored(path)
    whole = tmp_path / "whole"
    whole.write_bytes(object_of(3) + bytes(1 << 20))
    assert stored_size(read_file(str(whole))) == whole.stat().st_size


def test_ranges_of_a_sparse_file(tmp_path: Path) -> None:
    """Aligned to the unit of holes in this file system."""
    path = sparse(tmp_path / "file", (BLOCK, b"a" * BLOCK), (4 * BLOCK, b"b" * BLOCK), size=SIZE)
    whole = opened(path)
    wanted = [(BLOCK, 2 * BLOCK), (4 * BLOCK, 5 * BLOCK)]
    assert list(whole.data_ranges()) == wanted
    part = whole.part(BLOCK + 5, 4 * BLOCK + 7)
    assert list(part.data_ranges()) == [(0, BLOCK - 5), (3 * BLOCK - 5, 3 * BLOCK + 2)]
    assert list(whole.part(2 * BLOCK, 3 * BLOCK).data_ranges()) == []
    assert list(whole.part(5 * BLOCK, SIZE).data_ranges()) == []
    joined = Joined([b"xy", part, whole.part(5 * BLOCK, SIZE), b"z"])
    assert list(joined.data_ranges()) == [
        (0, 2),
        (2, BLOCK - 3),
        (3 * BLOCK - 3, 3 * BLOCK + 4),
        (len(joined) - 1, len(joined)),
    ]
    blocks = list(joined.data_blocks())
    assert [(start, len(block)) for start, block in blocks] == [
        (start, end - start) for start, end in joined.data_ranges()
    ]
    assert [bytes(block)[:1] for _, block in blocks] == [b"x", b"a", b"b", b"z"]


def test_comparing_sparse_files(tmp_path: Path) -> None:
    one = opened(sparse(tmp_path / "one", (BLOCK, b"a" * BLOCK)))
    same = opened(sparse(tmp_path / "same", (BLOCK, b"a" * BLOCK), (8 * BLOCK, bytes(BLOCK))))
    other = opened(sparse(tmp_path / "other", (BLOCK, b"a" * BLOCK), (8 * BLOCK, b"\1")))
    assert is_equal(one, one)
    assert is_equal(one, same)
    assert is_equal(same, one)
    assert not is_equal(one, other)
    assert not is_equal(other, one)
    assert not is_equal(one, one.part(0, SIZE - 1))
    assert is_equal(one.part(0, 3 * BLOCK), bytes(BLOCK) + b"a" * BLOCK + bytes(BLOCK))
    assert not is_equal(bytes(BLOCK) + b"a" * BLOCK + b"\1" * BLOCK, one.part(0, 3 * BLOCK))
    assert is_equal(b"", Joined([]))
