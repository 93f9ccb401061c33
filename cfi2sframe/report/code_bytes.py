# SPDX-License-Identifier: Apache-2.0
"""Executable bytes by what describes them, and the stretches of code that nothing describes because no CFI covers them.

Every executable byte is counted exactly once; the sums are those of `ByteCounts`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.lower import InParts, Part, Skip
from cfi2sframe.padding import fill_size
from cfi2sframe.report.from_code import underivable
from cfi2sframe.report.without_cfi import UncoveredCode, stretches_of, symbols_within

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import FunctionBody


class ByteCounts(NamedTuple):
    """Executable bytes by what describes them. `total` is the sum of the others.

    `left_out` are the bytes of functions that are left out, and of holes in functions that are described in part.
    Described functions reach over `padding`. No CFI covers `from_code`, which is described from its instructions,
    `other_padding`, where instructions that do nothing follow code that is not described, and `uncovered`.
    """

    total: int = 0
    default: int = 0
    flexible: int = 0
    stubs: int = 0
    padding: int = 0
    left_out: int = 0
    other_padding: int = 0
    uncovered: int = 0
    from_code: int = 0

    @property
    def described(self) -> int:
        """The bytes that the section describes."""
        return self.default + self.flexible + self.stubs + self.padding + self.from_code

    @property
    def code(self) -> int:
        """The bytes that a section should describe: all but `other_padding`, which is never executed."""
        return self.total - self.other_padding

    @property
    def percent(self) -> float:
        """The share of `code` that the section describes; 100 without any."""
        return 100.0 * self.described / self.code if self.code else 100.0


class SectionBytes(NamedTuple):
    """The byte counts of one executable section (or segment, where there are no sections)."""

    name: str
    counts: ByteCounts


class CodeByteCounts(NamedTuple):
    """The byte counts of each executable section, and the code that they count as `uncovered`, in ascending order."""

    sections: tuple[SectionBytes, ...]
    uncovered: tuple[UncoveredCode, ...]


def count_bytes(conversion: Conversion) -> CodeByteCounts:
    """Count the bytes of every executable range by what describes them."""
    image = conversion.image
    totals = [code.end_vaddr - code.start_vaddr for code in image.code_ranges]
    counts = [ByteCounts(total=total)._asdict() for total in totals]
    held = list(_held_ranges(conversion))
    held += [("other_padding", span) for span in _padding_of_code(conversion, [span for _, span in held])]
    for kind, span in held:
        for index, start, end in _shares(image, span):
            counts[index][kind] += end - start
    gaps = without(((code.start_vaddr, code.end_vaddr) for code in image.code_ranges), (span for _, span in held))
    symbols = symbols_within(image, gaps)
    uncovered: list[UncoveredCode] = []
    for gap in gaps:
        for index, start, end in _shares(image, gap):
            found = list(stretches_of(image, image.code_ranges[index], Span(start, end), symbols))
            size = sum(stretch.end_vaddr - stretch.start_vaddr for stretch in found)
            counts[index]["uncovered"] += size
            counts[index]["other_padding"] += end - start - size
            uncovered += found
    return CodeByteCounts(
        tuple(
            SectionBytes(code.name, ByteCounts(**count)) for code, count in zip(image.code_ranges, counts, strict=True)
        ),
        tuple(uncovered),
    )


def _held_ranges(conversion: Conversion) -> Iterator[tuple[str, Span]]:
    """Yield the ranges that the CFI or the stub analysis accounts for, each with its kind: a field of `ByteCounts`."""
    code_map, results = conversion.code_map, conversion.outcomes.results
    derived = conversion.cfi.derived_numbers
    described_ends = set[int]()
    for number, start, end in zip(*code_map.pieces, strict=True):
        result = results[number]
        for kind, span in _spans(result, conversion.cfi.entries.starts[number], Span(start, end)):
            if number not in derived:
                yield kind, span
            elif kind != "left_out":
                # No CFI covers the rest, which counts as if nothing had been derived.
                yield "from_code", span
            if kind != "left_out":
                described_ends.add(span.end)
    for start, end in code_map.padding.ranges:
        if start in described_ends:
            yield "padding", Span(start, end)
    for stub in code_map.stubs.functions:
        yield "stubs", Span(stub.start_vaddr, stub.start_vaddr + stub.size)
    for skip in code_map.stubs.left_out:
        # The bytes of other stubs that are left out count as their FDEs do, or as uncovered.
        if skip.overrides_cfi:
            yield "left_out", Span(skip.start_vaddr, skip.start_vaddr + skip.size)


def _padding_of_code(conversion: Conversion, held: Sequence[Span]) -> Iterator[Span]:
    """Yield the padding that the analysis of instructions has found between the code that nothing describes."""
    if not conversion.cfi.underived:
        return
    image = conversion.image
    known = [*held, *(Span(item.start_vaddr, item.end_vaddr) for item in underivable(conversion))]
    for code in image.code_ranges:
        for gap in without([(code.start_vaddr, code.end_vaddr)], known):
            if fill_size(image, code, gap.start, gap.end) == gap.end - gap.start:
                yield gap


def _spans(result: FunctionBody | InParts | Skip, vaddr: int, piece: Span) -> Iterator[tuple[str, Span]]:
    """Yield the ranges of a piece of the FDE at `vaddr`, each with its kind."""
    if isinstance(result, InParts):
        for start, end, which in result.within(piece.start - vaddr, piece.end - vaddr):
            yield _kind_of(which.body) if isinstance(which, Part) else "left_out", Span(vaddr + start, vaddr + end)
    else:
        yield "left_out" if isinstance(result, Skip) else _kind_of(result), piece


def _kind_of(body: FunctionBody) -> str:
    return "flexible" if body.is_flexible else "default"


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
