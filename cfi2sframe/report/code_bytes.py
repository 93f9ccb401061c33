# SPDX-License-Identifier: Apache-2.0
"""Every executable byte, once: the kind of what describes it, or why nothing does."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import STT_FUNC, STT_GNU_IFUNC, STT_NOTYPE
from cfi2sframe.elf.ranges import Span, SpanCount, united
from cfi2sframe.errors import ElfError
from cfi2sframe.lower import InParts, Part, Skip
from cfi2sframe.padding import fill_size, gaps_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage, Symbol
    from cfi2sframe.elf.sections import CodeRange
    from cfi2sframe.instructions.stub_records import StubReason
    from cfi2sframe.reasons import CodeReason, SkipReason
    from cfi2sframe.sframe.model import FunctionBody

    Reason = SkipReason | StubReason | CodeReason

#: What describes code: a kind of row, PLT stubs, padding that the function before it reaches over, and instructions.
DESCRIBED = ("default", "flexible", "stubs", "padding", "from code")


class Stretch(NamedTuple):
    """The addresses `[start, end)` of one kind: one of `DESCRIBED`, or that of a `coverage.Missing`.

    `reason` says why code is not described; None of code without CFI whose instructions nobody asked about. `name` is
    the function's in code without CFI, empty where no symbol names it, and `section` that of the executable range.
    """

    kind: str
    start: int
    end: int
    reason: Reason | None = None
    detail: str = ""
    name: str = ""
    section: str = ""


def count_code(conversion: Conversion) -> tuple[Counter[tuple[str, Reason | None]], list[Stretch]]:
    """Return the executable bytes by kind and reason, and the code without CFI; the rest of the code is padding."""
    image, known = conversion.image, list(_known(conversion))
    held = [each for each in known if each.kind != "without CFI"]
    in_code = SpanCount((code.start_vaddr, code.end_vaddr) for code in image.code_ranges)
    sizes = Counter[tuple[str, "Reason | None"]]()
    for each in held:
        sizes[each.kind, each.reason] += in_code.between(each.start, each.end)
    taken = united((each.start, each.end) for each in held)
    if conversion.cfi.underived:
        # The analysis of instructions has also found padding between the functions that it knows.
        gaps = gaps_outside(image, united((each.start, each.end) for each in known))
        padding = [gap for code, gap in gaps if fill_size(image, code, *gap) == gap.end - gap.start]
        taken = united((*taken, *padding))
    uncovered = _with_reasons(_without_cfi(image, taken), [each for each in known if each.kind == "without CFI"])
    for each in uncovered:
        sizes[each.kind, each.reason] += each.end - each.start
    return sizes, uncovered


def _known(conversion: Conversion) -> Iterator[Stretch]:
    """Yield what the CFI, the stubs and the instructions account for; "without CFI": why code has no rows."""
    code_map, derived = conversion.code_map, conversion.cfi.derived_numbers
    for start, end, why in conversion.cfi.underived or ():
        yield Stretch("without CFI", start, end, why)
    for skip in code_map.stubs.left_out:
        yield Stretch("without CFI", skip.start_vaddr, skip.start_vaddr + skip.size, skip.reason, skip.detail)
    for stub in code_map.stubs.functions:
        yield Stretch("stubs", stub.start_vaddr, stub.start_vaddr + stub.size)
    described_ends = set[int]()
    for number, start, end in zip(*code_map.pieces, strict=True):
        vaddr = conversion.cfi.entries.starts[number]
        for each in _parts_of(conversion.outcomes.results[number], vaddr, start, end):
            if each.reason is None:
                described_ends.add(each.end)
            if number in derived:
                # Where the version cannot express what was derived, the code counts as if nothing had been.
                yield each._replace(kind="from code" if each.reason is None else "without CFI")
            else:
                yield each
    for start, end in code_map.padding.ranges:
        if start in described_ends:
            yield Stretch("padding", start, end)


def _parts_of(result: FunctionBody | InParts | Skip, vaddr: int, start: int, end: int) -> Iterator[Stretch]:
    """Yield the parts of a piece of the FDE at `vaddr`."""
    if isinstance(result, Skip):
        yield Stretch("left out", start, end, result.reason, result.detail)
    elif isinstance(result, InParts):
        for first, last, which in result.within(start - vaddr, end - vaddr):
            if isinstance(which, Part):
                yield Stretch(_kind_of(which.body), vaddr + first, vaddr + last)
            else:
                yield Stretch("in part", vaddr + first, vaddr + last, which.why.reason, which.why.detail)
    else:
        yield Stretch(_kind_of(result), start, end)


def _kind_of(body: FunctionBody) -> str:
    return "flexible" if body.is_flexible else "default"


def _without_cfi(image: ElfImage, taken: Sequence[Span]) -> list[Stretch]:
    """Return the code outside of some ascending spans, cut at its functions, but for the padding.

    Padding begins where the code before it ends: at the start of a gap, and where a function ends whose size is known.
    """
    gaps = list(gaps_outside(image, taken))
    functions = _functions_within(image, [gap for _, gap in gaps])
    found: list[Stretch] = []

    def add_unnamed(code: CodeRange, start: int, end: int) -> None:
        start += fill_size(image, code, start, end)
        if start < end:
            found.append(Stretch("without CFI", start, end, section=code.name))

    for code, gap in gaps:
        position = gap.start
        first, last = (bisect_left(functions, edge, key=attrgetter("start")) for edge in gap)
        ends = [*(function.start for function in functions[first + 1 : last]), gap.end]
        for function, next_start in zip(functions[first:last], ends, strict=False):
            if function.start < position:
                # A label inside the function before it.
                continue
            add_unnamed(code, position, function.start)
            position = min(gap.end, function.start + function.size) if function.size else next_start
            found.append(Stretch("without CFI", function.start, position, name=function.name, section=code.name))
        add_unnamed(code, position, gap.end)
    return found


class _Function(NamedTuple):
    """A function by its symbol. A size of 0 is one that the symbol table does not tell."""

    start: int
    size: int
    name: str


def _functions_within(image: ElfImage, spans: Sequence[Span]) -> list[_Function]:
    """Return the functions that start in any of some ascending spans.

    They are symbols of functions, and labels that have a size, as some assembly's functions do. Of several at one
    address, a function is preferred, then a symbol with a size, then one of .symtab, then the first. A damaged table
    has none.
    """
    within = SpanCount(spans)
    best: dict[int, tuple[int, _Function]] = {}
    for table in image.symbol_tables if spans else ():
        try:
            # In a linked file st_value is the address, so that most entries can be skipped unread.
            for symbol in image.symbols(table, None if image.is_relocatable else within):
                rank, vaddr = _rank(symbol), symbol.vaddr
                if rank is None or vaddr is None or vaddr not in within:
                    continue
                if vaddr not in best or rank < best[vaddr][0]:
                    best[vaddr] = (rank, _Function(vaddr, symbol.size, symbol.name))
        except ElfError:
            continue
    return [best[vaddr][1] for vaddr in sorted(best)]


def _rank(symbol: Symbol) -> int | None:
    """Return 0 for the best of names, None for what names no function."""
    if symbol.type in (STT_FUNC, STT_GNU_IFUNC):
        return 0 if symbol.size else 1
    return 2 if symbol.type == STT_NOTYPE and symbol.size else None


def _with_reasons(stretches: Iterable[Stretch], reasons: Iterable[Stretch]) -> list[Stretch]:
    """Return ascending stretches, cut where the reason changes why they have no rows; the first of several counts."""
    known: list[Stretch] = []
    for why in sorted(reasons, key=attrgetter("start")):
        start = max(why.start, known[-1].end) if known else why.start
        if start < why.end:
            known.append(why._replace(start=start))
    starts, ends = [why.start for why in known], [why.end for why in known]
    result: list[Stretch] = []
    for stretch in stretches:
        position = stretch.start
        for why in known[bisect_right(ends, stretch.start) : bisect_left(starts, stretch.end)]:
            if position < why.start:
                result.append(stretch._replace(start=position, end=why.start))
            start, position = max(position, why.start), min(why.end, stretch.end)
            result.append(stretch._replace(start=start, end=position, reason=why.reason, detail=why.detail))
        if position < stretch.end:
            result.append(stretch._replace(start=position))
    return result
