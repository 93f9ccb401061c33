# SPDX-License-Identifier: Apache-2.0
"""Code that no CFI covers: what of it is padding, and which functions the rest is, where symbols tell."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from heapq import nlargest
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.errors import ElfError
from cfi2sframe.padding import fill_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from cfi2sframe.code.code_reasons import CodeReason
    from cfi2sframe.elf.image import ElfImage, Symbol
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.elf.sections import CodeRange
    from cfi2sframe.plt.stub_reasons import StubReason
    from cfi2sframe.reasons import SkipReason
    from cfi2sframe.report.from_code import Underivable

#: How many stretches an account names at most.
NAMED_COUNT: Final = 1000


class WithoutCfi(NamedTuple):
    """A function, or code that no symbol names, which no CFI covers; padding is no part of it.

    `demangled` is the name in readable form. `address` is absolute; in an object, it is an offset in `section`. `size`
    counts bytes. `reason` says why no rows follow from the instructions of most of it, where somebody asked for these.
    """

    name: str
    demangled: str
    section: str
    address: int
    size: int
    reason: CodeReason | SkipReason | StubReason | None = None
    detail: str = ""


class UncoveredCode(NamedTuple):
    """A range of code without CFI; `name` is that of the function, empty where no symbol names it."""

    start_vaddr: int
    end_vaddr: int
    name: str
    section: str


class FunctionSymbols(NamedTuple):
    """Functions by address, as ascending columns. A size of 0 is one that the symbol table does not tell."""

    starts: Sequence[int] = ()
    sizes: Sequence[int] = ()
    names: Sequence[str] = ()


class _Within:
    """Whether an address lies in one of some ascending spans."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts = [span.start for span in spans]
        self._ends = [span.end for span in spans]

    def __contains__(self, vaddr: object) -> bool:
        if not isinstance(vaddr, int):
            return False
        index = bisect_right(self._starts, vaddr) - 1
        return index >= 0 and vaddr < self._ends[index]


def symbols_within(image: ElfImage, spans: Sequence[Span]) -> FunctionSymbols:
    """Return the functions that start in any of some ascending spans.

    They are symbols of functions, and labels that have a size, as some assembly's functions do. Of several at one
    address, a function is preferred, then a symbol with a size, then one of .symtab, then the first. A damaged table
    has none.
    """
    within = _Within(spans)
    best: dict[int, tuple[int, Symbol]] = {}
    for table in image.symbol_tables if spans else ():
        try:
            # In a linked file st_value is the address, so that most entries can be skipped unread.
            for symbol in image.symbols(table, None if image.is_relocatable else within):
                rank = _rank(symbol)
                if rank is None or symbol.vaddr is None or symbol.vaddr not in within:
                    continue
                if symbol.vaddr not in best or rank < best[symbol.vaddr][0]:
                    best[symbol.vaddr] = (rank, symbol)
        except ElfError:
            continue
    starts = sorted(best)
    symbols = [best[start][1] for start in starts]
    return FunctionSymbols(starts, [symbol.size for symbol in symbols], [symbol.name for symbol in symbols])


def _rank(symbol: Symbol) -> int | None:
    """Return 0 for the best of names, None for what names no function."""
    if symbol.type in (STT_FUNC, STT_GNU_IFUNC):
        return 0 if symbol.size else 1
    return 2 if symbol.type == STT_NOTYPE and symbol.size else None


def stretches_of(image: ElfImage, code: CodeRange, gap: Span, symbols: FunctionSymbols) -> Iterator[UncoveredCode]:
    """Yield the code in a gap of a code range between what CFI covers: all but the padding.

    Padding begins where the code before it ends: at the start of the gap, and where a function ends whose size is
    known.
    """
    vaddr = gap.start
    first, last = (bisect_left(symbols.starts, edge) for edge in gap)
    for index in range(first, last):
        start, size = symbols.starts[index], symbols.sizes[index]
        if start < vaddr:
            # A label inside the function before it.
            continue
        yield from _unnamed(image, code, vaddr, start)
        known_end = symbols.starts[index + 1] if index + 1 < last else gap.end
        vaddr = min(gap.end, start + size) if size else known_end
        yield UncoveredCode(start, vaddr, symbols.names[index], code.name)
    yield from _unnamed(image, code, vaddr, gap.end)


def _unnamed(image: ElfImage, code: CodeRange, start_vaddr: int, end_vaddr: int) -> Iterator[UncoveredCode]:
    """Yield what of a range follows its padding, if anything does."""
    start_vaddr += fill_size(image, code, start_vaddr, end_vaddr)
    if start_vaddr < end_vaddr:
        yield UncoveredCode(start_vaddr, end_vaddr, "", code.name)


def largest_without_cfi(
    image: ElfImage, stretches: Iterable[UncoveredCode], reasons: Mapping[int, Underivable]
) -> tuple[WithoutCfi, ...]:
    """Return the largest stretches, at most `NAMED_COUNT`, the largest first; `demangled` is `name` still.

    `reasons` has why nothing follows from instructions, by the starts of the stretches.
    """
    largest = nlargest(NAMED_COUNT, stretches, key=lambda stretch: stretch.end_vaddr - stretch.start_vaddr)
    found = []
    for start, end, name, section in largest:
        why = reasons.get(start)
        address = image.place(start).offset
        found.append(
            WithoutCfi(name, name, section, address, end - start, why and why.reason, why.detail if why else "")
        )
    return tuple(found)
