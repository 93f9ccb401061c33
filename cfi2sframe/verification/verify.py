# SPDX-License-Identifier: Apache-2.0
"""A decoded section against the CFI and the stubs of its file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.plt.scan_records import StubReason
from cfi2sframe.verification.address_set import AddressSet
from cfi2sframe.verification.comparison import Comparison
from cfi2sframe.verification.findings import Verification
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.point_by_point import compare_points
from cfi2sframe.verification.stub_rows import compare_stubs
from cfi2sframe.verification.whole_functions import WholeFunctions

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import Cfi, CfiEntry
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.scan_records import StubScan
    from cfi2sframe.sframe.decode import DecodedSection


def verify_section(image: ElfImage, cfi: Cfi, code_map: CodeMap, decoded: DecodedSection) -> Verification:
    """Compare a decoded section with the image's CFI and stubs, both for the section's version, and check invariants.

    The CFI is the truth, except at the addresses of PLT stubs, where the instructions are. Raises `BudgetError` when
    the comparison is out of proportion to the image's size.
    """
    comparison = Comparison(image, decoded)
    truth = sorted((e for e in cfi.entries if _describes_code(e, image)), key=lambda e: e.fde.pc_begin_vaddr)
    _compare_fdes(comparison, truth, _stub_analysis_overrides(code_map.stubs))
    for stubs in code_map.stubs.functions:
        compare_stubs(comparison, stubs)
    _find_extra(comparison, truth, code_map.stubs)
    differences = {*comparison.differences, *check_invariants(decoded, image)}
    ordered = sorted(differences, key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(truth), comparison.point_count, comparison.left_out_count, tuple(ordered))


def _compare_fdes(comparison: Comparison, truth: Sequence[CfiEntry], ignored: AddressSet) -> None:
    """Compare FDEs, sorted by start; those that overlap are compared together."""
    whole_functions = WholeFunctions(comparison)
    for entries, begin, end in _clusters(truth):
        function = whole_functions.function_of(entries[0]) if len(entries) == 1 else None
        if function is None:
            compare_points(comparison, entries, begin, end, ignored)
        else:
            whole_functions.compare(entries[0], function)


def _clusters(truth: Sequence[CfiEntry]) -> Iterator[tuple[Sequence[CfiEntry], int, int]]:
    """Yield runs of FDEs that overlap one another, and the addresses `[begin, end)` that they hold together."""
    starts = [entry.fde.pc_begin_vaddr for entry in truth]
    ends = [start + entry.fde.pc_range for start, entry in zip(starts, truth, strict=True)]
    first = 0
    while first < len(truth):
        end, last = ends[first], first + 1
        while last < len(truth) and starts[last] < end:
            end = max(end, ends[last])
            last += 1
        yield truth[first:last], starts[first], end
        first = last


def _find_extra(comparison: Comparison, truth: Sequence[CfiEntry], stubs: StubScan) -> None:
    """Report functions at addresses that neither CFI nor stubs describe."""
    ranges = [(entry.fde.pc_begin_vaddr, entry.fde.pc_begin_vaddr + entry.fde.pc_range) for entry in truth]
    described = AddressSet(ranges + _ranges(stubs))
    lookup = comparison.lookup
    # A look-up never finds a function past the start of the next one.
    next_starts = (*lookup.starts[1:], 1 << 64)
    for function, next_start in zip(lookup.functions, next_starts, strict=False):
        end = min(function.start_vaddr + function.size, next_start)
        for gap_start, gap_end in described.gaps(function.start_vaddr, end):
            comparison.report("extra", gap_start, f"no CFI for {gap_end - gap_start} bytes of a function")


def _stub_analysis_overrides(stubs: StubScan) -> AddressSet:
    """Return the addresses where the stub analysis overrides the CFI: stubs, and where it contradicts the CFI."""
    contradicted = [
        (skip.start_vaddr, skip.start_vaddr + skip.size)
        for skip in stubs.left_out
        if skip.reason is StubReason.CFI_DIFFERS
    ]
    return AddressSet(_ranges(stubs) + contradicted)


def _ranges(stubs: StubScan) -> list[tuple[int, int]]:
    return [(function.start_vaddr, function.start_vaddr + function.size) for function in stubs.functions]


def _describes_code(entry: CfiEntry, image: ElfImage) -> bool:
    begin, size = entry.fde.pc_begin_vaddr, entry.fde.pc_range
    return size > 0 and image.holds_code(begin, begin + size)
