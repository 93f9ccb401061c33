# SPDX-License-Identifier: Apache-2.0
"""With another process, and without it, the same is read from any CFI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import assume, given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.arch import AMD64
from cfi2sframe.dwarf.ahead import read_later
from cfi2sframe.dwarf.entries import EntryWalk
from cfi2sframe.dwarf.machine import RowMachine
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.elf.cfi import find_cfi
from cfi2sframe.errors import CfiError
from cfi2sframe.interpret import _Loader
from cfi2sframe.lower import Target
from tests import cfi_asm as asm
from tests.property.test_pipeline import Drawn, files
from tests.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.machine import CfiProgram
    from cfi2sframe.elf.image import ElfImage

#: Few, so that they come again: with one another's CIE, without an advance, damaged, in need of a walk.
STRINGS: tuple[tuple[asm.Instruction, ...], ...] = (
    (),
    (asm.advance(1), asm.def_cfa_offset(16)),
    (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2), asm.advance(3), asm.def_cfa_register(6)),
    (asm.def_cfa_offset(24), asm.advance(2), asm.def_cfa_offset(8)),
    (asm.advance(0), asm.def_cfa_offset(32)),
    (asm.advance(2), asm.offset(3, 2), asm.advance(1), asm.offset(12, 3)),
    (asm.advance(1), asm.def_cfa_expression(b"\x77\x08")),
    (asm.advance(1), asm.restore_state()),
    (asm.Instruction(0x3F, ()),),
)
SIZES = (16, 16, 16, 16, 3, 0, 1 << 32)


def read(image: ElfImage, target: Target, *, with_another: bool) -> tuple[object, ...]:
    """Return all that can be known of an image's CFI, but for the numbers of programs: which FDEs have the same one."""
    loader = _Loader(image, target)
    for section in find_cfi(image):
        if with_another:
            loader.add_with_another(section, lambda: None)
        else:
            loader.add(section)
    entries = loader.entries()
    numbers: dict[int, int] = {}
    programs = [p._replace(number=numbers.setdefault(p.number, len(numbers))) for p in entries.programs]
    skipped = [p[1:] for p in loader.skipped if p.number in numbers]
    failures = [(f.failure.offset, str(f.failure.error), f.start_vaddr) for f in loader.failures]
    return (
        [entry.fde for entry in entries],
        [*entries.starts],
        [*entries.sizes],
        programs,
        sorted(skipped, key=repr),
        failures,
    )


@given(files())
def test_random_cfi(drawn: Drawn) -> None:
    target = Target(drawn.arch, drawn.options.version, drawn.options.errata)
    assert read(drawn.image, target, with_another=True) == read(drawn.image, target, with_another=False)


@st.composite
def repetitive_files(draw: st.DrawFn) -> bytes:
    """Draw a file of many functions with few strings; sometimes one that is huge, or an FDE without a CIE."""
    wide = cie_of(AMD64)._replace(fde_encoding=0x1C)
    cies = cie_of(AMD64), cie_of(AMD64, asm.offset(3, 4)), wide
    fdes: list[asm.Entry] = []
    for number in range(draw(st.integers(1, 30))):
        cie, string, size = draw(st.sampled_from(cies)), draw(st.sampled_from(STRINGS)), draw(st.sampled_from(SIZES))
        fdes.append(asm.Fde(cie, TEXT_VADDR + 16 * number, size if size < 1 << 32 or cie is wide else 16, string))
    if draw(st.integers(0, 4)) == 0:
        fdes.append(asm.Raw(b"\x08\0\0\0\x77\x77\x77\x77\0\0\0\0"))
    return linked_file(AMD64, fdes)


@given(repetitive_files())
def test_strings_that_recur(data: bytes) -> None:
    image, target = load(data, "drawn"), Target(AMD64)
    assert read(image, target, with_another=True) == read(image, target, with_another=False)


@given(repetitive_files(), st.floats(0, 1))
def test_what_the_other_process_does(data: bytes, share: float) -> None:
    """Strings are cut where they are first met, behind an offset, and lead to the rows that the machine finds."""
    image = load(data, "drawn")
    (section,) = find_cfi(image)
    walk = EntryWalk(section, PointerBases("<", section.table_vaddr, lambda _: None))
    fdes = {fields[0]: fields for fields in walk.fdes()}
    assume(not walk.failures)
    later = read_later(walk, int(len(section.data) * share))
    for first, first_of_cie, string in zip(later.first_fdes, later.first_fdes_of_cie, later.strings, strict=True):
        _, cie, _, _, instructions, _, _ = fdes[first]
        assert fdes[first_of_cie][1] == cie
        if string is not None:
            assert first >= len(section.data) * share - 1
            machine = RowMachine(AMD64)
            assert machine.run_cut(cie, string) == _rows_or_none(machine, cie, instructions)
    for offset, number in zip(later.offsets, later.programs, strict=True):
        same = fdes[later.first_fdes[number]]
        assert (fdes[offset][1], fdes[offset][4]) == (same[1], same[4])


def _rows_or_none(machine: RowMachine, cie: DwarfCie, instructions: bytes) -> CfiProgram | None:
    try:
        return machine.run(cie, instructions)
    except CfiError:
        return None
