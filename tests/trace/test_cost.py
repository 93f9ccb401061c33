# SPDX-License-Identifier: Apache-2.0
"""`trace` on cores that claim more than they hold: each run keeps to the bound, and reports what it left out."""

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.trace import Frame
from tests.support.process import BoundedRun, run_within_bound
from tests.support.sframe.raw_sframe import RawFunction
from tests.support.trace import recordings as r
from tests.support.trace.core_files import (
    BIAS,
    PAGE,
    TEXT_VADDR,
    CoreFile,
    Load,
    program,
    program_mappings,
    with_headers,
)
from tests.support.trace.stacks import STACK, raw_section, words_row

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

FRAME: Final = Frame(BIAS + TEXT_VADDR, STACK, 0)
#: One return address after the other: each word of a stack is a frame.
DEEP: Final = struct.pack("<Q", BIAS + TEXT_VADDR + 0x100)


def run(folder: Path, core: bytes, *words: str) -> BoundedRun:
    (folder / "core").write_bytes(core)
    return run_within_bound("trace", folder / "core", *words, input_size=len(core))


def core_of(folder: Path, frames: Iterable[Frame], stacks: Iterable[Load], frame_size: int) -> bytes:
    """Return a core of a program all of whose frames have the same size."""
    path = folder / "program"
    function = RawFunction(TEXT_VADDR, 0x10000, words_row("<", 0, (frame_size,)), 1)
    path.write_bytes(program(AMD64, raw_section(AMD64, 3, (function,))))
    return CoreFile(AMD64, tuple(enumerate(frames, 1)), tuple(stacks), program_mappings(str(path))).assemble()


def header(kind: int, offset: int, vaddr: int, size: int) -> bytes:
    return struct.pack("<IIQQQQQQ", kind, 6, offset, vaddr, 0, size, size, 4)


@pytest.mark.parametrize("form", ["text", "json"])
def test_threads_that_share_a_stack(tmp_path: Path, form: str) -> None:
    """Threads times frames: 100 of 4,000 each in 68 KB."""
    core = core_of(tmp_path, [FRAME] * 100, [Load(STACK, DEEP * 4000)], 8)
    assert run(tmp_path, core, "--format", form).is_answered()


def test_an_ordinary_deep_stack_is_whole(tmp_path: Path) -> None:
    """What bounds the threads above lets the deepest stack pass that memory can hold, in every one of some threads."""
    count, places = 20_000, [STACK + (n << 24) for n in range(4)]
    stacks = [Load(place, (DEEP + bytes(8)) * count) for place in places]
    done = run(tmp_path, core_of(tmp_path, [FRAME._replace(sp=place - 8) for place in places], stacks, 16))
    assert done.out.count("end: unreadable-memory") == 4
    assert done.out.count("\n#") > 4 * count


def test_memory_that_is_listed_again_and_again(tmp_path: Path) -> None:
    """600 times the same 64 KiB, and the same thread: nothing is copied."""
    core = CoreFile(AMD64, ((1, FRAME),), (Load(BIAS, program(AMD64, b"")[:PAGE]), Load(0, bytes(1 << 16)))).assemble()
    notes_size, offset = len(core) - (1 << 16) - PAGE - 64 - 56 * 3, len(core) - (1 << 16)
    loads = [header(c.PT_LOAD, offset, BIAS + (n << 16), 1 << 16) for n in range(600)]
    table = header(c.PT_NOTE, 64 + 56 * 3, 0, notes_size) * 600 + b"".join(loads)
    assert run(tmp_path, with_headers(core, "<", table)).is_answered(0)


def test_a_hole_of_terabytes(tmp_path: Path) -> None:
    """Notes and memory in holes of a sparse file: only stored bytes count as its size."""
    core = CoreFile(AMD64, ((1, FRAME),)).assemble()
    table = header(c.PT_NOTE, 64 + 56, 0, 1 << 40) + header(c.PT_LOAD, 1 << 41, STACK, 1 << 41)
    core = with_headers(core, "<", table)
    with open(tmp_path / "core", "wb") as file:
        file.write(core)
        try:
            os.ftruncate(file.fileno(), 1 << 42)
        except OSError:
            pytest.skip("the file system holds no file of 4 TiB")
    done = run_within_bound("trace", tmp_path / "core", input_size=len(core))
    assert done.is_answered()


def test_a_recording_that_unpacks_to_gigabytes(tmp_path: Path) -> None:
    """A few bytes of zstd for each 128 KiB of records, which no round ends."""
    zstandard = pytest.importorskip("zstandard")
    mapping = r.mapped(AMD64, 20, "/" + "x" * 4000)
    packed = zstandard.ZstdCompressor().compress(mapping * 120_000)
    pieces = [packed[at : at + 60_000] for at in range(0, len(packed), 60_000)]
    data = r.Recording(AMD64, tuple(r.record(AMD64, r.COMPRESSED, piece) for piece in pieces)).file()
    (tmp_path / "perf.data").write_bytes(data)
    assert run_within_bound("trace", tmp_path / "perf.data", input_size=len(data)).is_answered(3)


def test_processes_that_map_and_fork_again_and_again(tmp_path: Path) -> None:
    """Mappings times processes: a child shares its parent's list."""
    records = [r.mapped(AMD64, 20 + n, f"/{n}", start=n << 20, size=4096) for n in range(1500)]
    forks = [r.of_time(AMD64, r.FORK, struct.pack("<4IQ", 100 + n, 77, 100 + n, 77, 0), 5000 + n) for n in range(3000)]
    made = r.recorded(AMD64)
    samples = [r.sample(AMD64, 9000 + n, made.frame, pid=100 + n, tid=100 + n) for n in range(3000)]
    data = r.Recording(AMD64, (*records, *forks, *samples)).file()
    (tmp_path / "perf.data").write_bytes(data)
    done = run_within_bound("trace", tmp_path / "perf.data", input_size=len(data))
    assert done.is_answered(0), done
