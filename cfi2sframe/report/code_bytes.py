# SPDX-License-Identifier: Apache-2.0
"""Executable bytes by what describes them, and the code that nothing describes because no CFI covers it.

Every executable byte is counted exactly once.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.ranges import Span, SpanCount, without
from cfi2sframe.lower import InParts, Part, Skip
from cfi2sframe.padding import fill_size
from cfi2sframe.report.uncovered_code import (
    UncoveredCode,
    reasons_without_cfi,
    stretches_of,
    symbols_within,
    with_reasons,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.reasons import CodeReason
    from cfi2sframe.instructions.stub_records import StubReason
    from cfi2sframe.reasons import SkipReason
    from cfi2sframe.sframe.model import FunctionBody

    Reason = SkipReason | StubReason | CodeReason

#: What describes code: a kind of row, PLT stubs, padding that the function before it reaches over, and instructions.
DESCRIBED = ("default", "flexible", "stubs", "padding", "from code")


class Held(NamedTuple):
    """The addresses `[start, end)` that CFI or the stub analysis accounts for.

    `kind` is one of `DESCRIBED`; or the code is not described because of `reason`, and `kind` is that of its
    `coverage.Missing`.
    """

    kind: str
    start: int
    end: int
    reason: Reason | None = None


class CodeBytes(NamedTuple):
    """Executable bytes: `held` by kind and reason, `uncovered` code, and padding that follows code without rows."""

    held: Counter[tuple[str, Reason | None]]
    uncovered: list[UncoveredCode]
    other_padding: int


def count_code(conversion: Conversion) -> CodeBytes:
    """Count the bytes of every executable range by what describes them."""
    image = conversion.image
    code = [Span(each.start_vaddr, each.end_vaddr) for each in image.code_ranges]
    held = list(_held(conversion))
    counts, in_code = Counter[tuple[str, "Reason | None"]](), SpanCount(code)
    for kind, start, end, reason in held:
        counts[kind, reason] += in_code.between(start, end)
    gaps = without(code, [*((start, end) for _, start, end, _ in held), *_padding_of_code(conversion, held)])
    symbols = symbols_within(image, gaps)
    uncovered = [
        stretch
        for gap in gaps
        for index, start, end in _shares(image, gap)
        for stretch in stretches_of(image, image.code_ranges[index], Span(start, end), symbols)
    ]
    size = sum(stretch.end_vaddr - stretch.start_vaddr for stretch in uncovered)
    total = sum(end - start for start, end in code)
    return CodeBytes(counts, with_reasons(uncovered, conversion), total - counts.total() - size)


def _held(conversion: Conversion) -> Iterator[Held]:
    """Yield the ranges that the CFI or the stub analysis accounts for."""
    code_map, derived = conversion.code_map, conversion.cfi.derived_numbers
    described_ends = set[int]()
    for number, start, end in zip(*code_map.pieces, strict=True):
        vaddr = conversion.cfi.entries.starts[number]
        for held in _held_by(conversion.outcomes.results[number], vaddr, Span(start, end)):
            if held.reason is None:
                described_ends.add(held.end)
            if number not in derived:
                yield held
            elif held.reason is None:
                # No CFI covers the rest, which counts as if nothing had been derived.
                yield held._replace(kind="from code")
    for start, end in code_map.padding.ranges:
        if start in described_ends:
            yield Held("padding", start, end)
    for stub in code_map.stubs.functions:
        yield Held("stubs", stub.start_vaddr, stub.start_vaddr + stub.size)


def _held_by(result: FunctionBody | InParts | Skip, vaddr: int, piece: Span) -> Iterator[Held]:
    """Yield the ranges of a piece of the FDE at `vaddr`."""
    if isinstance(result, Skip):
        yield Held("left out", *piece, result.reason)
    elif isinstance(result, InParts):
        for start, end, which in result.within(piece.start - vaddr, piece.end - vaddr):
            if isinstance(which, Part):
                yield Held(_kind_of(which.body), vaddr + start, vaddr + end)
            else:
                yield Held("in part", vaddr + start, vaddr + end, which.why.reason)
    else:
        yield Held(_kind_of(result), *piece)


def _kind_of(body: FunctionBody) -> str:
    return "flexible" if body.is_flexible else "default"


def _padding_of_code(conversion: Conversion, held: Sequence[Held]) -> Iterator[Span]:
    """Yield the padding that the analysis of instructions has found between the code that nothing describes."""
    if not conversion.cfi.underived:
        return
    image = conversion.image
    known = [(start, end) for _, start, end, _ in held]
    known += [(item.start_vaddr, item.end_vaddr) for item in reasons_without_cfi(conversion)]
    for code in image.code_ranges:
        for gap in without([(code.start_vaddr, code.end_vaddr)], known):
            if fill_size(image, code, gap.start, gap.end) == gap.end - gap.start:
                yield gap


def _shares(image: ElfImage, span: Span) -> Iterator[tuple[int, int, int]]:
    """Yield the parts of a range that are executable, as (index of the executable range, start, end)."""
    index = image.code_index_of(span.start)
    while index < len(image.code_ranges):
        code = image.code_ranges[index]
        start, end = max(span.start, code.start_vaddr), min(span.end, code.end_vaddr)
        if start >= end:
            return
        yield index, start, end
        index += 1
