# SPDX-License-Identifier: Apache-2.0
"""Files with several sources of CFI: who holds an address, and what cannot be read."""

import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import account, load
from cfi2sframe.abi import AMD64, Arch
from cfi2sframe.api import convert, verify
from cfi2sframe.constants.elf import EM_X86_64
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.options import Options
from cfi2sframe.conversion.sources import UnreadSource, find_cfi
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import emit
from cfi2sframe.errors import CfiError, UnfitError
from cfi2sframe.jobs.conversion import refusal_of, warnings_of
from cfi2sframe.jobs.records import Conditions
from cfi2sframe.report.coverage import coverage_data
from cfi2sframe.report.coverage_report import coverage_report
from cfi2sframe.sframe.read import read_section
from cfi2sframe.why import Reason
from tests.support.conversion.sums import check_sums, convert_checked
from tests.support.conversion.variants import decode_made
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, TEXT_VADDR, Code, cie_of, debug_frame, linked_file
from tests.support.needs import need
from tests.support.placing.embedded import linked_of

CODE_SIZE = 0x100


def fde(arch: Arch, start: int, size: int, *instructions: asm.Instruction, of_eh_frame: bool = False) -> asm.Fde:
    return asm.Fde(cie_of(arch, augmentation="zR" if of_eh_frame else ""), TEXT_VADDR + start, size, instructions)


def both(arch: Arch, eh_frame: tuple[asm.Fde, ...], *sections: asm.Section) -> ElfImage:
    return load(linked_file(arch, eh_frame, codes=(Code(size=CODE_SIZE),), more=sections), "both")


def held(image: ElfImage) -> dict[int, int]:
    """Return the offset of the CFA from SP at each address of the code that has a row, as a reader finds it."""
    conversion = convert(image)
    lookup = read_section(conversion.data, conversion.section_vaddr)
    padding = {vaddr for start, end in conversion.padding for vaddr in range(start, end)}
    found = {}
    for delta in range(CODE_SIZE):
        at = None if TEXT_VADDR + delta in padding else lookup.find(TEXT_VADDR + delta)
        if at is not None and at.row is not None and at.row.state.cfa is not None:
            found[delta] = at.row.state.cfa.offset
    return found


def frame_of(arch: Arch, start: int, size: int, offset: int, *, of_eh_frame: bool = False) -> asm.Fde:
    return fde(arch, start, size, asm.def_cfa_offset(offset), of_eh_frame=of_eh_frame)


RANGES = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 40)), max_size=5)


@given(RANGES, RANGES)
def test_the_best_source_holds_every_address(best: list[tuple[int, int]], other: list[tuple[int, int]]) -> None:
    """The offset of each FDE's CFA is its number; within a source the FDE that starts last holds."""
    expected: dict[int, int] = {}
    number = 16
    groups: list[list[asm.Fde]] = [[], []]
    for source, ranges in ((1, other), (0, best)):
        mine: dict[int, tuple[int, int]] = {}
        for start, size in ranges:
            number += 8
            groups[source].append(frame_of(AMD64, start, size, number, of_eh_frame=source == 0))
            for delta in range(start, start + size):
                if start > mine.get(delta, (-1, 0))[0]:
                    mine[delta] = (start, number)
        expected |= {delta: offset for delta, (_, offset) in mine.items()}
    if not expected:
        return
    image = both(AMD64, tuple(groups[0]), debug_frame(AMD64, *groups[1]))
    assert held(image) == expected
    assert verify(convert(image)).is_clean
    conversion = convert_checked(image)
    for number, fate in enumerate(conversion.fates):
        assert fate is not Fate.BETTER_SOURCE or conversion.cfi.entries.rank_of(number) == 1


