# SPDX-License-Identifier: Apache-2.0
"""The account of one conversion: which functions and bytes the section describes, which it does not, and why.

Every FDE and every executable byte is counted exactly once; the sums are those of `FunctionCounts` and `ByteCounts`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.lower import InParts, Part, Skip
from cfi2sframe.padding import fill_size
from cfi2sframe.report.holes import count_holes, functions_in_parts
from cfi2sframe.report.sources import SourceCounts, count_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.stub_reasons import StubReason
    from cfi2sframe.reasons import SkipReason, UnreadSource
    from cfi2sframe.report.holes import HoleCounts, HoleInPart, InPart
    from cfi2sframe.report.return_addresses import ReturnAddresses
    from cfi2sframe.sframe.lookup_cost import LookupCost
    from cfi2sframe.sframe.model import FunctionBody

SCHEMA_VERSION: Final = 1
#: Characters of names that one step of the budget, about a microsecond, can render.
_TEXT_PER_STEP: Final = 8


class LeftOut(NamedTuple):
    """A function that the SFrame version cannot express; `source` is the CFI section that describes it.

    `row_address` is that of the first row that it cannot express. It and `address` are absolute; in an object, both are
    offsets in `section`. `size` counts bytes; `detail` is the rule in question.
    """

    name: str
    section: str
    address: int
    size: int
    reason: SkipReason
    detail: str
    row_address: int
    source: str


class StubLeftOut(NamedTuple):
    """PLT stubs that the section does not describe. `address` is absolute, `size` counts bytes."""

    section: str
    address: int
    size: int
    reason: StubReason
    detail: str


class Damaged(NamedTuple):
    """A damaged FDE at `offset` of the CFI section `where`, and the damage."""

    where: str
    offset: int
    reason: str


class ByteCounts(NamedTuple):
    """Executable bytes by what describes them. `total` is the sum of the others.

    `left_out` are the bytes of functions that are left out, and of holes in functions that are described in part.
    Described functions reach over `padding`. No CFI covers `other_padding`, where instructions that do nothing follow
    code that is not described, and `uncovered`.
    """

    total: int = 0
    default: int = 0
    flexible: int = 0
    stubs: int = 0
    padding: int = 0
    left_out: int = 0
    other_padding: int = 0
    uncovered: int = 0

    @property
    def described(self) -> int:
        """The bytes that the section describes."""
        return self.default + self.flexible + self.stubs + self.padding


class SectionBytes(NamedTuple):
    """The byte counts of one executable section (or segment, where there are no sections)."""

    name: str
    counts: ByteCounts


class FunctionCounts(NamedTuple):
    """FDEs by what becomes of them. `fdes` is the sum of those from `default` to `damaged`.

    `default` and `flexible` FDEs are described from start to end, `in_parts` with holes. `replaced` FDEs are of PLT
    stubs, which are described by their instructions; `dropped` ones have no code of their own. `overlapping` counts
    those of the first four that lost a part of their range to other FDEs. `records` are the functions in the section,
    `stub_records` of them for stubs: they are more than the FDEs described when one is cut or split, and fewer when
    level 2 joins neighbours.
    """

    fdes: int
    default: int
    flexible: int
    in_parts: int
    left_out: int
    replaced: int
    dropped: int
    damaged: int
    overlapping: int
    records: int
    stub_records: int

    @property
    def described(self) -> int:
        """The FDEs that the section describes from start to end."""
        return self.default + self.flexible

    @property
    def percent(self) -> float:
        """The share of FDEs with code of their own that are described from start to end; 100 without such FDEs."""
        wanted = self.described + self.in_parts + self.left_out + self.damaged
        return 100.0 * self.described / wanted if wanted else 100.0


class Sizes(NamedTuple):
    """Sizes in bytes: the CFI that was read, of all sources; its search table; and the SFrame section."""

    cfi: int
    eh_frame_hdr: int
    sframe: int

    @property
    def ratio(self) -> float | None:
        """The size of `.sframe` to that of the CFI with its search table; None without CFI."""
        whole = self.cfi + self.eh_frame_hdr
        return self.sframe / whole if whole else None


class Coverage(NamedTuple):
    """The whole account of a conversion.

    `source` names the CFI section that was read, the best one of several; `sources` has all of them, and `unread` those
    that could not be read. `section_vaddr` is the address that the section was made for, `errata` is None except in
    version 2. `reasons`, `holes` and `dropped` count functions that are left out, holes in functions that are described
    in part (`in_parts`), and FDEs by reason, as sentences.
    `lookup_cost` is what a look-up costs a reader. `return_addresses` is None unless `count_return_addresses` was asked
    for them.
    """

    file: str
    is_object: bool
    arch: str
    version: int
    errata: int | None
    source: str
    section_vaddr: int
    functions: FunctionCounts
    bytes: ByteCounts
    sizes: Sizes
    row_count: int
    lookup_cost: LookupCost
    reasons: dict[str, int]
    holes: dict[str, HoleCounts]
    dropped: dict[str, int]
    sections: tuple[SectionBytes, ...]
    left_out: tuple[LeftOut, ...]
    in_parts: tuple[InPart, ...]
    stubs_left_out: tuple[StubLeftOut, ...]
    damaged: tuple[Damaged, ...]
    sources: tuple[SourceCounts, ...]
    unread: tuple[UnreadSource, ...]
    return_addresses: ReturnAddresses | None = None

    @property
    def source_names(self) -> str:
        """The names of all sources that were read, the best one first."""
        return " + ".join(source.name for source in self.sources)


def account(conversion: Conversion) -> Coverage:
    """Return the account of a conversion.

    Raises `BudgetError` when its text is out of proportion to the file: thousands of functions may share one long name.
    """
    image, target = conversion.image, conversion.target
    dropped = Counter(reason.value for reason in conversion.code_map.dropped.values())
    left_out = _left_out(conversion)
    in_parts = functions_in_parts(conversion)
    sections = _count_bytes(conversion)
    stubs_left_out = conversion.code_map.stubs.left_out
    text_size = sum(len(item.name) + len(item.section) + len(item.detail) for item in left_out)
    text_size += sum(len(item.name) + len(item.section) + sum(len(h.detail) for h in item.holes) for item in in_parts)
    text_size += sum(len(skip.section_name) + len(skip.detail) for skip in stubs_left_out)
    text_size += sum(len(section.name) for section in sections)
    image.budget.spend(text_size // _TEXT_PER_STEP, "the names in the account")
    return Coverage(
        file=image.name,
        is_object=image.is_relocatable,
        arch=target.arch.name,
        version=target.version,
        errata=target.errata if target.version == 2 else None,
        source=conversion.cfi.sections[0].name if conversion.cfi.sections else "",
        section_vaddr=conversion.section_vaddr,
        functions=_count_functions(conversion),
        bytes=ByteCounts(*map(sum, zip(*(section.counts for section in sections), strict=True))),
        sizes=Sizes(
            sum(len(section.data) for section in conversion.cfi.sections),
            sum(section.size for section in image.sections_named(".eh_frame_hdr")),
            len(conversion.data),
        ),
        row_count=conversion.plan.fre_count,
        lookup_cost=conversion.lookup_cost,
        reasons=dict(sorted(Counter(item.reason.value for item in left_out).items())),
        holes=count_holes(conversion),
        dropped=dict(sorted(dropped.items())),
        sections=sections,
        left_out=left_out,
        in_parts=in_parts,
        stubs_left_out=tuple(
            StubLeftOut(skip.section_name, skip.start_vaddr, skip.size, skip.reason, skip.detail)
            for skip in stubs_left_out
        ),
        damaged=tuple(
            Damaged(f.section.name, f.failure.offset, f.failure.error.reason) for f in conversion.cfi.damaged
        ),
        sources=count_sources(conversion),
        unread=conversion.cfi.unread,
    )


def _count_functions(conversion: Conversion) -> FunctionCounts:
    dropped, replaced = conversion.code_map.dropped, conversion.code_map.replaced
    default = flexible = in_parts = left_out = 0
    for number, result in enumerate(conversion.outcomes.results):
        if number in dropped or number in replaced:
            continue
        if isinstance(result, Skip):
            left_out += 1
        elif isinstance(result, InParts):
            in_parts += 1
        elif result.is_flexible:
            flexible += 1
        else:
            default += 1
    return FunctionCounts(
        fdes=len(conversion.cfi.entries) + len(conversion.cfi.damaged),
        default=default,
        flexible=flexible,
        in_parts=in_parts,
        left_out=left_out,
        replaced=len(replaced),
        dropped=len(dropped),
        damaged=len(conversion.cfi.damaged),
        overlapping=len(conversion.code_map.overlapped),
        records=len(conversion.section.starts),
        stub_records=conversion.function_entries.count(None),
    )


def _count_bytes(conversion: Conversion) -> tuple[SectionBytes, ...]:
    """Count the bytes of every executable range by what describes them."""
    image = conversion.image
    totals = [code.end_vaddr - code.start_vaddr for code in image.code_ranges]
    counts = [ByteCounts(total=total)._asdict() for total in totals]
    held = list(_held_ranges(conversion))
    for kind, span in held:
        for index, start, end in _shares(image, span):
            counts[index][kind] += end - start
    for gap in without(((code.start_vaddr, code.end_vaddr) for code in image.code_ranges), (span for _, span in held)):
        for index, start, end in _shares(image, gap):
            padding = fill_size(image, image.code_ranges[index], start, end)
            counts[index]["other_padding"] += padding
            counts[index]["uncovered"] += end - start - padding
    return tuple(
        SectionBytes(code.name, ByteCounts(**count)) for code, count in zip(image.code_ranges, counts, strict=True)
    )


def _held_ranges(conversion: Conversion) -> Iterator[tuple[str, Span]]:
    """Yield the ranges that the CFI or the stub analysis accounts for, each with its kind: a field of `ByteCounts`."""
    code_map, results = conversion.code_map, conversion.outcomes.results
    described_ends = set[int]()
    for number, start, end in zip(*code_map.pieces, strict=True):
        result = results[number]
        for kind, span in _spans(result, conversion.cfi.entries.starts[number], Span(start, end)):
            yield kind, span
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


def _left_out(conversion: Conversion) -> tuple[LeftOut, ...]:
    image = conversion.image
    skipped = conversion.left_out
    names = {vaddr: name for section in conversion.cfi.sections for vaddr, name in section.names}
    names |= image.names_of(entry.fde.pc_begin_vaddr for entry, _ in skipped)
    result = []
    for entry, skip in skipped:
        begin = entry.fde.pc_begin_vaddr
        place = image.place(begin)
        row_address = place.offset + skip.start_delta
        result.append(
            LeftOut(
                names.get(begin, ""),
                place.section_name,
                place.offset,
                entry.fde.pc_range,
                skip.reason,
                skip.detail,
                row_address,
                entry.section.name,
            )
        )
    return tuple(result)


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """Return the account as JSON-ready data, schema version `SCHEMA_VERSION`."""
    functions, returns = coverage.functions, coverage.return_addresses
    data = {
        "schema": SCHEMA_VERSION,
        "file": coverage.file,
        "arch": coverage.arch,
        "sframe_version": coverage.version,
        "errata": coverage.errata,
        "source": coverage.source,
        "section_address": coverage.section_vaddr,
        "functions": {**functions._asdict(), "described": functions.described, "percent": functions.percent},
        "bytes": coverage.bytes._asdict(),
        "sizes": {**coverage.sizes._asdict(), "ratio": coverage.sizes.ratio},
        "rows": coverage.row_count,
        "lookup": {**coverage.lookup_cost._asdict(), "mean_rows": coverage.lookup_cost.mean_rows},
        "reasons": coverage.reasons,
        "holes": {reason: counts._asdict() for reason, counts in coverage.holes.items()},
        "dropped": coverage.dropped,
        "sections": [{"name": name, **counts._asdict()} for name, counts in coverage.sections],
        "left_out": list(map(_with_reason, coverage.left_out)),
        "in_parts": [{**item._asdict(), "holes": list(map(_with_reason, item.holes))} for item in coverage.in_parts],
        "stubs_left_out": list(map(_with_reason, coverage.stubs_left_out)),
        "damaged": [item._asdict() for item in coverage.damaged],
        "sources": [item._asdict() for item in coverage.sources],
        "unread": [item._asdict() for item in coverage.unread],
    }
    if returns is not None:
        data["return_addresses"] = {
            **returns._asdict(),
            "described": returns.described,
            "percent": returns.percent,
            "mean_rows": returns.mean_rows,
        }
    return data


def _with_reason(item: LeftOut | HoleInPart | StubLeftOut) -> dict[str, Any]:
    return {**item._asdict(), "reason": item.reason.name, "message": item.reason.value}
