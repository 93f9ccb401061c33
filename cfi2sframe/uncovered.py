# SPDX-License-Identifier: Apache-2.0
"""Code that no CFI covers: where it is, and what its instructions say of it as one more source of CFI.

What a file says of its code is better than what its instructions say: nothing is derived for an address that an FDE or
a PLT stub holds, whatever becomes of these. Nor is anything derived for padding.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from cfi2sframe.code_map import map_code
from cfi2sframe.dwarf.programs import Cfi, read_programs
from cfi2sframe.elf.cfi import SOURCE_NAMES
from cfi2sframe.elf.ranges import Span, united, without
from cfi2sframe.errors import CfiError, ElfError, UnfitError
from cfi2sframe.padding import code_outside
from cfi2sframe.reasons import UnreadSource
from cfi2sframe.sframe.constants import SFRAME_VERSION_3
from cfi2sframe.sources import FoundCfi

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.elf.image import ElfImage


def uncovered_code(image: ElfImage, code_map: CodeMap) -> list[Span]:
    """Return the code in the file that neither FDEs nor PLT stubs hold, nor the padding after them."""
    held = united((*_functions(code_map), *code_map.padding.ranges))
    return [gap for code, gap in code_outside(image, held) if image.code_bytes(code, gap.start, gap.start + 1)]


def with_derived(image: ElfImage, cfi: Cfi, is_wanted: Callable[[int], bool] | None = None) -> Cfi:
    """Return an image's CFI and, as its last source, what follows from the instructions of the code that it leaves.

    `is_wanted` tells by the address of a function whether to have it; None: all of them.

    Where that cannot be found out, the source is unread, as any other that cannot be read; without any other source,
    that is raised: `ElfError`, `CfiError`, or `UnfitError` when no rows follow. Raises `InputError` when
    there is code to be analysed and capstone cannot be loaded.
    """
    if not cfi.sections:
        found = _derived(image, cfi, is_wanted)
        if not found.sections:
            raise UnfitError(f"no call frame information, and no rows from instructions{_main_reason(found)}")
        return found
    try:
        return _derived(image, cfi, is_wanted)
    except (ElfError, CfiError) as error:
        return cfi._replace(unread=(*cfi.unread, UnreadSource.of(SOURCE_NAMES["code"], error)))


def _main_reason(cfi: Cfi) -> str:
    """Return why most of the code has no rows, for a message."""
    sizes = Counter[str]()
    for start, end, reason in cfi.underived or ():
        sizes[reason.value] += end - start
    return f": {sizes.most_common(1)[0][0]}" if sizes else ""


def _derived(image: ElfImage, cfi: Cfi, is_wanted: Callable[[int], bool] | None) -> Cfi:
    """Return the CFI with what is derived as one more source, if anything is."""
    derived = image.derived
    if derived is None:
        # Stubs are what they are, in whatever way the user wants them described.
        covered = _functions(map_code(image, cfi.entries, SFRAME_VERSION_3))
        if next(code_outside(image, covered), None) is None:
            return cfi._replace(underived=())
        from cfi2sframe.instructions.as_cfi import placeable
        from cfi2sframe.instructions.derive import derive

        derived = image.derived = placeable(image, derive(image, covered))
    functions = derived.functions
    if is_wanted is not None:
        functions = tuple([function for function in functions if is_wanted(function.start_vaddr)])
    if not functions:
        return cfi._replace(underived=derived.left_out)
    from cfi2sframe.instructions.as_cfi import as_cfi

    made = read_programs(image, FoundCfi((as_cfi(image, functions),)))
    return cfi.joined(made)._replace(underived=derived.left_out)


def _functions(code_map: CodeMap) -> list[Span]:
    """Return the ranges that FDEs and PLT stubs hold, ascending, each by itself: a function may begin at each start."""
    stubs = code_map.stubs
    held = list(map(Span, code_map.pieces.starts, code_map.pieces.ends))
    held += [Span(stub.start_vaddr, stub.start_vaddr + stub.size) for stub in stubs.functions]
    return sorted((*held, *without(((s.start_vaddr, s.start_vaddr + s.size) for s in stubs.left_out), held)))
