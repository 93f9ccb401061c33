# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions become one more source of CFI, with the same rows."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.row_section import RowFunction
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState, UnwindTable, table_of_rows
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import Derived
from cfi2sframe.reasons import CodeReason, Underived
from cfi2sframe.uncovered import as_cfi, placeable
from tests.support import cfi_asm as asm
from tests.support.rules import at_cfa, at_expression, in_register, is_expression, register_offset, value_at_cfa
from tests.support.samples import CODE, SHT_NOBITS, TEXT_VADDR, linked

if TYPE_CHECKING:
    from collections.abc import Sequence

ARCHES = (AMD64, AARCH64_LE, AARCH64_BE, S390X)
OFFSETS = st.integers(-(1 << 31), 1 << 31)
#: What the analysis writes, and anything else: the bytes are not looked into.
EXPRESSIONS = st.sampled_from((b"\x76\x78\x06", b"\x73\x00\x23\x08\x06")) | st.binary(max_size=9)
REGISTERS = st.integers(0, 200)
#: None is that of the outermost function.
CFA_RULES = st.builds(register_offset, REGISTERS, OFFSETS) | EXPRESSIONS.map(is_expression) | st.none()
RULES: st.SearchStrategy[RegisterRule] = (
    st.sampled_from(NoRule)
    | OFFSETS.map(at_cfa)
    | OFFSETS.map(value_at_cfa)
    | REGISTERS.map(in_register)
    | EXPRESSIONS.map(at_expression)
    | EXPRESSIONS.map(is_expression)
)


@st.composite
def tables(draw: st.DrawFn, arch: Arch) -> UnwindTable:
    """Draw a table; starts are close together or far apart, and most rows change one thing."""
    signings = st.sampled_from((RaSigning.NONE, RaSigning.SIGNED) if arch.ra_may_be_signed else (RaSigning.NONE,))
    steps = draw(st.lists(st.integers(1, 70) | st.integers(1, 1 << 20), max_size=6))
    rows = []
    state = RowState(draw(CFA_RULES), draw(RULES), draw(RULES), draw(RULES), draw(signings))
    for start in accumulate(steps, initial=0):
        rows.append((start, state))
        changed = draw(st.sets(st.sampled_from(RowState._fields), min_size=1, max_size=2))
        state = RowState(
            draw(CFA_RULES) if "cfa" in changed else state.cfa,
            draw(RULES) if "ra" in changed else state.ra,
            draw(RULES) if "fp" in changed else state.fp,
            draw(RULES) if "sp" in changed else state.sp,
            draw(signings) if "signing" in changed else state.signing,
        )
    return table_of_rows(rows)


def read(image: ElfImage, functions: Sequence[RowFunction]) -> list[RowFunction]:
    """Return the functions of the CFI that is made of some, as the package's reader finds them."""
    cfi = read_programs(image, (as_cfi(image, tuple(functions)),))
    assert cfi.damaged == ()
    found = []
    for entry in cfi.entries:
        start = entry.fde.pc_begin_vaddr
        assert entry.fde.cie.ra_register == image.arch.ra_register
        key = entry.fde.cie.uses_b_key
        found.append(RowFunction(start, entry.fde.pc_range, entry.program.table, uses_b_key=key))
    return found


@pytest.mark.property
@given(st.data())
def test_every_table_reads_back(data: st.DataObject) -> None:
    arch = data.draw(st.sampled_from(ARCHES))
    functions: list[RowFunction] = []
    start = TEXT_VADDR
    for _ in range(data.draw(st.integers(1, 4))):
        table = data.draw(tables(arch))
        size = table.starts[-1] + data.draw(st.integers(1, 100))
        uses_b_key = data.draw(st.booleans()) if arch.ra_may_be_signed else False
        functions.append(RowFunction(start, size, table, uses_b_key=uses_b_key))
        start += size + data.draw(st.integers(0, 20))
    assert read(linked(arch, code_size=1 << 26), functions) == functions


PLAIN = RowState(register_offset(7, 8), at_cfa(-8), NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


def function(start: int, size: int, *, uses_b_key: bool = False) -> RowFunction:
    pushed = PLAIN._replace(cfa=register_offset(7, 16))
    table = UnwindTable((0, size // 2), (PLAIN, pushed))
    return RowFunction(TEXT_VADDR + start, size, table, uses_b_key=uses_b_key)


def test_equal_tables_are_one_program() -> None:
    image = linked(AMD64)
    first, second = function(0, 16), function(32, 16)
    assert first.table is not second.table
    cfi = read_programs(image, (as_cfi(image, (first, second)),))
    assert len(cfi.programs) == 1
    assert [entry.program.number for entry in cfi.entries] == [0, 0]


def object_with(*symbols: asm.Symbol) -> ElfImage:
    """Return an object with two sections of code."""
    sections = tuple(asm.Section(name, b"", SHT_NOBITS, CODE, align=16, nobits_size=64) for name in (".text", ".init"))
    return ElfImage(asm.elf_file(AMD64.elf_machine, sections, symbols=symbols), "in.o")


LOCAL, GLOBAL, SECTION, TLS = 0x02, 0x12, 0x03, 0x06


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ((asm.Symbol("s", info=SECTION),), ("s", 0)),
        ((asm.Symbol("label", 16, info=LOCAL),), ("label", -16)),
        # The section's own symbol is what linkers expect.
        ((asm.Symbol("label", 16, info=LOCAL), asm.Symbol("s", info=SECTION)), ("s", 0)),
        ((asm.Symbol("other", 8, info=LOCAL), asm.Symbol("label", 16, info=LOCAL)), ("other", -8)),
        ((asm.Symbol("tls", 8, info=TLS), asm.Symbol("label", 16, info=LOCAL)), ("label", -16)),
        # Another definition may take a global symbol's place.
        ((asm.Symbol("f", info=GLOBAL),), None),
        ((asm.Symbol("s", info=SECTION, section=".init"),), None),
        ((), None),
    ],
)
def test_starts_in_objects(symbols: tuple[asm.Symbol, ...], expected: tuple[str, int] | None) -> None:
    """A function's start is given by a local symbol of its section; without one, it cannot be described."""
    image = object_with(*symbols)
    text = next(image.sections_named(".text"), None) or image.sections[1]
    made = RowFunction(text.vaddr, 16, UnwindTable((0,), (PLAIN,)))
    other = Underived(text.vaddr + 16, text.vaddr + 64, CodeReason.NOT_REACHED)
    derived = placeable(image, Derived((made,), (other,)))
    if expected is None:
        lost = Underived(made.start_vaddr, made.start_vaddr + made.size, CodeReason.NO_LOCAL_SYMBOL)
        assert derived == Derived((), (lost, other))
        return
    assert derived == Derived((made,), (other,))
    section = as_cfi(image, derived.functions)
    cfi = read_programs(image, (section,))
    (entry,) = cfi.entries
    relocation = section.relocations[entry.fde.pc_offset]
    table = next(section for section in image.sections if section.name == ".symtab")
    names = [symbol.name for symbol in image.symbols(table)]
    assert (names[relocation.symbol_index], relocation.addend) == expected
