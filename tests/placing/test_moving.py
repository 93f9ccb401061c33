# SPDX-License-Identifier: Apache-2.0
"""Notes of any owner move to make room for program headers, unless something in them depends on their place."""

import struct
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_NOTE
from cfi2sframe.elf.headers import ByteOrder
from cfi2sframe.elf.notes import may_be_elsewhere
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import plan_insertion
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.elf_asm import note
from tests.support.needs import attempt, need, run
from tests.support.oracle.tools import find_binutils
from tests.support.placing.embedded import LARGE, LINKERS, compiled, converted, embed, embedded, take_out
from tests.support.placing.linked_by_hand import noted_file, notes_of

IMAGE: Final = range(0x400000, 0x500000)
VADDR: Final = 0x400300


@pytest.mark.parametrize("order", ["<", ">"])
def test_addresses_relative_to_the_note(order: ByteOrder) -> None:
    """Crashpad's note: the distance of a variable from the descriptor."""
    at = VADDR + 12 + 12
    for is_address, targets in (
        (True, (IMAGE.start, IMAGE.stop - 1, at - 25, at + 8)),
        (False, (IMAGE.start - 1, IMAGE.stop, at, 0x2032303236)),
    ):
        for target in targets:
            content = note(b"Crashpad", 1, struct.pack(order + "q", target - at), order)
            assert may_be_elsewhere(content, order, 4, VADDR, IMAGE) is not is_address


def _noted(*notes: bytes) -> bytes:
    return noted_file(notes, names=[f".note.test.{number}" for number in range(len(notes))])


def test_unknown_names_move_and_return() -> None:
    data = _noted(*(note(b"Go\0", 1, bytes([65 + number]) * 40) for number in range(4)))
    plan, rewritten = embedded(data, LARGE)
    assert plan.moved
    assert take_out(rewritten) == data
    assert sum(s.file_size for s in load(rewritten).segments if s.type == PT_NOTE) == 4 * 56


def test_a_relative_address_stays() -> None:
    text = note(b"Go\0", 1, b"text" * 30)
    data = _noted(text)
    plan = plan_insertion(data, LARGE)
    assert plan.moved == [".note.test.0"]
    content = struct.pack("<q", plan.file.loads[1].vaddr - plan.file.sections[1].vaddr - 16)
    assert not plan_insertion(data.replace(text, text[:16] + content + text[24:]), LARGE).moved


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
    options: tuple[str, ...],
    tmp_path: Path,
    *,
    has_gone: bool,
    is_after_bss: bool,
) -> None:
    """It goes where nothing else gives room, as in static programs of GNU ld 2.44, unless it asks for a processor.

    Where that gives too little, as where code follows the build-id (`--rosegment`), the section goes after .bss.
    """
    need("gcc")
    (tmp_path / "main.c").write_text("int main(void) { return 42; }\n")
    program = tmp_path / "program"
    tools = f"-B{find_binutils('2.44').directory}/"
    run("gcc", "-static", tools, *options, "-o", program, tmp_path / "main.c")
    assert attempt(program).status == 42
    plan = embed(program, tmp_path / "converted", LARGE)
    assert ("the PT_NOTE that repeats PT_GNU_PROPERTY is gone" in plan.description) == has_gone
    assert ("on the page after .bss" in plan.description) == is_after_bss
    assert attempt(tmp_path / "converted").status == 42
    assert take_out((tmp_path / "converted").read_bytes()) == program.read_bytes()


@pytest.mark.oracle
@pytest.mark.parametrize("linker", LINKERS)
@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
@pytest.mark.parametrize("with_place", [False, True])
def test_a_program_finds_its_notes(linker: str, kind: str, *, with_place: bool, tmp_path: Path) -> None:
    """Where the note that may not move is in the way, there is no room."""
    need(f"ld.{linker}")
    program = compiled("notes.c", "-g", f"-fuse-ld={linker}", kind, *["-DPLACE"] * with_place)
    expected = attempt(program)
    assert sorted(expected.out.splitlines()) == ["0123456789" * 4, "42"][: 1 + with_place]
    try:
        plan = embed(program, tmp_path / "converted", LARGE)
    except EmbedError as error:
        if not with_place or "cannot grow" not in str(error):
            raise
        return
    assert ".note.test.place" not in plan.moved
    assert attempt(tmp_path / "converted") == expected
    assert take_out((tmp_path / "converted").read_bytes()) == program.read_bytes()
