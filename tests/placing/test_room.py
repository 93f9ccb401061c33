# SPDX-License-Identifier: Apache-2.0
"""How much room there is: for the section, for program headers. Of each limit a case at it, and one past it."""

import struct
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import open_linked
from cfi2sframe.placing.header_room import slack_end
from cfi2sframe.placing.linked import plan_insertion
from cfi2sframe.placing.pyelftools_view import FileView
from cfi2sframe.range_map import Span
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import note
from tests.support.elf.samples import Code, linked_file, push_fp
from tests.support.needs import attempt, need, run
from tests.support.oracle.targets import TARGETS, Target, label
from tests.support.placing.embedded import LARGE, SMALL, SOURCES, embedded, linked_of, round_trip, take_out
from tests.support.placing.linked_by_hand import DATA_END, DATA_OFFSET, noted_file, sparse_file

BASE, PAGE, TEXT_OFFSET = 0x400000, 0x1000, 0x3000
#: The end of the first segment, in the file and from its address on.
FIRST_END: Final = 0x400


def _file(text_vaddr: int, text: bytes = b"\x90" * 32, file_type: int = c.ET_DYN) -> bytes:
    """Return a file whose first segment is followed by zeros up to `TEXT_OFFSET`, and then by code at an address.

    There are zeros before `.eh_frame`, too.
    """
    frame = asm.EhFrame((push_fp(AMD64, text_vaddr, 32), asm.Terminator()), BASE + 0x200).assemble()
    file = File(
        asm.elf_file(
            AMD64.elf_machine,
            (
                asm.Section(".eh_frame", frame.ljust(FIRST_END - 0x200, b"\1"), 1, c.SHF_ALLOC, BASE + 0x200, align=8),
                asm.Section(".pad", bytes(TEXT_OFFSET - FIRST_END)),
                asm.Section(".text", text, 1, c.SHF_ALLOC | c.SHF_EXECINSTR, BASE + TEXT_OFFSET),
            ),
            file_type=file_type,
            segments=(
                asm.Segment(c.PT_LOAD, c.PF_R, (".eh_frame",), headers=True),
                asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text",), align=0x40),
            ),
        )
    )
    file.section(".pad").type = 0
    file.segment(c.PT_LOAD, 1).set(vaddr=text_vaddr, paddr=text_vaddr)
    file.section(".text").addr = text_vaddr
    return bytes(file)


@pytest.mark.parametrize(
    ("text_vaddr", "end"),
    [
        (BASE + 0x440, FIRST_END),
        (BASE + PAGE - 0x40, FIRST_END),
        (BASE + PAGE, PAGE),
        (BASE + 2 * PAGE - 0x40, PAGE),
        (BASE + 2 * PAGE, 2 * PAGE),
        (BASE + TEXT_OFFSET, TEXT_OFFSET),
        (BASE + 16 * PAGE, TEXT_OFFSET),
    ],
)
def test_zeros_up_to_the_page_of_the_next_segment(text_vaddr: int, end: int) -> None:
    """Or up to what a header describes in the file. The section may have all of them but for the first word."""
    data = _file(text_vaddr)
    file = open_linked(data)
    assert slack_end(file, file.loads[0]) == end
    room = end - FIRST_END - 8
    for size in (room, room + 1):
        if size > 0:
            plan, rewritten = embedded(data, size)
            assert ("into unused bytes" in plan.description) == (size == room)
            assert take_out(rewritten) == data
            if size == room:
                assert plan.block.section_file_offset == FIRST_END + 8
                assert not any(rewritten[FIRST_END : FIRST_END + 8])


def test_other_bytes_than_zeros_end_the_room() -> None:
    data = bytearray(_file(BASE + TEXT_OFFSET))
    for at in (0x1000, FIRST_END):
        data[at] = 1
        file = open_linked(bytes(data))
        assert slack_end(file, file.loads[0]) == at


def test_zeros_after_the_section_headers_stay_if_they_are_of_a_section() -> None:
    comment = asm.Section(".comment", bytes(64))
    codes = (Code(size=0, data=b"\x90" * 64),)
    file = File(linked_file(AMD64, (push_fp(AMD64),), codes=codes, more=(comment,)))
    file.section(".comment").offset = len(file)
    file += bytes(64)
    _, rewritten = embedded(bytes(file), SMALL)
    assert File(rewritten).section(".comment").offset + 64 <= len(rewritten)
    assert take_out(rewritten) == bytes(file)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize(("lacking", "spare"), [(0, 0), (8, 0), (0, 1)])