def test_counts_of_each_source() -> None:
    eh_frame = (frame_of(AMD64, 0, 16, 24, of_eh_frame=True), frame_of(AMD64, 32, 16, 32, of_eh_frame=True))
    unsayable = fde(AMD64, 80, 16, asm.def_cfa_expression(b"\x30"))
    image = both(
        AMD64,
        eh_frame,
        debug_frame(
            AMD64,
            frame_of(AMD64, 0, 16, 24),
            frame_of(AMD64, 24, 16, 40),
            frame_of(AMD64, 64, 16, 48),
            unsayable,
            fde(AMD64, 96, 8, asm.restore_state()),
        ),
    )
    conversion = convert_image(image, Options(level=1))
    coverage = check_sums(conversion)
    assert coverage.sources == {".eh_frame": 2, ".debug_frame": 2}
    assert coverage.dropped == {Fate.BETTER_SOURCE.value: 1}
    assert [(item.reason, item.source) for item in coverage.of_kind("left out")] == [
        (Reason.CFA_EXPRESSION.name, ".debug_frame")
    ]
    assert [item.source for item in coverage.of_kind("damaged")] == [".debug_frame"]
    assert "Functions from .eh_frame: 2, .debug_frame: 2." in coverage_report([coverage]).notes


def test_a_lesser_source_excuses_no_wrong_row() -> None:
    image = both(
        AMD64,
        (frame_of(AMD64, 0, 16, 24, of_eh_frame=True), frame_of(AMD64, 32, 32, 24, of_eh_frame=True)),
        debug_frame(AMD64, frame_of(AMD64, 0, 16, 32), frame_of(AMD64, 48, 32, 40)),
    )
    conversion = convert_image(image)
    wrong = decode_made(image, Options(source="debug_frame"))
    found = verify(conversion, wrong).differences
    assert [(d.kind, d.vaddr - TEXT_VADDR) for d in found] == [("wrong", 0), ("missing", 32), ("wrong", 48)]
    right = decode_made(image)
    assert verify(conversion, right).is_clean


def test_a_lesser_source_that_cannot_be_walked() -> None:
    sound = debug_frame(AMD64, frame_of(AMD64, 64, 16, 48))
    damaged = sound._replace(data=sound.data + b"\xf0\xff\0\0")
    image = both(AMD64, (frame_of(AMD64, 0, 16, 24, of_eh_frame=True),), damaged)
    conversion = convert_checked(image)
    assert len(conversion.cfi.entries) == len(conversion.cfi.programs) == 1
    reason = f"the entry's length of 65520 bytes exceeds the section at +0x{len(sound.data):x}"
    assert conversion.cfi.unread == (UnreadSource(".debug_frame", reason),)
    assert not conversion.is_whole
    coverage = account(conversion)
    assert warnings_of(coverage) == (f".debug_frame is not used: {reason}",)
    assert f".debug_frame is not used: {reason}." in coverage_report([coverage]).notes
    assert coverage_data(coverage)["unread"] == [{"name": ".debug_frame", "reason": reason}]
    refusal = refusal_of(conversion, coverage, Conditions(is_strict=True))
    assert refusal is not None
    assert refusal.reason == f"--strict: .debug_frame is not used: {reason}; nothing written"
    assert verify(convert(image)).is_clean
    with pytest.raises(CfiError, match="exceeds the section"):
        convert_image(image, Options(source="debug_frame"))
    with pytest.raises(CfiError, match="exceeds the section"):
        convert_image(load(asm.elf_file(EM_X86_64, (*text(), damaged)), "alone"))


