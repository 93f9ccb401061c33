# SPDX-License-Identifier: Apache-2.0
"""Headers and bytes of any value, in time and memory: a clear error, or a right conversion."""

import struct
import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64, S390X
from cfi2sframe.cli.parsers import VERBS
from cfi2sframe.errors import Cfi2SFrameError, ElfError
from tests.fuzz import seeds, target_file, target_sframe
from tests.fuzz.harness import measured, timed
from tests.support import cli
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.elf_asm import header_of_section, patched
from tests.support.elf.samples import CODE, TEXT_VADDR, cie_of, object_file, push_fp

pytestmark = pytest.mark.fuzz

FILES: Final = {
    "amd64-object": seeds.small_object(AMD64),
    "s390x-object": seeds.small_object(S390X),
    "amd64-linked": seeds.linked_file(AMD64),
    "s390x-linked": seeds.linked_file(S390X),
    "amd64-no-sections": seeds.linked_file(AMD64, section_headers=False),
}
SECTIONS: Final = dict(seeds.sframe_sections())

# Headers that lie

E_PHOFF, E_SHOFF, E_PHNUM, E_SHNUM = 32, 40, 56, 60
#: The numbers of a header, as `struct` packs them.
FILE_HEADER, SEGMENT_HEADER, SECTION_HEADER = "HHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ"
LIES: Final = (0, 1, 3, 7, 56, 64, 0xFFFF, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 47, 1 << 63)


def field(data: bytes, offset: int, form: str) -> int:
    return int(struct.unpack_from("<" + form, data, offset)[0])


def fields_of(data: bytes, table: str) -> Iterator[tuple[int, str]]:
    """Yield where each number of some headers is, and its form."""
    forms, start, count = {
        "file": (FILE_HEADER, 16, 1),
        "segments": (SEGMENT_HEADER, field(data, E_PHOFF, "Q"), field(data, E_PHNUM, "H")),
        "sections": (SECTION_HEADER, field(data, E_SHOFF, "Q"), field(data, E_SHNUM, "H")),
    }[table]
    for number in range(count):
        for place, form in enumerate(forms):
            before = number * struct.calcsize("<" + forms) + struct.calcsize("<" + forms[:place])
            yield start + before, form


@pytest.mark.parametrize("is_whole", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("table", ["file", "segments", "sections"])
@pytest.mark.parametrize("name", ["amd64-linked", "amd64-object"])
def test_headers_that_lie(name: str, table: str, is_whole: bool) -> None:  # noqa: FBT001
    """Tables that overlap the header, one another and the end of the file; entries of other sizes."""
    data = FILES[name]
    for offset, form in fields_of(data, table):
        for value in ((1 << 64) - 1, *((*LIES, len(data), len(data) - 64) if is_whole or table == "file" else ())):
            timed(target_file.run, patched(data, offset, form, value))


def test_sections_that_share_their_bytes() -> None:
    """A thousand `.eh_frame` over the same bytes would be a thousand times the work."""
    frame = asm.Section(".eh_frame", bytes(4096), 1, 2)
    text = asm.Section(".text", bytes(16), 1, CODE)
    data = asm.elf_file(AMD64.elf_machine, (text, frame, frame._replace(data=b"")))
    header = header_of_section(data, 3)
    data = patched(patched(data, header + 24, "Q", 64), header + 32, "Q", 4096)
    with pytest.raises(ElfError, match=r"^<bytes>: \.eh_frame: 8192 bytes of such sections in a file of \d+ bytes$"):
        convert(load(data))


# Small changes

#: Values that a byte is replaced by, and masks that change it.
VALUES: Final = (0x00, 0xFF, 0x7F)
MASKS: Final = (0x01, 0x80, 0x10)


def changed(data: bytes) -> Iterator[bytes]:
    """Yield the data with each byte changed in each way."""
    for place, byte in enumerate(data):
        for value in {*VALUES, *(byte ^ mask for mask in MASKS)} - {byte}:
            yield data[:place] + bytes((value,)) + data[place + 1 :]


def cut(data: bytes) -> Iterator[bytes]:
    """Yield every beginning of the data."""
    return (data[:size] for size in range(len(data)))


def feed(inputs: Iterator[bytes], run: Callable[[bytes], None], step: int) -> None:
    """Run one input in so many: all of them take an hour."""
    for data in islice(inputs, 0, None, step):
        timed(run, data)


@pytest.mark.parametrize("name", FILES)
def test_files_of_which_a_byte_changes_or_all_after_it_is_missing(name: str) -> None:
    feed(cut(FILES[name]), target_file.run, 41)
    feed(changed(FILES[name]), target_file.run, 149)


@pytest.mark.parametrize("name", SECTIONS)
def test_sections_of_which_a_byte_changes_or_all_after_it_is_missing(name: str) -> None:
    feed(cut(SECTIONS[name]), target_sframe.run, 1)
    feed(changed(SECTIONS[name]), target_sframe.run, 3)


# Compressed sections


def compressed_file(method: int, size: int, packed: bytes) -> bytes:
    content = struct.pack("<IIQQ", method, 0, size, 1) + packed
    text = asm.Section(".text", b"", 8, CODE, TEXT_VADDR, nobits_size=64)
    frame = asm.Section(".debug_frame", content, 1, 0x800)
    return asm.elf_file(AMD64.elf_machine, (text, frame), file_type=3, segments=(asm.Segment(1, 5, (".text",)),))


@cache
def packed_zeros(*, is_zstd: bool) -> bytes:
    zeros = bytes(1 << 24)
    return bytes(pytest.importorskip("zstandard").compress(zeros)) if is_zstd else zlib.compress(zeros, 9)


@pytest.mark.parametrize("size", [0, 1, 1 << 22, 1 << 28, 1 << 40, (1 << 64) - 1])
@pytest.mark.parametrize("method", [0, 1, 2, 77])
def test_compressed_bombs(method: int, size: int) -> None:
    data = compressed_file(method, size, packed_zeros(is_zstd=method == 2))
    assert len(data) < 40_000
    cost = measured(target_file.run, data)
    assert size > 1 or cost.memory_size < 1 << 23, "no more is decompressed than the size that is claimed"
    with pytest.raises(Cfi2SFrameError):
        convert(load(data))


# Names

EVIL: Final = "\x1b]0;owned\x07\x1b[2J\nerror: \u202e\x9b31m"


@pytest.mark.parametrize("verb", sorted(VERBS.keys() - {"trace"}))
def test_names_are_escaped(verb: str, tmp_path: Path) -> None:
    """Symbols, sections and files with terminal escapes in their names reach no terminal."""
    fde = asm.Fde(cie_of(AMD64), 0, 32, (asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"),))
    section = ".text" + EVIL
    symbols = (asm.Symbol(EVIL, section=section),)
    path = tmp_path / ("a" + EVIL.replace("/", ""))
    path.write_bytes(object_file(AMD64, {section: (fde, push_fp(AMD64, 64))}, symbols=symbols))
    target = ["-o", str(tmp_path / "out")] if verb in ("convert", "remove") else []
    target += [f"{section}+1", EVIL] if verb == "lookup" else []
    result = cli.run(verb, *(["--would-be"] if verb == "verify" else []), str(path), *target)
    shown = "\n".join(result.err) + result.out.decode("utf-8", "backslashreplace")
    assert shown or verb in ("convert", "verify", "remove")
    assert not [c for c in shown if c in "\x1b\x07\x9b\u202e"]
    if verb in ("convert", "coverage", "lookup"):
        assert "\\x1b]0;owned" in shown, "the name is shown, escaped"
