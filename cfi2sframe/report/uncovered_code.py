# SPDX-License-Identifier: Apache-2.0
"""Code that no CFI covers: what of it is padding, which functions the rest is, and why it has no rows."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.errors import ElfError
from cfi2sframe.lower import Hole, InParts, Skip
from cfi2sframe.padding import fill_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage, Symbol
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.elf.sections import CodeRange
    from cfi2sframe.report.code_bytes import Reason


class UncoveredCode(NamedTuple):
    """A range of code without CFI; `name` is that of the function, empty where no symbol names it.

    `reason` says why it has no rows: a `CodeReason` or, of rows that were derived from its instructions and that the
    version cannot express, a `SkipReason`; PLT stubs have a `StubReason`. None where nobody asked for such rows.
    """

    start_vaddr: int
    end_vaddr: int
    name: str
    section: str
    reason: Reason | None = None
    detail: str = ""


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


def with_reasons(stretches: Iterable[UncoveredCode], conversion: Conversion) -> list[UncoveredCode]:
    """Return ascending stretches, cut where the reason changes why they have no rows."""
    known = reasons_without_cfi(conversion)
    result: list[UncoveredCode] = []
    place = 0
    for stretch in stretches:
        while place < len(known) and known[place].end_vaddr <= stretch.start_vaddr:
            place += 1
        position = stretch.start_vaddr
        for item in map(known.__getitem__, range(place, len(known))):
            if item.start_vaddr >= stretch.end_vaddr:
                break
            if position < item.start_vaddr:
                result.append(stretch._replace(start_vaddr=position, end_vaddr=item.start_vaddr))
            start, end = max(position, item.start_vaddr), min(item.end_vaddr, stretch.end_vaddr)
            result.append(stretch._replace(start_vaddr=start, end_vaddr=end, reason=item.reason, detail=item.detail))
            position = end
        if position < stretch.end_vaddr:
            result.append(stretch._replace(start_vaddr=position))
    return result


def reasons_without_cfi(conversion: Conversion) -> list[UncoveredCode]:
    """Return why code without CFI is not described, in ascending order, without overlaps."""
    every = [
        *(UncoveredCode(start, end, "", "", why) for start, end, why in conversion.cfi.underived or ()),
        *(
            UncoveredCode(stub.start_vaddr, stub.start_vaddr + stub.size, "", "", stub.reason, stub.detail)
            for stub in conversion.code_map.stubs.left_out
        ),
        *_inexpressible(conversion),
    ]
    found: list[UncoveredCode] = []
    end = 0
    for item in sorted(every, key=attrgetter("start_vaddr")):
        start = max(item.start_vaddr, end)
        if start < item.end_vaddr:
            found.append(item._replace(start_vaddr=start))
            end = item.end_vaddr
    return found


def _inexpressible(conversion: Conversion) -> Iterator[UncoveredCode]:
    """Yield the code whose rows were derived, and which the version cannot express."""
    derived = conversion.cfi.derived_numbers
    results, starts = conversion.outcomes.results, conversion.cfi.entries.starts
    for number, start, end in zip(*conversion.code_map.pieces, strict=True):
        if number not in derived:
            continue
        result, vaddr = results[number], starts[number]
        if isinstance(result, Skip):
            yield UncoveredCode(start, end, "", "", result.reason, result.detail)
        elif isinstance(result, InParts):
            for first, last, part in result.within(start - vaddr, end - vaddr):
                if isinstance(part, Hole):
                    yield UncoveredCode(vaddr + first, vaddr + last, "", "", part.why.reason, part.why.detail)