def test_what_bolt_has_left_as_it_was() -> None:
    """Its note says that the code has moved since; `.eh_frame` has moved with it."""
    frame, note = debug_frame(AMD64, frame_of(AMD64, 64, 16, 48)), asm.Section(".note.bolt_info", bytes(16), 7)
    own = (frame_of(AMD64, 0, 16, 24, of_eh_frame=True),)
    assert sorted(held(both(AMD64, own, frame))) == [*range(16), *range(64, 80)]
    image = both(AMD64, own, frame, note)
    reason = "it describes the code as it was before BOLT (.note.bolt_info)"
    assert sorted(held(image)) == list(range(16))
    assert warnings_of(account(convert(image))) == (f".debug_frame is not used: {reason}",)
    with pytest.raises(UnfitError, match=re.escape(f".debug_frame: {reason}")):
        convert_image(image, Options(source="debug_frame"))
    alone = load(asm.elf_file(EM_X86_64, (*text(), frame, note)), "alone")
    with pytest.raises(UnfitError, match=re.escape(f".debug_frame: {reason}")):
        convert_image(alone)
    assert find_cfi(alone, "code") == ((), (UnreadSource(".debug_frame", reason),))
    # Without a section to be stale, the note is of no interest.
    assert convert_image(both(AMD64, own, note)).cfi.unread == ()


def text() -> tuple[asm.Section, ...]:
    return (asm.Section(".text", bytes(CODE_SIZE), 1, CODE, TEXT_VADDR),)


def test_free_pascal_has_wide_cie_pointers() -> None:
    """A 32-bit length, and a CIE pointer of 8 bytes: each FDE is damaged, and said to be so."""
    cie = debug_frame(AMD64, cie_of(AMD64, augmentation="")).data
    body = (0).to_bytes(8, "little") + TEXT_VADDR.to_bytes(8, "little") + (16).to_bytes(8, "little") + bytes(8)
    pascal = asm.Section(".debug_frame", cie + len(body).to_bytes(4, "little") + body)
    conversion = convert_checked(both(AMD64, (frame_of(AMD64, 32, 16, 24, of_eh_frame=True),), pascal))
    (damaged,) = account(conversion).of_kind("damaged")
    assert (damaged.section, damaged.address, damaged.message) == (
        ".debug_frame",
        len(cie),
        "its CIE pointer has 8 bytes, where a 32-bit length asks for 4",
    )
    assert not any(fate.is_dropped for fate in conversion.fates)


C_SOURCE = """
#include <stdio.h>
__attribute__((noinline)) int twice(int x) { printf("%d\\n", x); return 2 * x; }
int main(int argc, char **argv) { return twice(argc) & 1; }
"""


@pytest.mark.oracle
def test_gcc_without_asynchronous_tables(tmp_path: Path) -> None:
    """main() is in .debug_frame, the C library's start-up code in .eh_frame."""
    image = load(linked_of(tmp_path, C_SOURCE, "-g", "-fno-asynchronous-unwind-tables"))
    conversion = convert_checked(image, Options(level=1))
    names = image.names_of(conversion.section.starts)
    found = {names[start] for start in conversion.cfi.entries.starts if start in names}
    assert {"main", "twice"} <= found
    assert list(account(conversion).sources) == [".eh_frame", ".debug_frame"]
    assert verify(convert(image)).is_clean


@pytest.mark.oracle
def test_an_object_with_both(tmp_path: Path) -> None:
    """Its section has relocations from either source, and GNU ld links it."""
    source = ".cfi_sections {}\nf{}: .cfi_startproc\n nop\n push %rbp\n .cfi_def_cfa_offset 16\n nop\n .cfi_endproc\n"
    parts = [("e", ".eh_frame", 1), ("d", ".debug_frame", 2)]
    for name, section, number in parts:
        (tmp_path / f"{name}.s").write_text(source.format(section, number))
        subprocess.run([need("x86_64-linux-gnu-as"), "-o", f"{name}.o", f"{name}.s"], cwd=tmp_path, check=True)
    subprocess.run([need("x86_64-linux-gnu-ld"), "-r", "-o", "both.o", "e.o", "d.o"], cwd=tmp_path, check=True)
    image = load(str(tmp_path / "both.o"))
    conversion = convert_checked(image)
    assert account(conversion).sources == {".eh_frame": 1, ".debug_frame": 1}
    assert verify(convert(image)).is_clean
    assert emit(conversion).chunks
