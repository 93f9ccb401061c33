# SPDX-License-Identifier: Apache-2.0
"""Who holds an address, found address by address: FDEs and stubs at any places, the analysis of stubs made up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from unittest.mock import patch

from hypothesis import example, given
from hypothesis import strategies as st

from cfi2sframe.abi import AMD64
from cfi2sframe.code_map import CodeMap, map_code
from cfi2sframe.dwarf.programs import CfiEntries, Program
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, UnwindTable
from cfi2sframe.sframe.model import Function, FunctionBody
from cfi2sframe.stubs import scan as scan_stubs
from cfi2sframe.stubs.records import StubReason, StubScan, StubSkip
from tests.support.rules import at_cfa, register_offset
from tests.support.samples import TEXT_VADDR, linked, parsed_cie

if TYPE_CHECKING:
    from collections.abc import Iterator


IMAGE: Final = linked(AMD64)
PLACES: Final = range(TEXT_VADDR, TEXT_VADDR + 48)
ADDRESSES: Final = range(PLACES.start - 2, PLACES.stop + 34)


def _row(offset: int) -> RowState:
    return RowState(register_offset(7, offset), at_cfa(-8), NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


#: (start, size, starts of the rows after the first)
FDES: Final = st.lists(
    st.tuples(st.sampled_from(PLACES), st.integers(1, 32), st.lists(st.integers(1, 12), max_size=3, unique=True)),
    max_size=6,
)
#: Disjoint ranges, and what became of them; None: described.
STUBS: Final = st.lists(st.sampled_from(ADDRESSES), max_size=8, unique=True).flatmap(
    lambda edges: st.tuples(
        st.just(sorted(edges)),
        st.lists(
            st.sampled_from((None, StubReason.DEPTH_CONFLICT)),
            min_size=len(edges),
            max_size=len(edges),
        ),
    )
)


def _entries(fdes: list[tuple[int, int, list[int]]]) -> CfiEntries:
    programs = []
    for number, (_, size, more) in enumerate(fdes):
        starts = (0, *sorted(start for start in more if start < size))
        states = tuple(_row(8 + 8 * place + 64 * number) for place in range(len(starts)))
        programs.append(Program(number, parsed_cie(AMD64), UnwindTable(starts, states)))
    numbers = range(len(fdes))
    return CfiEntries([fde[0] for fde in fdes], [fde[1] for fde in fdes], numbers, numbers, programs, ())


def _holders(code_map: CodeMap) -> dict[int, int]:
    """Return the number of the FDE at each address, checking that pieces ascend and hold something."""
    holders: dict[int, int] = {}
    position = 0
    for number, start, end in code_map.pieces.records:
        assert position <= start < end
        position = end
        holders.update(dict.fromkeys(range(start, end), number))
    return holders


def _stubs_of(edges: list[int], reasons: list[StubReason | None]) -> StubScan:
    ranges = list(zip(edges[::2], edges[1::2], reasons[::2], strict=False))
    return StubScan(
        tuple(Function(start, end - start, FunctionBody((), ())) for start, end, reason in ranges if reason is None),
        tuple(StubSkip(start, end - start, ".plt", reason, "") for start, end, reason in ranges if reason is not None),
    )


def _taken(scan: StubScan) -> Iterator[int]:
    for function in scan.functions:
        yield from range(function.start_vaddr, function.start_vaddr + function.size)


def _mapped(entries: CfiEntries, scan: StubScan) -> CodeMap:
    with patch.object(scan_stubs, "scan_stubs", lambda *_: scan):
        return map_code(IMAGE, entries, 3)


#: A range in the first FDE, two in the second.
APART: Final = (
    [PLACES.start + delta for delta in (1, 3, 10, 12, 14, 16)],
    [None, None, None, None, StubReason.DEPTH_CONFLICT, None],
)


@given(FDES, STUBS)
@example([(PLACES.start, 4, []), (PLACES.start + 8, 16, [])], APART)
def test_stubs_take_their_addresses_from_fdes(
    fdes: list[tuple[int, int, list[int]]], stubs: tuple[list[int], list[StubReason | None]]
) -> None:
    entries, scan = _entries(fdes), _stubs_of(*stubs)
    without, code_map = _mapped(entries, StubScan()), _mapped(entries, scan)
    before, after, taken = _holders(without), _holders(code_map), set(_taken(scan))
    assert after == {vaddr: number for vaddr, number in before.items() if vaddr not in taken}
    assert code_map.replaced == set(before.values()) - set(after.values())
    assert (code_map.dropped, code_map.overlapped) == (without.dropped, without.overlapped)
    assert (code_map.stubs, without.stubs) == (scan, StubScan())
