# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions as one more source of CFI, for code that no CFI covers.

CFI is better than rows from instructions, so none are derived for an address that an FDE or a PLT stub holds, even if
that cannot be described; nor for padding. Only functions for which Go's table has no rule may get rows.
"""

from collections import Counter
from collections.abc import Callable, Container
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING

from cfi2sframe.constants.elf import SHT_SYMTAB, STT_SECTION, STT_TLS
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.owners import CodeMap, map_code
from cfi2sframe.conversion.sources import Cfi, UnreadSource, read_programs
from cfi2sframe.dwarf.fdes import FunctionTable, RowFunction
from cfi2sframe.elf.cfi import SOURCE_NAMES, Relocation
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.padding import code_outside
from cfi2sframe.errors import CfiError, ElfError, UnfitError
from cfi2sframe.range_map import Span, without
from cfi2sframe.why import Reason

if TYPE_CHECKING:
    from cfi2sframe.instructions.derive import Derived


def with_derived(image: ElfImage, cfi: Cfi, is_wanted: Callable[[Span], bool] | None = None) -> Cfi:
    """Return an image's CFI with rows from instructions, for the code that it does not cover, as its last source.

    `is_wanted` selects functions by their ranges; None takes all. If the code cannot be analysed, the source is
    unread, like any other; if there is no other, raises that `ElfError` or `CfiError`, or `UnfitError` when no rows
    follow. Raises `InputError` when capstone is needed and cannot be loaded.
    """
    try:
        derived = _derived(image, cfi, is_wanted)
    except (ElfError, CfiError) as error:
        if not cfi.sections:
            raise
        return cfi._replace(unread=(*cfi.unread, UnreadSource.of(SOURCE_NAMES["code"], error)))
    if not derived.sections:
        raise UnfitError(f"no call frame information, and no rows from instructions{_main_reason(derived)}")
    return derived


def _main_reason(cfi: Cfi) -> str:
    """Return why most of the code has no rows, for a message."""
    sizes = Counter[str]()
    for start, end, reason in cfi.underived or ():
        sizes[reason.value] += end - start
    return f": {sizes.most_common(1)[0][0]}" if sizes else ""


def _derived(image: ElfImage, cfi: Cfi, is_wanted: Callable[[Span], bool] | None) -> Cfi:
    """Return the CFI, with derived functions as one more source if there are any."""
    # The places of stubs do not depend on the version.
    code_map = map_code(image, cfi.entries, SFRAME_VERSION_3)
    # A call that a signal handler has faked does not leave SP where calls do.
    program = cfi.entries.program
    called = frozenset([fde for fde in cfi.entries.without_rules if not program(fde).cie.is_signal_frame])
    covered, without_rules = _functions(code_map, called)
    if next(code_outside(image, covered), None) is None:
        return cfi._replace(underived=())
    from cfi2sframe.instructions.derive import derive

    derived = placeable(image, derive(image, covered, without_rules))
    functions = derived.functions
    if is_wanted is not None:
        functions = tuple([f for f in functions if is_wanted(Span(f.start_vaddr, f.start_vaddr + f.size))])
    if not functions:
        return cfi._replace(underived=derived.left_out)
    made = read_programs(image, (as_cfi(image, functions),))
    return cfi.joined(made)._replace(underived=derived.left_out)


def as_cfi(image: ElfImage, functions: tuple[RowFunction, ...]) -> FunctionTable:
    """Return derived functions as a source of CFI. In an object, they come from `placeable`."""
    relocations: dict[int, Relocation] = {}
    if image.is_relocatable:
        symbols, kind = _local_symbols(image), image.arch.absolute_relocation
        for place, function in enumerate(functions):
            symbol, vaddr = symbols[image.place(function.start_vaddr).section_index]
            relocations[place] = Relocation(kind, symbol, function.start_vaddr - vaddr)
    return FunctionTable(SOURCE_NAMES["code"], "code", functions, relocations=relocations)


def placeable(image: ElfImage, derived: "Derived") -> "Derived":
    """Return derived functions: in an object, only those whose starts a relocation can express.

    A relocation needs a symbol that no other definition can replace: a local one of the function's section. GNU as
    leaves out the symbol of a section that nothing refers to.
    """
    if not image.is_relocatable:
        return derived
    from cfi2sframe.instructions.states import Underived

    symbols = _local_symbols(image)
    functions: list[RowFunction] = []
    left_out = list(derived.left_out)
    for function in derived.functions:
        start = function.start_vaddr
        if image.place(start).section_index in symbols:
            functions.append(function)
        else:
            left_out.append(Underived(start, start + function.size, Reason.NO_LOCAL_SYMBOL))
    return derived._replace(functions=tuple(functions), left_out=tuple(sorted(left_out, key=itemgetter(0))))


def _local_symbols(image: ElfImage) -> dict[int, tuple[int, int]]:
    """Return the number and the address of a local symbol for each section of an object that has one, by its index.

    The section's own symbol is preferred to others, which come in the table's order. Raises `ElfError` when the table
    leaves the file.
    """
    symbol_of: dict[int, tuple[int, int]] = {}
    own = set[int]()
    table = next((table for table in image.symbol_tables if table.type == SHT_SYMTAB), None)
    # The first symbols of a table are its local ones; sh_info has the index of the first of the others.
    for index, symbol in enumerate(islice(image.symbols(table), table.info) if table is not None else ()):
        if symbol.vaddr is None or symbol.type == STT_TLS or symbol.section_index in own:
            continue
        if symbol.type == STT_SECTION:
            own.add(symbol.section_index)
        if symbol.type == STT_SECTION or symbol.section_index not in symbol_of:
            symbol_of[symbol.section_index] = index, symbol.vaddr
    return symbol_of


def _functions(code_map: CodeMap, without_rules: Container[object]) -> tuple[list[Span], list[Span]]:
    """Return the ranges that FDEs and PLT stubs hold, and those of FDEs `without_rules`, which do not cover their code.

    Both ascend, each range by itself: a function may begin at each start.
    """
    held = [(Span(start, end), owner) for start, end, owner in code_map.owners if owner is not None]
    left_out = [(stub.start_vaddr, stub.start_vaddr + stub.size) for stub in code_map.stubs.left_out]
    covered = [span for span, owner in held if owner not in without_rules]
    covered += without(left_out, [span for span, _ in held])
    return sorted(covered), [span for span, owner in held if owner in without_rules]
