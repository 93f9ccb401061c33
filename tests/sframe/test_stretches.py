# SPDX-License-Identifier: Apache-2.0
"""Which functions may be joined, which are handled once for all, and which repeating blocks become plain rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, Rule
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.splitting.columns import Columns
from cfi2sframe.sframe.splitting.stretches import make_stretches, unroll_stubs
from tests.support.bodies import body_of_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.sframe.model import FunctionBody

RA: Final = Rule(None, -8, deref=True)
STATES: Final = {offset: FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 24)}


def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
    return words_size(state, AMD64, is_flexible=is_flexible)


def body(*rows: tuple[int, int]) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    return body_of_rows([FrameRow(start, STATES[offset]) for start, offset in rows])


LEAF: Final = body((0, 8))
SHORT: Final = body((0, 16), (6, 24))
#: Many rows, as few functions have.
LONG: Final = body(*[(4 * number, 8 + 8 * (number % 3)) for number in range(30)])
BLOCK: Final = body((0, 8), (11, 16))._replace(repeat_size=16)


def touching(*functions: tuple[int, FunctionBody]) -> list[Function]:
    """Return functions of these sizes, without a gap between them."""
    made: list[Function] = []
    begin = 0x1000
    for size, rows in functions:
        made.append(Function(begin, size, rows))
        begin += size
    return made


def grouped(functions: Sequence[Function]) -> list[tuple[int, int, int | None, int]]:
    """Return each group: its first function and the one after its last, its stretch, and how often that is there."""
    groups, stretches = make_stretches(functions, Columns(size_of, 1))
    return [(*group, 0 if group.stretch is None else stretches[group.stretch].use_count) for group in groups]


@pytest.mark.parametrize(
    ("functions", "unrolled"),
    [
        pytest.param(touching((16, SHORT), (32, BLOCK)), [1], id="after a function"),
        pytest.param(touching((32, BLOCK), (16, SHORT)), [0], id="before a function"),
        pytest.param([Function(0, 16, LEAF), *touching((32, BLOCK), (16, SHORT))], [1], id="before a function only"),
        pytest.param(touching((32, BLOCK), (48, BLOCK)), [0, 1], id="beside each other"),
        pytest.param(touching((16, SHORT), (64, BLOCK)), [1], id="four blocks"),
        pytest.param(touching((16, SHORT), (80, BLOCK)), [], id="five blocks"),
        pytest.param(touching((16, SHORT), (40, BLOCK)), [], id="the last block is not whole"),
        pytest.param(touching((16, SHORT), (28, BLOCK)), [], id="the second of two blocks is not whole"),
        pytest.param(touching((16, SHORT), (12, BLOCK)), [], id="the only block is not whole"),
        pytest.param(touching((32, BLOCK)), [], id="alone"),
        pytest.param(touching((16, BLOCK)), [0], id="one block, alone"),
        pytest.param([Function(0x1000, 16, SHORT), Function(0x1020, 32, BLOCK)], [], id="after a gap"),
        pytest.param([Function(0x1000, 32, BLOCK), Function(0x1040, 16, SHORT)], [], id="before a gap"),
        pytest.param(touching((16, SHORT._replace(uses_b_key=True)), (32, BLOCK)), [], id="after another key"),
        pytest.param(touching((100, LEAF._replace(repeat_size=16))), [0], id="blocks of one row, alone"),
    ],
)
def test_blocks_become_rows_where_they_can_be_joined(functions: list[Function], unrolled: list[int]) -> None:
    """And only there: a function of repeating blocks has one block's rows, however large it is."""
    made = unroll_stubs(functions)
    changed = [number for number, (new, old) in enumerate(zip(made, functions, strict=True)) if new != old]
    assert changed == unrolled
    for new, old in zip(made, functions, strict=True):
        assert (new.start_vaddr, new.size) == (old.start_vaddr, old.size)
        assert new.body.repeat_size == (0 if new != old else old.body.repeat_size)
        assert states_of(new) == states_of(old)


def states_of(function: Function) -> list[FrameState]:
    """Return the row in force at every byte."""
    rows = dict(zip(function.body.starts, function.body.states, strict=True))
    block_size = function.body.repeat_size or function.size
    return [rows[max(start for start in rows if start <= at % block_size)] for at in range(function.size)]


def test_equal_stretches_are_one() -> None:
    """Whatever the size of the last function, which changes no row; a size before that moves the rows after it."""
    once, again, moved = touching((20, SHORT), (9, LEAF)), touching((20, SHORT), (16, LEAF)), touching((21, SHORT))
    moved += [Function(moved[0].start_vaddr + 21, 9, LEAF)]
    functions = [
        function._replace(start_vaddr=function.start_vaddr + 0x1000 * number)
        for number, stretch in enumerate((once, again, moved))
        for function in stretch
    ]
    assert grouped(functions) == [(0, 2, 0, 2), (2, 4, 0, 2), (4, 6, 1, 1)]
    _, stretches = make_stretches(functions, Columns(size_of, 1))
    assert [stretch.more_size for stretch in stretches] == [16 - 9, 0]


def test_a_long_function_that_recurs_is_a_stretch_by_itself() -> None:
    functions = touching((9, LEAF), (200, LONG), (9, LEAF), (20, SHORT), (210, LONG), (20, SHORT))
    assert grouped(functions) == [(0, 1, 0, 1), (1, 2, 1, 2), (2, 4, 2, 1), (4, 5, 1, 2), (5, 6, 3, 1)]


def test_a_long_function_that_is_there_once_is_joined() -> None:
    assert grouped(touching((9, LEAF), (200, LONG), (20, SHORT))) == [(0, 3, 0, 1)]


def test_blocks_are_in_no_stretch() -> None:
    functions = touching((9, LEAF), (160, BLOCK), (160, BLOCK), (9, LEAF), (20, SHORT))
    assert grouped(functions) == [(0, 1, 0, 1), (1, 2, None, 0), (2, 3, None, 0), (3, 5, 1, 1)]


def test_a_stretch_of_many_rows_ends() -> None:
    """Its ranges are chosen together, and by what the ranges of all others are."""
    count = 1000
    groups = grouped(touching(*[(8 + number % 7, SHORT) for number in range(count)]))
    assert 1 < len(groups) < 20
    assert [first for first, _, _, _ in groups] == [0, *(last for _, last, _, _ in groups[:-1])]
    assert groups[-1][1] == count


@pytest.mark.parametrize("size", [1 << 31, (1 << 32) - 1])
def test_no_stretch_has_more_bytes_than_a_range_can_have(size: int) -> None:
    assert [group[:2] for group in grouped(touching((size, SHORT), (1 << 31, LEAF)))] == [(0, 1), (1, 2)]
