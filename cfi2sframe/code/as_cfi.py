# SPDX-License-Identifier: Apache-2.0
"""Rows derived from instructions as call frame information in the form of `.debug_frame`, for the same machinery."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.records import Derived, DerivedFunction, Underived
from cfi2sframe.dwarf.writer import (
    CODE_ALIGNMENT,
    DATA_ALIGNMENT,
    FDE_HEAD_SIZE,
    PC_BEGIN_OFFSET,
    cie,
    fde_head,
    row_instructions,
)
from cfi2sframe.elf.cfi import SOURCE_NAMES, CfiSection, Relocation
from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64, R_390_64, R_AARCH64_ABS64, R_X86_64_64
from cfi2sframe.elf.local_symbols import local_symbols

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.local_symbols import LocalSymbol

_ABSOLUTE: Final = {EM_X86_64: R_X86_64_64, EM_AARCH64: R_AARCH64_ABS64, EM_S390: R_390_64}
_WHAT: Final = "the rows from instructions"


def as_cfi(image: ElfImage, functions: tuple[DerivedFunction, ...]) -> CfiSection:
    """Return the CFI that says what was derived for these functions; in an object, all have to be `placeable`.

    Raises `BudgetError` when it is out of proportion to the file.
    """
    symbols = local_symbols(image) if image.is_relocatable else {}
    pieces: list[bytes] = []
    cie_offsets: dict[bool, int] = {}
    relocations: dict[int, Relocation] = {}
    position = 0
    for function in functions:
        if function.uses_b_key not in cie_offsets:
            cie_offsets[function.uses_b_key] = position
            pieces.append(_cie(image, uses_b_key=function.uses_b_key))
            position += len(pieces[-1])
        # A CIE with an augmentation announces the size of each FDE's augmentation data: none.
        instructions = b"\0" * function.uses_b_key + row_instructions(function.table, image.arch)
        size = FDE_HEAD_SIZE + len(instructions)
        image.budget.hold(size, _WHAT)
        start, end = function.start_vaddr, function.end_vaddr
        pieces.append(
            fde_head(image.byte_order, cie_offsets[function.uses_b_key], start, end - start, len(instructions))
        )
        pieces.append(instructions)
        symbol = _symbol_at(image, symbols, start)
        if symbol is not None:
            kind = _ABSOLUTE[image.arch.elf_machine]
            relocations[position + PC_BEGIN_OFFSET] = Relocation(kind, symbol.number, start - symbol.vaddr)
        position += size
    return CfiSection(
        SOURCE_NAMES["code"],
        "code",
        b"".join(pieces),
        vaddr=0,
        relocations=relocations,
        unresolved=frozenset(),
        table_vaddr=None,
    )


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


def _cie(image: ElfImage, *, uses_b_key: bool) -> bytes:
    return cie(
        image.arch,
        code_alignment=CODE_ALIGNMENT,
        data_alignment=DATA_ALIGNMENT,
        instructions=b"",
        is_signal_frame=False,
        uses_b_key=uses_b_key,
    )


def _start_of(item: Underived) -> int:
    return item.start_vaddr
