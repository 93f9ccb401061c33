# SPDX-License-Identifier: Apache-2.0
"""Building programs, putting a section into them, running them, and asking them what is mapped."""

import struct
import tempfile
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.constants.elf import SHT_GNU_SFRAME
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.emit import check, check_removal, emit, remove
from cfi2sframe.placing.linked import check_insertion, insert, plan_insertion
from cfi2sframe.placing.place import Placement
from cfi2sframe.placing.undo import record_span
from tests.support.needs import attempt, need, run

SOURCES = Path(__file__).parent / "programs"
HEADER_SIZE = 28
#: Fits into the slack of most small programs, and never does.
SMALL, LARGE = 120, 200_000
LINKERS: Final = ("bfd", "gold", "lld", "mold")
KINDS: Final = {
    "pie": (),
    "nopie": ("-no-pie", "-fno-pie"),
    "static": ("-static", "-DNO_DLOPEN"),
    "static-pie": ("-static-pie", "-DNO_DLOPEN"),
}
VARIANTS: Final = {
    "plain": (),
    "noseparate": ("-Wl,-z,noseparate-code",),
    "hash-sysv": ("-Wl,--hash-style=sysv",),
    "hash-both": ("-Wl,--hash-style=both",),
    "stripped": ("-s",),
    "debug": ("-g",),
}


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


def embedded(data: bytes, size: int) -> tuple[Placement, bytes]:
    """Return how a section of `size` bytes goes into a linked file, and the file with it, which is checked."""
    plan = plan_insertion(data, size)
    rewritten = b"".join(insert(plan, sframe(size)))
    check_insertion(rewritten, plan, sframe(size))
    return plan, rewritten


def embed(source: Path, target: Path, size: int) -> Placement:
    """Put a section of `size` bytes into a copy, which is checked on the way."""
    plan, rewritten = embedded(source.read_bytes(), size)
    write(target, rewritten)
    return plan


def take_out(data: bytes) -> bytes:
    """Return a file without its section, which is checked on the way."""
    image = load(data)
    bare = b"".join(remove(image).content)
    check_removal(image, load(bare))
    return bare


def is_converted(path: str | Path) -> bool:
    """Whether a program of the machine has a section, since the whole system was converted."""
    return record_span(Path(path).read_bytes()) is not None


def as_linked(path: str | Path) -> bytes:
    """Return a program of the machine without the section that it has in a system that was converted."""
    data = Path(path).read_bytes()
    return take_out(data) if is_converted(path) else data


def without_record(data: bytes) -> bytes:
    """Return a converted file without its record for removal: nothing tells who made its section."""
    span = record_span(data)
    assert span is not None
    return data[: span.start]


def without_section_headers(data: bytes) -> bytes:
    """Return a linked file as `ld -z nosectionheader` writes it."""
    image = load(data)
    header = image.header._replace(section_headers_offset=0, section_header_count=0, section_names_index=0)
    return header.pack() + data[64 : max(segment.file_span.end for segment in image.segments)]


def emitted(conversion: Conversion, section_type: int = SHT_GNU_SFRAME) -> bytes:
    """Return a conversion's file with the section, which is checked against the CFI."""
    result = emit(conversion, section_type)
    rewritten = b"".join(result.chunks)
    check(result, load(rewritten))
    return rewritten


def converted(data: bytes, version: int = 3) -> bytes:
    """Return a file with the section that its CFI makes."""
    return emitted(convert(load(data), version=version))


def write(path: Path, data: bytes | bytearray) -> Path:
    """Write an executable file."""
    path.write_bytes(data)
    path.chmod(0o755)
    return path


def mapped(program: Path, *libraries: Path) -> list[tuple[str, int, str]]:
    """Name, size and checksum of each PT_GNU_SFRAME segment of a running program and libraries."""
    result = attempt(program, "--segments", *libraries)
    assert result.status == 0, result
    found = []
    for line in result.out.splitlines():
        words = line.split()
        # The machine's own libraries may have sections, too.
        if len(words) == 4 and words[0] in ("main", *(library.name for library in libraries)):
            assert words[3] in ("r--p", "r-xp", "rw-p"), line
            found.append((words[0], int(words[1]), words[2]))
    return found


def linked_program(linker: str = "bfd", kind: str = "pie", variant: str = "plain") -> Path:
    """Return program.cpp linked by one of `LINKERS` to one of `KINDS` in one of `VARIANTS`."""
    need(f"ld.{linker}")
    return compiled("program.cpp", f"-fuse-ld={linker}", *KINDS[kind], *VARIANTS[variant])


def compiled(source: str, *flags: str) -> Path:
    """Return a source of `programs` compiled, or skip where this compiler cannot link so. No test may change it."""
    built = _compiled(source, *flags)
    if isinstance(built, str):
        pytest.skip(built)
    return built


@cache
def _compiled(source: str, *flags: str) -> Path | str:
    compiler = "g++" if source.endswith("cpp") else "gcc"
    need(compiler)
    target = Path(_programs().name) / f"{_compiled.cache_info().currsize}-{source}"
    result = attempt(compiler, "-O1", "-o", target, SOURCES / source, "-Wl,--build-id=sha1", *flags)
    if result.status:
        return f"{compiler} does not link this way: {result.err.splitlines()[-1] if result.err else ''}"
    return target


@cache
def _programs() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="cfi2sframe-programs-")


def linked_of(folder: Path, source: str, *flags: str, compiler: str = "gcc") -> Path:
    """Return a C program that is compiled in a folder with these options."""
    (folder / "main.c").write_text(source)
    run(need(compiler), "-O1", "-o", folder / "program", folder / "main.c", *flags)
    return folder / "program"


def round_trip(original: Path, folder: Path, size: int, *runner: str | Path) -> Placement:
    """Put a section into a program, which runs as before; take it out again, which gives the same file."""
    plan = embed(original, folder / "converted", size)
    assert attempt(*runner, folder / "converted") == attempt(*runner, original)
    assert take_out((folder / "converted").read_bytes()) == original.read_bytes()
    return plan


def check_program(original: Path, folder: Path, size: int) -> Placement:
    """Take a program with the words of `program.cpp` there and back; the section is mapped in between."""
    plan = round_trip(original, folder, size)
    has_moved = "program headers moved" in plan.description
    assert any("do not strip the file again" in warning for warning in plan.warnings) == has_moved
    assert attempt(original).status == 0
    assert mapped(folder / "converted") == [("main", size, checksum(sframe(size)))]
    return plan
