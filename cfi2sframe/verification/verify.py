# SPDX-License-Identifier: Apache-2.0
"""Compare a decoded section with the CFI and the stubs of its file."""

from __future__ import annotations

from itertools import compress, count
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.verification.address_set import AddressSet
from cfi2sframe.verification.agreement import Agreement
from cfi2sframe.verification.comparison import Absence, Comparison
from cfi2sframe.verification.findings import Verification
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.point_by_point import compare_padding, compare_points
from cfi2sframe.verification.stub_rows import compare_stubs
from cfi2sframe.verification.whole_functions import WholeFunctions

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.padding import Padding
    from cfi2sframe.plt.scan_records import StubScan
    from cfi2sframe.sframe.model import Section


class Truth(NamedTuple):
    """What a section is compared with: FDEs, and stubs.

    `skipped` are the numbers of the FDEs that the section's version cannot express. `holes` are the virtual addresses
    `[start, end)` that it cannot express of others; FDEs in `may_lack_parts` may be absent altogether for that. A
    function may reach over the `padding` that follows its FDE, with its last row in force; it need not.
    """

    entries: CfiEntries
    skipped: Container[int]
    holes: Sequence[tuple[int, int]]
    may_lack_parts: Container[int]
    stubs: StubScan
    padding: Padding


def verify_section(image: ElfImage, truth: Truth, decoded: Section) -> Verification:
    """Compare a decoded section with the image's CFI and stubs, and check invariants.

    `truth` is for the section's version. At the addresses of PLT stubs their instructions are the truth, everywhere
    else the CFI of the best source that has an FDE there.
    """
    absence = Absence(truth.skipped, AddressSet(truth.holes), truth.may_lack_parts)
    comparison = Comparison(image, decoded, absence, truth.padding, truth.entries.rank_of)
    fdes = _fdes_with_code(truth.entries, image)
    _compare_fdes(comparison, truth.entries, fdes, _stub_analysis_overrides(truth.stubs))
    for stubs in truth.stubs.functions:
        compare_stubs(comparison, stubs)
    _find_extra(comparison, fdes, truth.stubs)
    differences = {*comparison.differences, *check_invariants(decoded, image)}
    ordered = sorted(differences, key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(fdes.numbers), comparison.point_count, comparison.left_out_count, tuple(ordered))


class _Fdes(NamedTuple):
    """The FDEs that describe code, sorted by start, as columns: numbers, and the addresses `[starts[N], ends[N])`."""

    numbers: list[int]
    starts: list[int]
    ends: list[int]


def _fdes_with_code(entries: CfiEntries, image: ElfImage) -> _Fdes:
    """Return the FDEs that describe code, without those whose code is all described by better sources."""
    fdes, *others = (_fdes_of(group, entries, image) for group in entries.precedence)
    for other in others:
        if other.numbers:
            fdes = _with_others(fdes, other)
    return fdes


def _with_others(better: _Fdes, other: _Fdes) -> _Fdes:
    """Return FDEs with those of a lesser source that hold an address which none of them holds."""
    held = AddressSet(zip(better.starts, better.ends, strict=True))
    added = [fde for fde in zip(other.starts, other.numbers, other.ends, strict=True) if any(held.gaps(fde[0], fde[2]))]
    both = sorted([*zip(better.starts, better.numbers, better.ends, strict=True), *added])
    return _Fdes([fde[1] for fde in both], [fde[0] for fde in both], [fde[2] for fde in both])


def _fdes_of(source: Sequence[int], entries: CfiEntries, image: ElfImage) -> _Fdes:
    """Return the FDEs of a source that describe code."""
    numbers = sorted(source, key=entries.starts.__getitem__)
    starts = [entries.starts[number] for number in numbers]
    ends = [start + entries.sizes[number] for start, number in zip(starts, numbers, strict=True)]
    denied = {*image.not_code(starts, ends), *compress(count(), map(eq, starts, ends))}
    if denied:
        kept = [place for place in range(len(numbers)) if place not in denied]
        numbers, starts, ends = ([column[place] for place in kept] for column in (numbers, starts, ends))
    return _Fdes(numbers, starts, ends)


