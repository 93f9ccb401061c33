# SPDX-License-Identifier: Apache-2.0
"""Rows derived from instructions as one more source of call frame information."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.dwarf.row_section import RowFunction, RowSection
from cfi2sframe.elf.cfi import SOURCE_NAMES, Relocation
from cfi2sframe.elf.local_symbols import local_symbols
from cfi2sframe.instructions.derive import Derived, DerivedFunction, Underived
from cfi2sframe.instructions.reasons import CodeReason

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.local_symbols import LocalSymbol


def as_cfi(image: ElfImage, functions: tuple[DerivedFunction, ...]) -> RowSection:
    """Return the CFI that says what was derived for these functions; in an object, all have to be `placeable`."""
    symbols = local_symbols(image) if image.is_relocatable else {}
    relocations: dict[int, Relocation] = {}
    for number, function in enumerate(functions):
        symbol = _symbol_at(image, symbols, function.start_vaddr)
        if symbol is not None:
            kind = image.arch.absolute_relocation
            relocations[number] = Relocation(kind, symbol.number, function.start_vaddr - symbol.vaddr)
    made = [
        RowFunction(f.start_vaddr, f.end_vaddr - f.start_vaddr, f.table, uses_b_key=f.uses_b_key) for f in functions
    ]
    return RowSection(SOURCE_NAMES["code"], "code", tuple(made), relocations=relocations)


def placeable(image: ElfImage, derived: Derived) -> Derived:
    """Return what was derived, in an object without the functions whose starts no relocation can give.

    A linker has to be told where a function is by a symbol that no other definition can replace: a local one of the
    function's section. GNU as leaves out the symbols of sections that nothing refers to.
    """
    if not image.is_relocatable:
        return derived
    symbols = local_symbols(image)
    lost = [function for function in derived.functions if _symbol_at(image, symbols, function.start_vaddr) is None]
    if not lost:
        return derived
    left_out = [Underived(f.start_vaddr, f.end_vaddr, CodeReason.NO_LOCAL_SYMBOL) for f in lost]
    return Derived(
        tuple([function for function in derived.functions if function not in lost]),
        tuple(sorted([*derived.left_out, *left_out], key=_start_of)),
    )


def _symbol_at(image: ElfImage, symbols: dict[int, LocalSymbol], vaddr: int) -> LocalSymbol | None:
    return symbols.get(image.place(vaddr).section_index) if image.is_relocatable else None


def _start_of(item: Underived) -> int:
    return item.start_vaddr
