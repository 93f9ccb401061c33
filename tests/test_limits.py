# SPDX-License-Identifier: Apache-2.0
"""What headers, counts and numbers may claim: a clear error or a right conversion, in time and memory."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, Any, Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.errors import Cfi2SFrameError, ElfError
from tests.fuzz import seeds, target_cfi, target_file
from tests.fuzz.harness import measured, timed
from tests.support import cfi_asm as asm
from tests.support import cli
from tests.support.elf_asm import patched
from tests.support.samples import CODE, TEXT_VADDR, Code, cie_of, linked_file, object_file, push_fp

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.fuzz

LINKED: Final = seeds.linked_file(AMD64)
OBJECT: Final = seeds.small_object(AMD64)
E_PHOFF, E_SHOFF, E_PHENTSIZE, E_PHNUM, E_SHENTSIZE, E_SHNUM, E_SHSTRNDX = 32, 40, 54, 56, 58, 60, 62
#: The fields of a section header (offset, form), and of a program header.
SECTION_FIELDS: Final = {
    "name": (0, "I"),
    "type": (4, "I"),
    "flags": (8, "Q"),
    "address": (16, "Q"),
    "offset": (24, "Q"),
    "size": (32, "Q"),
    "link": (40, "I"),
    "info": (44, "I"),
    "alignment": (48, "Q"),
    "entry size": (56, "Q"),
}
SEGMENT_FIELDS: Final = {
    "type": (0, "I"),
    "flags": (4, "I"),
    "offset": (8, "Q"),
    "address": (16, "Q"),
    "physical": (24, "Q"),
    "file size": (32, "Q"),
    "memory size": (40, "Q"),
    "alignment": (48, "Q"),
}
LIES: Final = (0, 1, 3, 7, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 47, 1 << 63, (1 << 64) - 1)


def field(data: bytes, offset: int, form: str) -> int:
    return int(struct.unpack_from("<" + form, data, offset)[0])


#: What the ordinary run tries; the second tier tries all.
SOME_LIES: Final = ((1 << 64) - 1,)
every_file = pytest.mark.parametrize("data", [LINKED, OBJECT], ids=["linked", "object"])
some_or_all = pytest.mark.parametrize(
    "lies", [SOME_LIES, pytest.param(LIES, marks=pytest.mark.slow)], ids=["some", "all"]
)


@some_or_all
@pytest.mark.parametrize("name", SECTION_FIELDS)
@every_file
def test_section_headers_that_lie(data: bytes, name: str, lies: tuple[int, ...]) -> None:
    place, form = SECTION_FIELDS[name]
    start = field(data, E_SHOFF, "Q")
    for index in range(field(data, E_SHNUM, "H")):
        header = start + 64 * index + place
        # In the second tier also the neighbour's value: sections that overlap or refer to themselves.
        before = field(data, start + 64 * max(0, index - 1) + place, form)
        for value in (*lies, *((index, before, start) if lies is LIES else ())):
            timed(target_file.run, patched(data, header, form, value))


@some_or_all
@pytest.mark.parametrize("name", SEGMENT_FIELDS)
def test_program_headers_that_lie(name: str, lies: tuple[int, ...]) -> None:
    place, form = SEGMENT_FIELDS[name]
    start = field(LINKED, E_PHOFF, "Q")
    for index in range(field(LINKED, E_PHNUM, "H")):
        for value in lies:
            timed(target_file.run, patched(LINKED, start + 56 * index + place, form, value))


@pytest.mark.parametrize("offset", [E_PHOFF, E_SHOFF, E_PHENTSIZE, E_PHNUM, E_SHENTSIZE, E_SHNUM, E_SHSTRNDX, 16, 18])
@every_file
@some_or_all
def test_file_headers_that_lie(data: bytes, offset: int, lies: tuple[int, ...]) -> None:
    """Tables that overlap the header, one another and the end of the file; entries of other sizes."""
    form = "Q" if offset in (E_PHOFF, E_SHOFF) else "H"
    for value in (*lies, 0, 1, 56, 64, len(data), len(data) - 1, len(data) - 64):
        timed(target_file.run, patched(data, offset, form, value))


# --- Time and memory that quantities must not cost ------------------------------------------------------------


def file_of(code: bytes, *, size: int = 1 << 32, cie: asm.Cie | None = None) -> bytes:
    fde = asm.Fde(cie or cie_of(AMD64), TEXT_VADDR, size - 1, (code,))
    return linked_file(AMD64, [fde], codes=(Code(size=size),))


def programs(part: int) -> dict[str, bytes]:
    """Return instructions of some sixteen thousand bytes divided by a number."""
    return {
        "advances": bytes([0x41]) * (15_000 // part),
        "advances by nothing": bytes([0x40]) * (15_000 // part),
        "large advances": b"\x04\xff\xff\xff\xff" * (3_000 // part),
        "the largest advances": (b"\x1d" + b"\xff" * 8) * (1_700 // part),
        "rows": b"\x41\x0e\x10\x41\x0e\x08" * (2_500 // part),
        "rows all different": b"".join(b"\x41\x0e" + asm.uleb128(8 * n) for n in range(3_000 // part)),
        "remembered states": b"\x0a" * (15_000 // part),
        "remembered and restored": b"\x0a" * (7_500 // part) + b"\x0b" * (7_500 // part),
        "remembered states, all different": b"".join(
            b"\x0a\x41\x0e" + asm.uleb128(8 * n) for n in range(2_200 // part)
        ),
        "restored without end": b"\x0b" * (15_000 // part),
        "nothing": bytes(15_000 // part),
        "padded numbers": (b"\x0e" + b"\x80" * 29 + b"\x00") * (500 // part),
        "a number of thousands of bytes": b"\x0e" + b"\x80" * (15_000 // part) + b"\x01",
        "a large expression": b"\x0f" + asm.uleb128(15_000 // part) + b"\x96" * (15_000 // part),
        "many expressions": b"\x41\x0f\x03\x77\x28\x06" * (2_500 // part),
        "an expression of constants": b"\x0f" + asm.uleb128(15_000 // part) + b"\x30" * (15_000 // part),
        "an expression larger than the entry": b"\x0f" + asm.uleb128(1 << 63) + b"\x96",
        "a large register": b"\x0c" + asm.uleb128((1 << 64) - 1) + asm.uleb128((1 << 64) - 1),
    }


#: The ordinary run takes a fifth of them; the second tier takes them whole.
every_program = pytest.mark.parametrize("name", programs(1))
some_or_whole = pytest.mark.parametrize("part", [5, pytest.param(1, marks=pytest.mark.slow)], ids=["some", "whole"])


@some_or_whole
@every_program
def test_large_programs(name: str, part: int) -> None:
    data = file_of(programs(part)[name])
    target_file.run(LINKED)
    measured(target_file.run, data)


@pytest.mark.parametrize("kind", [0x00, 0x10], ids=["eh_frame", "debug_frame"])
def test_entries_by_the_thousands(kind: int) -> None:
    cie = cie_of(AMD64)
    fdes = tuple(asm.Fde(cie, 0x401000 + 16 * number, 16, ()) for number in range(500))
    frame = asm.EhFrame(fdes, 0x400000, debug_frame=bool(kind)).assemble()
    measured(target_cfi.run, bytes([kind]) + frame)
    terminators = bytes(60_000)
    measured(target_cfi.run, bytes([kind]) + terminators)


@pytest.mark.slow
def test_cies_that_overlap() -> None:
    """FDEs that each name another CIE, each CIE as large as the section: read all, they would cost its square."""
    body = b"".join(struct.pack("<II", 40_000, 0) + b"\x01\0\x01\x78\x10" + bytes(3) for _ in range(1_000))
    hidden = struct.pack("<II", len(body) + 40_004, 0) + b"\x01\0\x01\x78\x10" + bytes(3) + body + bytes(39_996)
    fdes = b""
    for number in range(1_000):
        place = len(hidden) + len(fdes) + 4
        fdes += struct.pack("<IIQQ", 20, place - (16 + 16 * number), 0x401000, 4)
    measured(target_cfi.run, b"\0" + hidden + fdes)


def elf_with(count: int, **fields: Any) -> bytes:  # noqa: ANN401 - fields of a section header
    """Return an object with more section headers, all alike."""
    header_offset = field(OBJECT, E_SHOFF, "Q")
    old_count = field(OBJECT, E_SHNUM, "H")
    headers = OBJECT[header_offset : header_offset + 64 * old_count]
    values = {"name": 0, "type": 1, "flags": 2, "address": 0, "offset": 0, "size": 64, "link": 0, "info": 0}
    values |= {"alignment": 1, "entry size": 0, **fields}
    more = struct.pack("<IIQQQQIIQQ", *values.values()) * count
    data = patched(OBJECT + bytes(-len(OBJECT) % 8), E_SHOFF, "Q", len(OBJECT) + -len(OBJECT) % 8)
    return patched(data, E_SHNUM, "H", old_count + count) + headers + more


def names_of_object() -> dict[str, int]:
    sections = load(OBJECT).sections
    headers = field(OBJECT, E_SHOFF, "Q")
    return {s.name: field(OBJECT, headers + 64 * s.index, "I") for s in sections}


def test_sections_that_share_their_bytes() -> None:
    """A thousand `.eh_frame` over the same bytes would be a thousand times the work."""
    section = next(s for s in load(OBJECT).sections if s.name == ".eh_frame")
    name = names_of_object()[".eh_frame"]
    data = elf_with(300, name=name, type=1, flags=2, offset=section.file_offset, size=section.size)
    measured(target_file.run, data)
    with pytest.raises(ElfError, match=r"\.eh_frame: \d+ bytes of such sections in a file of \d+ bytes"):
        convert(load(data + b""))


def test_names_that_overlap() -> None:
    """Each symbol's name is the rest of a string table without an end."""
    strings = b"a" * 30_000
    symbols = b"".join(struct.pack("<IBBHQQ", n, 0x12, 0, 1, TEXT_VADDR, 1) for n in range(1_200))
    more = (
        asm.Section(".symtab", symbols, 2, link=4, entsize=24, align=8),
        asm.Section(".strtab", strings, 3),
    )
    # An expression keeps the function out, and so its name is asked for.
    fde = asm.Fde(cie_of(AMD64), TEXT_VADDR, 32, (asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"),))
    data = linked_file(AMD64, [fde], more=more)
    image = load(data)
    assert [s.name for s in image.sections][3:5] == [".symtab", ".strtab"]
    measured(target_file.run, data)


# --- Compressed sections ------------------------------------------------------------------------------------------


def compressed_file(method: int, size: int, packed: bytes) -> bytes:
    content = struct.pack("<IIQQ", method, 0, size, 1) + packed
    text = asm.Section(".text", b"", 8, CODE, TEXT_VADDR, nobits_size=64)
    frame = asm.Section(".debug_frame", content, 1, 0x800)
    return asm.elf_file(AMD64.elf_machine, (text, frame), file_type=3, segments=(asm.Segment(1, 5, (".text",)),))


@pytest.mark.parametrize("size", [0, 1, 1 << 22, 1 << 28, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("method", [0, 1, 2, 77])
def test_compressed_bombs(method: int, size: int) -> None:
    packed = zlib.compress(bytes(1 << 24), 9)
    if method == 2:
        packed = pytest.importorskip("zstandard").compress(bytes(1 << 24))
    data = compressed_file(method, size, packed)
    assert len(data) < 40_000
    cost = measured(target_file.run, data)
    assert size > 1 or cost.memory_size < 1 << 23, "no more is decompressed than the size that is claimed"
    with pytest.raises(Cfi2SFrameError):
        convert(load(data))


# --- Names ----------------------------------------------------------------------------------------------------------

EVIL: Final = "\x1b]0;owned\x07\x1b[2J\nerror: \u202e\x9b31m"


@pytest.mark.parametrize("verb", ["convert", "verify", "coverage", "dump", "remove", "size"])
def test_names_are_escaped(verb: str, tmp_path: Path) -> None:
    """Symbols, sections and files with terminal escapes in their names reach no terminal."""
    fde = asm.Fde(cie_of(AMD64), 0, 32, (asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"),))
    plain = push_fp(AMD64, 64)
    section = ".text" + EVIL
    file = object_file(AMD64, {section: (fde, plain)}, symbols=(asm.Symbol(EVIL, section=section),))
    path = tmp_path / ("a" + EVIL.replace("/", ""))
    path.write_bytes(file)
    target = ["-o", str(tmp_path / "out")] if verb in ("convert", "remove") else []
    result = cli.run(verb, *(["--would-be"] if verb == "verify" else []), str(path), *target)
    shown = "\n".join(result.err) + result.out.decode("utf-8", "backslashreplace")
    assert shown or verb in ("convert", "verify")
    assert not [c for c in shown if c in "\x1b\x07\x9b\u202e"]
    if verb in ("convert", "coverage"):
        assert "\\x1b]0;owned" in shown, "the name is shown, escaped"