def test_room_for_program_headers(size: int, lacking: int, spare: int) -> None:
    """The note moves away; what follows it stays. A section in unused bytes needs one program header, else two."""
    count = (1 if size == SMALL else 2) - spare
    # Up to the frames, the note and 8 bytes.
    content = bytes(max(56 * count - lacking - 24, 0))
    data = noted_file([note(b"GNU", 3, content)], names=[".note.gnu.build-id"], spare=spare)
    plan, rewritten = embedded(data, size)
    assert ("the program headers moved" in plan.description) == bool(lacking)
    assert plan.moved == ([".note.gnu.build-id"] if count and not lacking else [])
    told = "; .note.gnu.build-id moved to make room for program headers" in plan.description
    assert told == bool(plan.moved)
    assert take_out(rewritten) == data


SPARSE: Final = """\
static int cells[100];
__attribute__((noinline)) static int count(int at) { return cells[at]++; }
static void leave(long status)
{
#ifdef __x86_64__
  __asm__ volatile("syscall" :: "a"(231L), "D"(status));
#elif defined(__aarch64__)
  register long number __asm__("x8") = 94, first __asm__("x0") = status;
  __asm__ volatile("svc 0" :: "r"(number), "r"(first));
#else
  register long first __asm__("2") = status;
  __asm__ volatile("svc 248" :: "r"(first));
#endif
}
void _start(void)
{
  leave(count(3) + 42);
  for (;;);
}
"""


@pytest.mark.oracle
@pytest.mark.parametrize("flags", [(), ("-pie", "--no-dynamic-linker"), ("-z", "max-page-size=65536"), ("-s",)])
def test_a_first_segment_of_headers_only(flags: tuple[str, ...], tmp_path: Path) -> None:
    """As plain `ld` writes it: nothing is in the way, and zeros follow."""
    need("x86_64-linux-gnu-gcc")
    run("as", "-o", tmp_path / "a.o", SOURCES / "start.s")
    run("ld", *flags, "-o", tmp_path / "a", tmp_path / "a.o")
    _check_in_place(tmp_path / "a", tmp_path, 0)


@pytest.mark.oracle
@pytest.mark.parametrize("is_stripped", [False, True])
@pytest.mark.parametrize("build_id", ["none", "sha1"])
@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_a_first_segment_of_headers_only_of_other_machines(
    target: Target, build_id: str, tmp_path: Path, *, is_stripped: bool
) -> None:
    flags = ("-static", "-nostdlib", "-fasynchronous-unwind-tables", "-Wl,-z,separate-code", *["-s"] * is_stripped)
    program = linked_of(tmp_path, SPARSE, *flags, f"-Wl,--build-id={build_id}", compiler=target.compiler)
    _check_in_place(program, tmp_path, 42, target.emulator)


def _check_in_place(program: Path, folder: Path, status: int, *runner: str | Path) -> None:
    """The program headers stay where they are, and the section goes into unused bytes."""
    assert "into unused bytes" in round_trip(program, folder, SMALL, *runner).description
    assert load(str(folder / "converted")).header.program_headers_offset == 64
    assert attempt(*runner, program).status == status


def test_a_segment_that_ends_with_its_headers() -> None:
    """Where it has one byte more that no section describes, the section table does not tell what that is."""
    frame = asm.EhFrame((push_fp(AMD64, BASE + PAGE, 32), asm.Terminator()), BASE + 2 * PAGE).assemble()
    for more in (0, 8):
        file = File(
            asm.elf_file(
                AMD64.elf_machine,
                (
                    asm.Section(".text", b"\x90" * 32, 1, c.SHF_ALLOC | c.SHF_EXECINSTR, BASE + PAGE),
                    asm.Section(".eh_frame", frame, 1, c.SHF_ALLOC, BASE + 2 * PAGE, align=8),
                ),
                file_type=c.ET_DYN,
                segments=(
                    asm.Segment(c.PT_LOAD, c.PF_R, (".text",), headers=True),
                    asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text",)),
                    asm.Segment(c.PT_LOAD, c.PF_R, (".eh_frame",)),
                ),
            )
        )
        size = 64 + 3 * 56 + more
        file.segment(c.PT_LOAD).set(filesz=size, memsz=size)
        plan = plan_insertion(bytes(file), SMALL)
        assert ("the program headers moved" in plan.description) == bool(more)


#: Reads the entries of .eh_frame one after the other up to a length of 0, as libgcc does with registered frames.
LINEAR_READER: Final = """\
#include <string.h>
extern const unsigned char frames[] __attribute__((visibility("hidden")));
int main(void)
{
  const unsigned char *at = frames;
  for (int count = 0; count < 100; count++) {
    unsigned length;
    memcpy(&length, at, sizeof length);
    if (!length) return count;
    at += 4 + length;
  }
  return 255;
}
"""


