# SPDX-License-Identifier: Apache-2.0
"""Building programs, putting a section into them, running them, and asking them what is mapped."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe.placing.linked import (
    EmbeddingPlan,
    check_removal,
    plan_embedding,
    self_check,
    write_embedding,
)
from cfi2sframe.placing.remove import remove_section
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCES = Path(__file__).parent / "programs"
HEADER_SIZE = 28
#: Fits into the slack of most small programs, and never does.
SMALL, LARGE = 120, 200_000


class Result(NamedTuple):
    """The result of a program: status and output."""

    status: int
    output: str
    errors: str


def run(*command: str | Path) -> Result:
    """Run a program, whatever its exit status."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr)


def sframe(size: int) -> bytes:
    """A section with the header of an empty version 3 section for AMD64, and a pattern as its rows."""
    header = struct.pack("<HBBBbbBIIIII", 0xDEE2, 3, 5, 3, 0, -8, 0, 0, 0, size - HEADER_SIZE, 0, 0)
    return header + bytes((at * 37 + at // 251 + 1) & 0xFF for at in range(size - HEADER_SIZE))


def checksum(data: bytes) -> str:
    """The 64-bit FNV-1a that program.cpp computes over mapped bytes."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def embed(source: Path, target: Path, size: int) -> EmbeddingPlan:
    """Put a section of `size` bytes into a copy, which is checked on the way."""
    data = source.read_bytes()
    plan = plan_embedding(data, size)
    section = sframe(size)
    rewritten = b"".join(write_embedding(plan, section))
    self_check(data, rewritten, plan, section)
    write(target, rewritten)
    return plan


def take_out(data: bytes) -> bytes:
    """Return the file without its section, which is checked on the way."""
    bare = b"".join(remove_section(data))
    check_removal(data, bare)
    return bare


def write(path: Path, data: bytes) -> None:
    """Write an executable file."""
    path.write_bytes(data)
    path.chmod(0o755)


def mapped(program: Path, *libraries: Path) -> list[tuple[str, int, str]]:
    """Name, size and checksum of each PT_GNU_SFRAME segment that the running program finds, which are read-only."""
    result = run(program, "--segments", *libraries)
    assert result.status == 0, result
    found = []
    for line in result.output.splitlines():
        words = line.split()
        if len(words) == 4 and words[3] in ("r--p", "r-xp", "rw-p", "none"):
            assert words[3] in ("r--p", "r-xp"), line
            found.append((words[0], int(words[1]), words[2]))
    return found


def compile_program(target: Path, source: str, flags: Sequence[str]) -> None:
    """Compile one of the sources here, or skip when this compiler cannot link that way."""
    built = _compiled(source, tuple(flags))
    if isinstance(built, str):
        pytest.skip(built)
    shutil.copy(built, target)


@cache
def _compiled(source: str, flags: tuple[str, ...]) -> Path | str:
    """Return the program that a source and flags make, or why there is none; compiled once in a run of the tests."""
    compiler = "g++" if source.endswith("cpp") else "gcc"
    need(compiler)
    number = _compiled.cache_info().currsize
    target = Path(_compiled_programs().name) / f"{number}-{source}"
    result = run(compiler, "-O1", "-o", target, SOURCES / source, "-Wl,--build-id=sha1", *flags)
    if result.status:
        return f"{compiler} does not link this way: {result.errors.splitlines()[-1] if result.errors else ''}"
    return target


@cache
def _compiled_programs() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cfi2sframe-programs-")
