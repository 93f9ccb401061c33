# SPDX-License-Identifier: Apache-2.0
"""The sums of every account add up, whatever was converted: tests convert through `convert_checked`."""

from collections import Counter
from collections.abc import Iterator
from itertools import groupby, pairwise
from typing import NamedTuple

from cfi2sframe import Conversion, account, convert
from cfi2sframe.constants.sframe import FDE_SIZE, HEADER_SIZE
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.lower import InParts, Lowered, lower_programs
from cfi2sframe.conversion.options import Options
from cfi2sframe.conversion.owners import map_code
from cfi2sframe.conversion.pieces import results_by_fde
from cfi2sframe.dwarf.fdes import FdeIndex
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.report.coverage import NAMED_COUNT, Coverage
from cfi2sframe.sframe.model import Function
from cfi2sframe.why import Reason, Why

DEFAULTS = Options()


def convert_checked(image: ElfImage, options: Options = DEFAULTS) -> Conversion:
    """Convert an image, and check the sums of its account."""
    conversion = convert(image, **options._asdict())
    check_sums(conversion, may_join=may_join(options))
    return conversion


def may_join(options: Options) -> bool:
    """Whether functions may be cut and joined: at -O2, and where the level is left to the package."""
    return options.level not in (0, 1)


def check_sums(conversion: Conversion, *, may_join: bool = False) -> Coverage:
    """Check an account against itself and against the conversion, and return it.

    `may_join`: a function may reach over several FDEs and stubs (-O2).
    """
    coverage = account(conversion)
    _check_functions(coverage, conversion, may_join=may_join)
    _check_bytes(coverage, conversion)
    _check_section(coverage, conversion)
    return coverage


class Owned(NamedTuple):
    """The ranges that FDEs own, and what can be said of each FDE, by the stages before there are pieces."""

    ranges: list[tuple[int, int, FdeIndex]]
    results: list[Lowered]
    #: The number of the FDE, start and end of what it owns and has no rows for.
    holes: list[tuple[int, int, int]]
    #: The FDEs that have rows in what they own, and with them those of whose range something else owns a part.
    with_rows: set[int]
    described: set[int]


def owned_by_fdes(conversion: Conversion) -> Owned:
    """Return what FDEs own, not read from the pieces."""
    entries = conversion.cfi.entries
    owners = map_code(conversion.image, entries, conversion.target.version).owners
    ranges = [(start, end, owner) for start, end, owner in owners if not isinstance(owner, Function | None)]
    results = results_by_fde(entries, lower_programs(conversion.cfi.programs, conversion.target))
    holes = list(_holes_within(conversion, ranges, results))
    held, lacking = Counter[int](), Counter[int]()
    for start, end, number in ranges:
        held[number] += end - start
    for fde, start, end in holes:
        lacking[fde] += end - start
    with_rows = {number for number, size in held.items() if lacking[number] < size}
    described = {number for number in held if lacking[number] < entries.sizes[number]}
    return Owned(ranges, results, holes, with_rows, described)


def derived_of(conversion: Conversion) -> set[int]:
    """Return the entries that stand for functions derived from instructions."""
    return {number for number, fate in enumerate(conversion.fates) if fate.is_of_code}


def _check_functions(coverage: Coverage, conversion: Conversion, *, may_join: bool) -> None:
    derived = derived_of(conversion)
    counts = (coverage.described_count, coverage.in_part_count, coverage.left_out_count, coverage.damaged_count)
    assert coverage.function_count == sum(counts)
    others = coverage.stub_fde_count + coverage.dropped_count - len(conversion.cfi.damaged)
    assert sum(counts) + others == len(conversion.cfi.entries) - len(derived)
    assert coverage.described_count == conversion.described_count
    assert sum(coverage.dropped.values()) == coverage.dropped_count
    # The table of reasons is the only source of names and sentences.
    assert all(Reason[each.reason].value == each.message for each in coverage.missing if each.reason)
    places = {kind: [each for each in coverage.missing if each.kind == kind] for kind in ("left out", "damaged")}
    assert (len(places["left out"]), len(places["damaged"])) == (coverage.left_out_count, coverage.damaged_count)
    holes = coverage.of_kind("in part")
    parts = groupby(holes, lambda item: (item.section, item.function_address, item.function_size))
    sizes = [(sum(hole.size for hole in each), size) for (_, _, size), each in parts]
    assert coverage.in_part_count == len(conversion.in_parts) == len(sizes)
    assert all(0 < size < whole for size, whole in sizes)
    _check_pieces(conversion)
    begun = [conversion.piece_at(start) for start in conversion.section.starts]
    numbers = [piece.origin for piece in begun if piece is not None and piece.origin is not None]
    assert None not in begun
    assert coverage.record_count == len(conversion.section.functions)
    assert all(conversion.fates[number].has_code or conversion.fates[number] is Fate.DERIVED for number in numbers)
    owned = owned_by_fdes(conversion)
    said = owned.described
    assert len(said - derived) == coverage.described_count + coverage.in_part_count
    assert len(said & derived) == coverage.sources.get("code", 0)
    assert len(said) == sum(coverage.sources.values())
    assert set(numbers) <= owned.with_rows if may_join else set(numbers) == owned.with_rows
    assert 0 <= coverage.code_percent <= 100