@pytest.mark.oracle
def test_zeros_that_end_call_frame_information_stay(tmp_path: Path) -> None:
    """Without crtend.o, nothing but the zeros after it ends `.eh_frame`."""
    need("gcc")
    (tmp_path / "main.c").write_text(LINEAR_READER)
    (tmp_path / "frames.s").write_text('.section .eh_frame,"a",@unwind\n.globl frames\n.hidden frames\nframes:\n')
    start, first, last = (run("gcc", f"-print-file-name={name}").strip() for name in ("crt1.o", "crti.o", "crtn.o"))
    parts = (start, first, tmp_path / "frames.s", tmp_path / "main.c", last)
    run("gcc", "-O1", "-nostartfiles", "-Wl,-z,noseparate-code", "-o", tmp_path / "program", *parts)
    assert 0 < attempt(tmp_path / "program").status < 100
    assert "into unused bytes" in round_trip(tmp_path / "program", tmp_path, SMALL).description


LARGEST_PAGE, MOST_PADDING, MUCH_PADDING = 1 << 16, 1 << 24, 1 << 20
FAR: Final = BASE + (2 << 20) + DATA_OFFSET


@pytest.mark.parametrize("lacking", [0, 1])
def test_the_first_segment_grows_up_to_the_page_of_the_second(lacking: int) -> None:
    """The end of what is loaded is megabytes farther away than the file's, and the program headers have to move."""
    data = sparse_file(FAR, FAR + DATA_END - DATA_OFFSET)
    room = FAR - BASE - DATA_END - 3 * 56
    plan, rewritten = embedded(data, room + lacking)
    assert plan.description.startswith("into a new read-only segment" if lacking else "into the first segment")
    assert (plan.segments[0].end_vaddr == FAR) == (not lacking)
    assert take_out(rewritten) == data


@pytest.mark.parametrize("more", [0, 1])
def test_how_far_away_the_program_headers_may_be(more: int) -> None:
    """Up to a megabyte they go to a new segment, which more tools leave alone; more zeros in place of .bss are told."""
    vaddr = BASE + LARGEST_PAGE + DATA_OFFSET
    data = sparse_file(vaddr, BASE + DATA_END + MUCH_PADDING + more)
    plan, rewritten = embedded(data, SMALL)
    assert plan.description.startswith("into the first segment" if more else "into a new read-only segment")
    assert ("GNU strip its code" in plan.warnings[0]) == bool(more)
    assert take_out(rewritten) == data
    large = plan_insertion(data, LARGE)
    assert any("zeros are in the file" in warning for warning in large.warnings) == bool(more)


@pytest.mark.parametrize("more", [0, 1])
def test_the_most_zeros_in_place_of_bss(more: int) -> None:
    """Before program headers that moved; in a file with symbols, before the section."""
    vaddr, end = BASE + LARGEST_PAGE + DATA_OFFSET, BASE + DATA_END + MOST_PADDING + more
    data = sparse_file(vaddr, end)
    symbols = (asm.Symbol("_start", vaddr),)
    # From the data's end in the file on, zeros follow up to the page after the last address.
    other = sparse_file(vaddr, vaddr + DATA_END - DATA_OFFSET + MOST_PADDING + more, symbols, 16 + 32)
    for each, message in (
        (data, r"16,842,752 zeros, more than 16,777,216"),
        (other, "the program headers cannot grow"),
    ):
        if more:
            with pytest.raises(EmbedError, match=message):
                plan_insertion(each, LARGE)
            continue
        plan, rewritten = embedded(each, LARGE)
        assert any(warning.startswith("16,777,216 zeros are in the file") for warning in plan.warnings)
        assert take_out(rewritten) == each


def test_numbers_that_lead_to_unused_zeros_refer_to_nothing() -> None:
    """The table of program headers grows over them. Of a section's zeros nobody knows."""
    table_end = 64 + 56 * 2
    grown = Span(table_end, table_end + 56)
    data = _file(BASE + TEXT_OFFSET, struct.pack("<4Q", *(BASE + table_end,) * 4), c.ET_EXEC)
    assert FileView(data).outside_sections([grown]) == [grown]
    embedded(data, SMALL)
    file = File(data)
    place = {"addr": BASE + table_end, "offset": table_end, "size": 0x200 - table_end}
    file.section(".pad").set(type=c.SHT_PROGBITS, **place)
    assert FileView(file).outside_sections([grown]) == []
