# SPDX-License-Identifier: Apache-2.0
"""Equal rows stored once: smaller, and the same answer at every PC."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.sframe.decode import DecodedSection, decode_section
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, FunctionBody, Rule, Section
from tests.bodies import body_of_rows

VADDR = 0x100000


def body(*rows: tuple[int, int], is_signal_frame: bool = False) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    ra = Rule(None, -8, deref=True)
    return body_of_rows(
        tuple(FrameRow(start, FrameState(Rule(7, offset, deref=False), ra)) for start, offset in rows),
        is_signal_frame=is_signal_frame,
    )


def make(version: int, *bodies: FunctionBody, share: bool) -> tuple[bytes, DecodedSection]:
    functions = tuple(Function(0x1000 * (n + 1), 0x800, each) for n, each in enumerate(bodies))
    section = Section(version, AMD64.abi_id, start_is_pcrel=version > 1).with_functions(functions)
    data = encode_section(plan_section(section, AMD64, VADDR, share=share))
    return data, decode_section(data, VADDR)


PUSH = ((0, 8), (1, 16), (9, 8))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_equal_rows_are_stored_once(version: int) -> None:
    _, decoded = make(version, body(*PUSH), body((0, 8)), body(*PUSH), share=True)
    first, _, last = decoded.functions
    assert last.fre_offset == first.fre_offset
    assert decoded.header.fre_count == sum(len(f.rows) for f in decoded.functions)


@pytest.mark.parametrize(("version", "shares"), [(1, True), (2, True), (3, False)])
def test_a_list_may_be_the_beginning_of_a_longer_one_where_no_attribute_counts_rows(
    version: int, *, shares: bool
) -> None:
    _, decoded = make(version, body((0, 8)), body((0, 8), (1, 16)), body(*PUSH), share=True)
    offsets = {function.fre_offset for function in decoded.functions}
    assert len(offsets) == (1 if shares else 3)


def test_a_beginning_of_another_start_size_is_not_one() -> None:
    _, decoded = make(2, body((0, 8)), body((0, 8), (0x200, 16)), share=True)
    first, second = decoded.functions
    assert first.fre_offset != second.fre_offset


def test_functions_that_differ_in_their_attribute_share_nothing() -> None:
    _, decoded = make(3, body(*PUSH), body(*PUSH, is_signal_frame=True), share=True)
    first, second = decoded.functions
    assert first.fre_offset != second.fre_offset
    assert (first.is_signal_frame, second.is_signal_frame) == (False, True)


rows = st.lists(st.tuples(st.sampled_from((0, 1, 4, 0x100, 0x700)), st.sampled_from((8, 16, 300))), min_size=1)


@given(
    st.sampled_from((1, 2, 3)),
    st.lists(rows.map(lambda pairs: body(*sorted({**dict(pairs), 0: 8}.items()))), min_size=1, max_size=12),
)
def test_sharing_changes_no_function(version: int, bodies: list[FunctionBody]) -> None:
    """Functions may share row bytes: every reader finds rows by offset and count."""
    apart, plain = make(version, *bodies, share=False)
    together, shared = make(version, *bodies, share=True)
    assert len(together) <= len(apart)
    assert [f._replace(fre_offset=0) for f in shared.functions] == [f._replace(fre_offset=0) for f in plain.functions]
    assert shared.header.fre_count == plain.header.fre_count
    last_rows = [f.rows[-1].row.start_delta for f in shared.functions]
    assert all(last < f.size for last, f in zip(last_rows, shared.functions, strict=True))