def _check_pieces(conversion: Conversion) -> None:
    """Check that pieces ascend, do not overlap, and are all that FDEs own; what has rows is in the section."""
    pieces = conversion.pieces
    assert all(each.start_vaddr < each.end_vaddr for each in pieces)
    assert all(before.end_vaddr <= after.start_vaddr for before, after in pairwise(pieces))
    owned = Counter[int]()
    for start, end, number in owned_by_fdes(conversion).ranges:
        owned[number] += end - start
    found = Counter[int]()
    for start, end, origin, rows in pieces:
        if origin is not None:
            found[origin] += end - start
        assert (conversion.section.holder_of(start) is None) == isinstance(rows, Why)
        assert (conversion.section.holder_of(end - 1) is None) == isinstance(rows, Why)
    assert found == owned


def _check_bytes(coverage: Coverage, conversion: Conversion) -> None:
    assert coverage.code_size == coverage.described_size + coverage.left_out_size + coverage.without_cfi_size
    by_kind = (coverage.default_size, coverage.flexible_size, coverage.stub_size, coverage.from_code_size)
    assert coverage.described_size == sum(by_kind) + coverage.padding_size
    assert min(*by_kind, coverage.padding_size, coverage.left_out_size, coverage.other_padding_size) >= 0
    image, derived = conversion.image, derived_of(conversion)
    sums = [item.size for item in coverage.missing_sums if item.kind == "without CFI"]
    assert sum(sums) == coverage.without_cfi_size
    assert sum(item.size for item in coverage.missing_sums) == coverage.left_out_size + coverage.without_cfi_size
    named = [item.size for item in coverage.of_kind("without CFI")]
    assert named == sorted(named, reverse=True)
    assert sum(named) == coverage.without_cfi_size or len(named) == NAMED_COUNT
    total = coverage.code_size + coverage.other_padding_size
    assert total == sum(code.end_vaddr - code.start_vaddr for code in image.code_ranges)
    # Counted the other way round, from ranges instead of outcomes.
    described = [(f.start_vaddr, f.start_vaddr + f.size) for f in conversion.section.functions]
    owned = owned_by_fdes(conversion)
    all_holes = owned.holes
    holes = [(start, end) for number, start, end in all_holes if number not in derived]
    hole_size = sum(item.size for item in coverage.missing_sums if item.kind == "in part")
    assert hole_size == sum(
        _bytes_in_code(image, start, end)
        for number, start, end in all_holes
        if number in owned.described and number not in derived
    )
    padding = dict(conversion.padding)
    hole_ends = {end for _, _, end in all_holes}
    fde_ends = [
        end for _, end, number in owned.ranges if not isinstance(owned.results[number], Why) and end not in hole_ends
    ]
    assert coverage.padding_size == sum(padding[end] - end for end in fde_ends if end in padding)
    assert coverage.described_size == sum(_bytes_in_code(image, *span) for span in described)
    assert coverage.left_out_size == sum(_bytes_in_code(image, *span) for span in holes)
    from_code = [(start, end) for start, end, number in owned.ranges if number in derived]
    without = [(start, end) for number, start, end in all_holes if number in derived]
    assert coverage.from_code_size == sum(_bytes_in_code(image, *span) for span in from_code) - sum(
        _bytes_in_code(image, *span) for span in without
    )


def _holes_within(
    conversion: Conversion, ranges: list[tuple[int, int, FdeIndex]], results: list[Lowered]
) -> Iterator[tuple[int, int, int]]:
    """Yield the FDEs' numbers and addresses of what has no rows and belongs to no other FDE."""
    entries = conversion.cfi.entries
    for start, end, number in ranges:
        result = results[number]
        if isinstance(result, Why):
            yield number, start, end
        if isinstance(result, InParts):
            ends = (*result.starts[1:], entries.sizes[number])
            for hole, end_delta in zip(result.pieces, ends, strict=True):
                if isinstance(hole, Why):
                    hole_start, hole_end = (entries.starts[number] + delta for delta in (hole.start_delta, end_delta))
                    if max(start, hole_start) < min(end, hole_end):
                        yield number, max(start, hole_start), min(end, hole_end)


def _bytes_in_code(image: ElfImage, start: int, end: int) -> int:
    return sum(max(0, min(end, code.end_vaddr) - max(start, code.start_vaddr)) for code in image.code_ranges)


def _check_section(coverage: Coverage, conversion: Conversion) -> None:
    rows, data = conversion.rows, conversion.data
    assert coverage.sframe_size == len(data)
    assert coverage.row_count == sum(len(function.body.rows) for function in conversion.section.functions)
    assert rows.row_count == coverage.row_count
    assert rows.size == sum(map(len, rows.stored))
    if not conversion.section.functions:
        assert data == b""
        return
    table_size = FDE_SIZE[conversion.section.version] * len(conversion.section.functions)
    assert len(data) == HEADER_SIZE + table_size + rows.size
