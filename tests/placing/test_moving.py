# SPDX-License-Identifier: Apache-2.0
"""Notes that tools define move to make room for program headers, unless something refers to them."""

from itertools import product
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_NOTE
from cfi2sframe.elf.headers import ByteOrder
from cfi2sframe.elf.notes import are_of_tools
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import plan_insertion
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import note
from tests.support.needs import attempt, need, run
from tests.support.oracle.targets import TARGETS, Target
from tests.support.oracle.tools import find_binutils
from tests.support.placing.embedded import (
    LARGE,
    LINKERS,
    compiled,
    converted,
    embed,
    embedded,
    linked_of,
    round_trip,
    take_out,
)
from tests.support.placing.linked_by_hand import noted_file, notes_of


@pytest.mark.parametrize("order", ["<", ">"])
def test_notes_of_known_owners(order: ByteOrder) -> None:
    """Of others, such as Crashpad, nobody knows who reads them; nor of bytes that are no whole note."""
    for owner, of_tools in ((b"GNU", True), (b"FDO", False), (b"Go\0", True), (b"Go", None), (b"Crashpad", None)):
        content = note(owner, 1, b"text", order)
        assert are_of_tools(content, order, 4) is of_tools
        assert are_of_tools(note(b"GNU", 1, b"", order) + content, order, 4) is of_tools
        assert are_of_tools(content[:-1], order, 4) is None


def _noted(*notes: bytes) -> bytes:
    return noted_file(notes, names=[f".note.test.{number}" for number in range(len(notes))])


def test_unknown_names_move_and_return() -> None:
    data = _noted(*(note(b"Go\0", 1, bytes([65 + number]) * 40) for number in range(4)))
    plan, rewritten = embedded(data, LARGE)
    assert plan.moved
    assert take_out(rewritten) == data
    assert sum(s.file_size for s in load(rewritten).segments if s.type == PT_NOTE) == 4 * 56


@pytest.mark.parametrize("name", [".note.test.0", ".note.gnu.build-id"])
def test_a_note_of_another_owner_stays(name: str) -> None:
    """Whatever its section is called."""
    text = note(b"GNU", 3, b"text" * 30)
    data = noted_file([text], names=[name])
    assert plan_insertion(data, LARGE).moved == [name]
    assert not plan_insertion(data.replace(text, note(b"Own", 3, b"text" * 30)), LARGE).moved


@pytest.mark.parametrize(("lacking", "moved"), [(0, [".note.gnu.build-id"]), (4, [])])
def test_a_note_of_which_a_segment_has_a_part_stays(lacking: int, moved: list[str]) -> None:
    file = File(noted_file([note(b"GNU", 3, b"text" * 30)], names=[".note.gnu.build-id"]))
    file.segment(PT_NOTE).add(filesz=-lacking, memsz=-lacking)
    assert plan_insertion(bytes(file), LARGE).moved == moved


@pytest.mark.parametrize("size", [1 << 12, (1 << 12) + 4])
def test_the_largest_section_of_notes_that_moves(size: int) -> None:
    data = _noted(note(b"GNU", 3, bytes(size - 16)))
    assert bool(plan_insertion(data, LARGE).moved) == (size == 1 << 12)


def _is_embedded(program: Path, target: Path, prefix: str) -> bool:
    """Whether there is room for a section, for which none moves whose name has a prefix."""
    try:
        plan = embed(program, target, LARGE)
    except EmbedError as error:
        if "cannot grow" not in str(error):
            raise
        return False
    assert not any(name.startswith(prefix) for name in plan.moved)
    return True


