# SPDX-License-Identifier: Apache-2.0
"""The owner of each address, one FDE or one PLT stub at most; and the padding after functions.

Readers accept no empty, discarded, repeated or overlapping range. So an address in several FDEs belongs to the best
source and, within that, to the FDE that starts last, as in the search table of `.eh_frame_hdr`; if several do, to the
first in the section. For stubs, instructions override the CFI.
"""

from collections.abc import Callable, Mapping, Sequence
from heapq import heappop, heappush
from itertools import chain, pairwise
from operator import add, itemgetter
from typing import NamedTuple, cast

from cfi2sframe.conversion.fates import Fate
from cfi2sframe.dwarf.fdes import CfiEntries, FdeIndex, ProgramIndex
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.padding import find_padding
from cfi2sframe.range_map import RangeMap, Span
from cfi2sframe.sframe.model import Function
from cfi2sframe.stubs import StubScan, StubSkip
from cfi2sframe.why import Reason


class Ranges(NamedTuple):
    """The ranges of all FDEs, as columns: virtual addresses and sizes in bytes, and their precedence.

    FDEs of one program have equal rows, and are duplicates where their ranges are equal too. `groups` are the FDEs of
    each source, the best one first.
    """

    starts: Sequence[int]
    sizes: Sequence[int]
    programs: Sequence[ProgramIndex]
    groups: Sequence[Sequence[FdeIndex]]


#: The range `[start, end)` of an FDE.
_Claim = tuple[int, int, FdeIndex]


class Resolved(NamedTuple):
    """The FDE that owns each address, and the fates of the FDEs that own none."""

    owners: RangeMap[FdeIndex | None]
    dropped: dict[FdeIndex, Fate]


class CodeMap(NamedTuple):
    """The virtual addresses of an image, each given to one FDE or to one function of stubs at most.

    `without_code` has the fates of the FDEs that own no address. `padding` follows FDEs: the functions before it, if
    they are described, reach over it. `stubs` are those that own addresses, and those that are left out.
    """

    owners: RangeMap[FdeIndex | Function | None]
    without_code: dict[FdeIndex, Fate]
    padding: tuple[Span, ...]
    stubs: StubScan


def owners_of_code(entries: CfiEntries, image: ElfImage) -> Resolved:
    """Give each address of an image's code to one FDE at most."""
    ranges = Ranges(entries.starts, entries.sizes, entries.program_of, entries.precedence)
    return resolve_overlaps(ranges, image.not_code)


def resolve_overlaps(ranges: Ranges, not_code: Callable[[Sequence[int], Sequence[int]], list[int]]) -> Resolved:
    """Give each address to one FDE at most.

    `not_code(starts, ends)` returns the indices of the ranges that are not executable.
    """
    order = sorted(sorted(chain.from_iterable(ranges.groups)), key=ranges.starts.__getitem__)
    starts = list(map(ranges.starts.__getitem__, order))
    ends = list(map(add, starts, map(ranges.sizes.__getitem__, order)))
    claims = list(zip(starts, ends, order, strict=True))
    discarded = not_code(starts, ends)
    dropped = {order[place]: Fate.DISCARDED for place in discarded}
    dropped |= {fde: Fate.EMPTY for start, end, fde in claims if start == end}
    claims = [claim for claim in claims if claim[2] not in dropped] if dropped else claims
    if all(end <= following for (_, end, _), (following, _, _) in pairwise(claims)):
        return Resolved(RangeMap(None, claims), dropped)
    ranks = {fde: rank for rank, group in enumerate(ranges.groups) for fde in group}
    owners: RangeMap[FdeIndex | None] = RangeMap(None, _sweep(claims, ranks))
    return Resolved(owners, dropped | _fates_of_losers(claims, ranks, ranges.programs, owners))


def _fates_of_losers(
    claims: Sequence[_Claim],
    ranks: Mapping[FdeIndex, int],
    programs: Sequence[ProgramIndex],
    owners: RangeMap[FdeIndex | None],
) -> dict[FdeIndex, Fate]:
    """Return the fates of the FDEs that claim code and own none of it."""
    fates: dict[FdeIndex, Fate] = {}
    owning, seen = set(owners.values), set[tuple[int, int, int, int]]()
    for start, end, fde in sorted(claims, key=itemgetter(2)):
        content = ranks[fde], start, end, programs[fde]
        if fde not in owning:
            others = [other for other in owners.within(start, end) if other is not None]
            reason = Fate.BETTER_SOURCE if all(ranks[other] < ranks[fde] for other in others) else Fate.SHADOWED
            fates[fde] = Fate.DUPLICATE if content in seen else reason
        seen.add(content)
    return fates


def _sweep(claims: Sequence[_Claim], ranks: Mapping[FdeIndex, int]) -> list[tuple[int, int, FdeIndex]]:
    """Return the ranges that FDEs own, given claims in ascending order of their starts, and the ranks of sources."""
    # The range of the best source is first, of these the one that starts last, and then the first in the section.
    open_ranges: list[tuple[int, int, FdeIndex, int]] = []
    owned: list[tuple[int, int, FdeIndex]] = []
    at = 0
    for edge, next_edge in pairwise(sorted({edge for start, end, _ in claims for edge in (start, end)})):
        while at < len(claims) and claims[at][0] == edge:
            start, end, fde = claims[at]
            heappush(open_ranges, (ranks[fde], -start, fde, end))
            at += 1
        while open_ranges and open_ranges[0][3] <= edge:
            heappop(open_ranges)
        if not open_ranges:
            continue
        fde = open_ranges[0][2]
        start = edge
        if owned and owned[-1][1:] == (edge, fde):
            start, _, _ = owned.pop()
        owned.append((start, next_edge, fde))
    return owned


def map_code(image: ElfImage, entries: CfiEntries, version: int) -> CodeMap:
    """Give each address to one FDE or to the stubs, which only linked files have; `version` is that of SFrame.

    Raises `InputError` when capstone cannot be loaded.
    """
    resolved = owners_of_code(entries, image)
    stubs = StubScan()
    if not image.is_relocatable:
        from cfi2sframe.stubs.scan import scan_stubs

        stubs = _without_lone_blocks(scan_stubs(image, version), resolved.owners)
    owners = cast("RangeMap[FdeIndex | Function | None]", resolved.owners)
    owning = set(owners.values) if stubs.functions else set()
    for stub in stubs.functions:
        owners.put([stub.start_vaddr], [stub], stub.end_vaddr)
    # A stub may leave an FDE addresses elsewhere.
    replaced = owning.difference(owners.values)
    without_code = resolved.dropped | {
        fde: Fate.STUBS for fde in replaced if fde is not None and not isinstance(fde, Function)
    }
    owned = [(start, end) for start, end, owner in owners if owner is not None]
    padding = find_padding(image, owned)
    # Padding after a stub ends nothing.
    stub_ends = {stub.end_vaddr for stub in stubs.functions}
    after_fdes = tuple([gap for gap in padding if gap.start not in stub_ends])
    return CodeMap(owners, without_code, after_fdes, stubs)


def _without_lone_blocks(stubs: StubScan, owners: RangeMap[FdeIndex | None]) -> StubScan:
    """Return the stubs, and do not count as left out first blocks that nothing enters and that an FDE describes."""

    def is_left(skip: StubSkip) -> bool:
        if skip.reason is not Reason.ENTRY_UNKNOWN:
            return True
        _, end, fde = owners.range_at(skip.start_vaddr)
        return fde is None or skip.start_vaddr + skip.size > end

    return stubs._replace(left_out=tuple(filter(is_left, stubs.left_out)))
