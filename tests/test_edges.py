# SPDX-License-Identifier: Apache-2.0
"""Promises of parts of the core that whole conversions cannot test: there a second way leads to the same result."""

from __future__ import annotations

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, UnwindTable
from cfi2sframe.errors import RequestError
from cfi2sframe.lower import Lowering, Target
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.write import RowStore, store_rows
from tests.support.bodies import with_functions
from tests.support.rules import at_cfa, register_offset
from tests.support.samples import parsed_cie

ROW = RowState(register_offset(7, 8), at_cfa(-8), NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


def test_rows_before_the_end_of_a_function() -> None:
    table = UnwindTable((0, 4, 8), (ROW, ROW._replace(fp=at_cfa(-16)), ROW))
    assert [table.before(end).starts for end in (0, 4, 5, 8, 9)] == [(0,), (0,), (0, 4), (0, 4), (0, 4, 8)]


# Lowering


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_that_lower_to_equal_states_are_one_also_from_the_cache(version: int) -> None:
    """A rule that SFrame need not store makes another row of the CFI, and none of the section."""
    other = ROW._replace(fp=NoRule.SAME_VALUE)
    last = ROW._replace(cfa=register_offset(7, 16))
    lowering, cie = Lowering(Target(AMD64, version)), parsed_cie(AMD64)
    states, distinct = (ROW, other, last), (ROW, last)
    first = lowering.lower(UnwindTable((0, 4, 8), states), cie)
    assert isinstance(first, FunctionBody)
    assert first.starts == (0, 8)
    assert lowering.lower(UnwindTable((0, 4, 8), states), cie) == first
    # And where none are equal, the quick way gives what the other one does; also for other starts.
    for _ in range(2):
        assert lowering.lower(UnwindTable((0, 8), distinct), cie) == first
    assert lowering.lower(UnwindTable((0, 6), distinct), cie) == first._replace(starts=(0, 6))
    # What belongs to the CIE is another one's.
    for _ in range(2):
        signal = lowering.lower(UnwindTable((0, 8), distinct), parsed_cie(AMD64, is_signal_frame=True))
        assert signal == first._replace(is_signal_frame=version == 3)


# Bytes


def test_the_rows_of_all_functions_have_32_bits_of_offset() -> None:
    """One body with many starts counts many times, and is stored once."""
    count = 1 << 14
    state = FrameState(Rule(7, 8, deref=False), Rule(None, -8, deref=True), None)
    body = FunctionBody(tuple(range(count)), (state,) * count)

    def rows(times: int) -> RowStore:
        functions = tuple(Function(count * number, count, body) for number in range(times))
        return store_rows(with_functions(Section(2, AMD64.abi_id), functions), AMD64, share=False)

    # Two bytes of start, one of information, one word.
    assert len(rows(1).stored[0]) == 1 << 16
    assert rows((1 << 16) - 1).offsets[-1] == ((1 << 16) - 2) << 16
    with pytest.raises(RequestError, match="more than 4 GiB"):
        rows(1 << 16)