def _compare_fdes(comparison: Comparison, entries: CfiEntries, fdes: _Fdes, ignored: AddressSet) -> None:
    """Compare FDEs; those that overlap are compared together."""
    clusters = list(_clusters(fdes))
    alone = _alone(comparison, fdes, clusters, ignored)
    agreement = Agreement(comparison, entries, [fdes.numbers[first] for first in alone])
    places = set(alone) if agreement.is_possible else set()
    whole_functions = WholeFunctions(comparison)
    for first, last, end in clusters:
        if first in places and agreement.count(fdes.numbers[first]):
            continue
        cluster = [entries[number] for number in fdes.numbers[first:last]]
        # Joined, the stubs of a PLT may fill the range of its FDE, which does not hold for them.
        may_be_whole = len(cluster) == 1 and not ignored.meets(fdes.starts[first], end)
        function = whole_functions.function_of(cluster[0]) if may_be_whole else None
        compared_end = end
        if function is None:
            compare_points(comparison, cluster, fdes.starts[first], end, ignored)
        else:
            whole_functions.compare(cluster[0], function)
            compared_end = function.start_vaddr + function.size
        if compared_end < comparison.end_of_padding(end):
            compare_padding(comparison, cluster, compared_end, end, ignored)


def _clusters(fdes: _Fdes) -> Iterator[tuple[int, int, int]]:
    """Yield runs of overlapping FDEs: the places `[first, last)`, and the end of the addresses that they hold."""
    starts, ends = fdes.starts, fdes.ends
    first = 0
    while first < len(starts):
        end, last = ends[first], first + 1
        while last < len(starts) and starts[last] < end:
            end = max(end, ends[last])
            last += 1
        yield first, last, end
        first = last


def _alone(
    comparison: Comparison, fdes: _Fdes, clusters: Sequence[tuple[int, int, int]], ignored: AddressSet
) -> list[int]:
    """Return the places of FDEs that overlap no other and, with the padding after them, none of `ignored`.

    One that ends with the last address is not among them: what follows it has no address in a `TruthColumn`.
    """
    next_starts = [*fdes.starts[1:], (1 << 64) - 1]
    ends = list(map(comparison.end_of_padding, fdes.ends))
    return [
        first
        for first, last, _ in clusters
        if last == first + 1
        and ends[first] <= next_starts[first]
        and not ignored.meets(fdes.starts[first], ends[first])
    ]


def _find_extra(comparison: Comparison, fdes: _Fdes, stubs: StubScan) -> None:
    """Report functions at addresses that neither CFI nor stubs describe."""
    ranges = list(zip(fdes.starts, map(comparison.end_of_padding, fdes.ends), strict=True))
    described = AddressSet(ranges + _ranges(stubs))
    lookup = comparison.lookup
    # From the start of the next function on, a look-up finds that one.
    next_starts = (*lookup.starts[1:], 1 << 64)
    held = list(zip(lookup.starts, map(min, lookup.ends, next_starts), strict=True))
    if all(next(described.gaps(start, end), None) is None for start, end in AddressSet(held).ranges):
        return
    for start, end in held:
        for gap_start, gap_end in described.gaps(start, end):
            comparison.report("extra", gap_start, f"no CFI for {gap_end - gap_start} bytes of a function")


def _stub_analysis_overrides(stubs: StubScan) -> AddressSet:
    """Return the addresses where the stub analysis overrides the CFI: described stubs, and those that contradict it."""
    contradicted = [(skip.start_vaddr, skip.start_vaddr + skip.size) for skip in stubs.left_out if skip.overrides_cfi]
    return AddressSet(_ranges(stubs) + contradicted)


def _ranges(stubs: StubScan) -> list[tuple[int, int]]:
    return [(function.start_vaddr, function.start_vaddr + function.size) for function in stubs.functions]
