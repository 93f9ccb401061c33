# SPDX-License-Identifier: Apache-2.0
"""Compare a decoded section with the CFI and the stubs of its file."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.verification.address_set import AddressSet
from cfi2sframe.verification.comparison import Comparison
from cfi2sframe.verification.findings import Verification
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.point_by_point import compare_padding, compare_points
from cfi2sframe.verification.stub_rows import compare_stubs
from cfi2sframe.verification.whole_functions import WholeFunctions

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from cfi2sframe.dwarf.programs import CfiEntries, CfiEntry
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.padding import Padding
    from cfi2sframe.plt.scan_records import StubScan
    from cfi2sframe.sframe.decode import DecodedSection


class Truth(NamedTuple):
    """What a section is compared with: FDEs, the numbers of those that its version cannot express, and stubs.

    A function may reach over the `padding` that follows its FDE, with its last row in force; it need not.
    """

    entries: CfiEntries
    skipped: Container[int]
    stubs: StubScan
    padding: Padding


def verify_section(image: ElfImage, truth: Truth, decoded: DecodedSection) -> Verification:
    """Compare a decoded section with the image's CFI and stubs, and check invariants.

    `truth` is for the section's version. At the addresses of PLT stubs their instructions are the truth, everywhere
    else the CFI. Raises `BudgetError` when the comparison is out of proportion to the image's size.
    """
    comparison = Comparison(image, decoded, truth.skipped, truth.padding)
    entries = sorted((e for e in truth.entries if _describes_code(e, image)), key=lambda e: e.fde.pc_begin_vaddr)
    _compare_fdes(comparison, entries, _stub_analysis_overrides(truth.stubs))
    for stubs in truth.stubs.functions:
        compare_stubs(comparison, stubs)
    _find_extra(comparison, entries, truth.stubs)
    differences = {*comparison.differences, *check_invariants(decoded, image)}
    ordered = sorted(differences, key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(entries), comparison.point_count, comparison.left_out_count, tuple(ordered))


def _compare_fdes(comparison: Comparison, fdes: Sequence[CfiEntry], ignored: AddressSet) -> None:
    """Compare FDEs, sorted by start; those that overlap are compared together."""
    whole_functions = WholeFunctions(comparison)
    for entries, begin, end in _clusters(fdes):
        function = whole_functions.function_of(entries[0]) if len(entries) == 1 else None
        compared_end = end
        if function is None:
            compare_points(comparison, entries, begin, end, ignored)
        else:
            whole_functions.compare(entries[0], function)
            compared_end = function.start_vaddr + function.size
        if compared_end < comparison.end_of_padding(end):
            compare_padding(comparison, entries, compared_end, end, ignored)


def _clusters(fdes: Sequence[CfiEntry]) -> Iterator[tuple[Sequence[CfiEntry], int, int]]:
    """Yield runs of overlapping FDEs, each with the addresses `[begin, end)` that they hold together."""
    starts = [entry.fde.pc_begin_vaddr for entry in fdes]
    ends = [start + entry.fde.pc_range for start, entry in zip(starts, fdes, strict=True)]
    first = 0
    while first < len(fdes):
        end, last = ends[first], first + 1
        while last < len(fdes) and starts[last] < end:
            end = max(end, ends[last])
            last += 1
        yield fdes[first:last], starts[first], end
        first = last


def _find_extra(comparison: Comparison, fdes: Sequence[CfiEntry], stubs: StubScan) -> None:
    """Report functions at addresses that neither CFI nor stubs describe."""
    starts = [entry.fde.pc_begin_vaddr for entry in fdes]
    ends = [start + entry.fde.pc_range for start, entry in zip(starts, fdes, strict=True)]
    ranges = list(zip(starts, map(comparison.end_of_padding, ends), strict=True))
    described = AddressSet(ranges + _ranges(stubs))
    lookup = comparison.lookup
    # From the start of the next function on, a look-up finds that one.
    next_starts = (*lookup.starts[1:], 1 << 64)
    for function, next_start in zip(lookup.functions, next_starts, strict=False):
        end = min(function.start_vaddr + function.size, next_start)
        for gap_start, gap_end in described.gaps(function.start_vaddr, end):
            comparison.report("extra", gap_start, f"no CFI for {gap_end - gap_start} bytes of a function")


def _stub_analysis_overrides(stubs: StubScan) -> AddressSet:
    """Return the addresses where the stub analysis overrides the CFI: described stubs, and those that contradict it."""
    contradicted = [(skip.start_vaddr, skip.start_vaddr + skip.size) for skip in stubs.left_out if skip.overrides_cfi]
    return AddressSet(_ranges(stubs) + contradicted)


def _ranges(stubs: StubScan) -> list[tuple[int, int]]:
    return [(function.start_vaddr, function.start_vaddr + function.size) for function in stubs.functions]


def _describes_code(entry: CfiEntry, image: ElfImage) -> bool:
    begin, size = entry.fde.pc_begin_vaddr, entry.fde.pc_range
    return size > 0 and image.holds_code(begin, begin + size)