#: A program with a note of a defined owner, which it reads itself; no symbol of it is left in the file.
READER: Final = """\
#include <stdio.h>
struct note { int owner_size, size, type; char owner[4], content[16]; };
#ifdef __aarch64__
#define REST "//"
#else
#define REST "#"
#endif
__attribute__((section(".note.package,\\"a\\",%note" REST), used, aligned(4)))
static const struct note note = { 4, 16, 1, "FDO", "version 1.2.3" };
int main(void)
{
  const struct note *volatile at = &note;
  return printf("%s\\n", at->content) < 0;
}
"""


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("target", "flags"),
    [
        *((None, (flags,)) for flags in ("-static", "-fuse-ld=mold", "-s")),
        *((None, (*flags, "-s")) for flags in (("-static",), ("-static-pie",), ("-no-pie", "-fno-pie"))),
        *product(TARGETS, [("-static",), ("-static", "-s"), ("-s",)]),
    ],
)
def test_a_program_that_reads_its_own_note(target: Target | None, flags: tuple[str, ...], tmp_path: Path) -> None:
    """Code that the linker has resolved names it; static programs keep no relocation. A stripped one has room."""
    if "-fuse-ld=mold" in flags:
        need("ld.mold")
    program = linked_of(tmp_path, READER, *flags, compiler=target.compiler if target else "gcc")
    runner = (target.emulator, "-L", target.sysroot) if target else ()
    assert run(*runner, program) == "version 1.2.3\n"
    if _is_embedded(program, tmp_path / "converted", ".note.package"):
        assert run(*runner, tmp_path / "converted") == "version 1.2.3\n"
    else:
        assert "-s" not in flags


def test_sections_of_one_name_move() -> None:
    data = noted_file(notes_of(20))
    out = converted(data)
    old, new = ({s.vaddr for s in load(each).sections if s.name == ".note.package"} for each in (data, out))
    assert new - old
    assert take_out(out) == data


@pytest.mark.parametrize("kind", [0x03, 0x13], ids=["local", "global"])
def test_symbols_of_sections_in_the_way(kind: int) -> None:
    """Local ones move with their section, global ones keep it where it is; those of an address outside do neither."""

    def with_symbol(value: int) -> bytes:
        return noted_file(notes_of(6), symbols=(asm.Symbol("s", value, 0, kind, "n0"),))

    vaddr = load(with_symbol(0)).sections[1].vaddr
    for value in (vaddr, vaddr + 1, 0, (1 << 64) - 1):
        data = with_symbol(value)
        if kind == 0x13 and value - vaddr in (0, 1):
            with pytest.raises(EmbedError, match="cannot grow"):
                converted(data)
            continue
        out = load(converted(data))
        (symbol,) = (each for each in out.symbols(out.symbol_tables[0]) if each.name == "s")
        assert (symbol.vaddr != value) == (value - vaddr in (0, 1))
        assert take_out(bytes(out.data)) == data


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("options", "has_gone", "is_after_bss"),
    [((), True, False), (("-Wl,-z,x86-64-v2",), False, True), (("-Wl,--rosegment",), True, True)],
)
def test_a_note_that_repeats_the_properties(
    options: tuple[str, ...], tmp_path: Path, *, has_gone: bool, is_after_bss: bool
) -> None:
    """It goes where nothing else gives room, as in static programs of GNU ld 2.44, unless it asks for a processor.

    Where that gives too little, as where code follows the build-id (`--rosegment`), the section goes after .bss.
    """
    tools = f"-B{find_binutils('2.44').directory}/"
    program = linked_of(tmp_path, "int main(void) { return 42; }\n", "-static", tools, *options)
    assert attempt(program).status == 42
    plan = round_trip(program, tmp_path, LARGE)
    assert ("the PT_NOTE that repeats PT_GNU_PROPERTY is gone" in plan.description) == has_gone
    assert ("on the page after .bss" in plan.description) == is_after_bss


@pytest.mark.oracle
@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
@pytest.mark.parametrize("with_place", [False, True])
def test_a_program_finds_its_notes(linker: str, kind: str, *, with_place: bool, tmp_path: Path) -> None:
    """Where its own notes, which may not move, are in the way, there is no room."""
    need(f"ld.{linker}")
    program = compiled("notes.c", "-g", f"-fuse-ld={linker}", kind, *["-DPLACE"] * with_place)
    expected = attempt(program)
    assert sorted(expected.out.splitlines()) == ["0123456789" * 4, "42"][: 1 + with_place]
    if _is_embedded(program, tmp_path / "converted", ".note.test"):
        assert attempt(tmp_path / "converted") == expected
        assert take_out((tmp_path / "converted").read_bytes()) == program.read_bytes()
    else:
        assert linker in ("lld", "mold")
