# SPDX-License-Identifier: Apache-2.0
"""Functions cut into ranges (-O2): the same answer at every PC, in fewer bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import AMD64
from cfi2sframe.sframe.decode import decode_section
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.lookup import Lookup
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.rows import words_size
from cfi2sframe.sframe.split import split_functions
from tests.bodies import body_of_rows

RA = Rule(None, -8, deref=True)
STATES = {offset: FrameState(Rule(7, offset, deref=False), RA) for offset in (8, 16, 24, 32, 300)}
FUNCTION_SIZE = 0x400


def body(*rows: tuple[int, int]) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    return body_of_rows(tuple(FrameRow(start, STATES[offset]) for start, offset in rows))


def functions_of(bodies: list[FunctionBody]) -> tuple[Function, ...]:
    return tuple(Function(0x1000 + FUNCTION_SIZE * n, FUNCTION_SIZE, each) for n, each in enumerate(bodies))


def split(functions: tuple[Function, ...], version: int = 3) -> list[tuple[Function, int]]:
    def size_of(state: FrameState, is_flexible: bool) -> int:  # noqa: FBT001 - the callback's signature
        return words_size(state, AMD64, is_flexible=is_flexible)

    return list(split_functions(functions, version, size_of))


def encode(functions: tuple[Function, ...], version: int) -> bytes:
    section = Section(version, AMD64.abi_id, functions, start_is_pcrel=version > 1)
    return encode_section(plan_section(section, AMD64, 0x100000, share=True))


def prologue_and_epilogue(middle: int) -> FunctionBody:
    """Return a body whose ends recur and whose middle is its own."""
    entry = ((0, 8), (1, 16), (2, 24), (4, 32))
    leave = ((middle, 24), (middle + 1, 16), (middle + 2, 8), (middle + 3, 32))
    return body(*entry, *leave)


def test_recurring_ends_become_ranges_of_their_own() -> None:
    functions = functions_of([prologue_and_epilogue(0x40 + 8 * n) for n in range(40)])
    ranges = split(functions)
    assert [number for _, number in ranges] == sorted(number for _, number in ranges)
    assert len(ranges) == 80
    assert len({id(function.body) for function, _ in ranges}) == 2
    assert len(encode(tuple(f for f, _ in ranges), 3)) < len(encode(functions, 3))


def test_what_does_not_recur_stays_whole() -> None:
    functions = functions_of([prologue_and_epilogue(0x40)])
    assert split(functions) == [(functions[0], 0)]


def test_repeating_blocks_stay_whole() -> None:
    stubs = tuple(Function(0x1000 * n, 0x100, body((0, 8), (11, 16))._replace(repeat_size=16)) for n in range(1, 30))
    assert split(stubs) == [(stub, number) for number, stub in enumerate(stubs)]


@st.composite
def random_bodies(draw: st.DrawFn) -> list[FunctionBody]:
    runs = draw(
        st.lists(
            st.lists(st.tuples(st.integers(1, 6), st.sampled_from(sorted(STATES))), min_size=1, max_size=4),
            min_size=1,
            max_size=3,
        )
    )
    bodies = []
    for _ in range(draw(st.integers(1, 12))):
        rows, position = [(0, 8)], 0
        for _ in range(draw(st.integers(0, 4))):
            position += draw(st.sampled_from((0, 5, 40, 100)))
            for gap, offset in draw(st.sampled_from(runs)):
                position += gap
                if offset != rows[-1][1]:
                    rows.append((position, offset))
        bodies.append(body(*rows))
    return bodies


@given(random_bodies(), st.sampled_from((1, 2, 3)))
def test_every_address_keeps_its_row(bodies: list[FunctionBody], version: int) -> None:
    """An SFrame function is a range of code: cutting one changes no answer, and no reader's conditions."""
    functions = functions_of(bodies)
    ranges = split(functions, version)
    assert sum(function.size for function, _ in ranges) == FUNCTION_SIZE * len(functions)
    plain = Lookup(decode_section(encode(functions, version), 0x100000))
    cut = Lookup(decode_section(encode(tuple(f for f, _ in ranges), version), 0x100000))
    for function in functions:
        starts = {row.start_delta for row in function.body.rows}
        for delta in starts | {start + 1 for start in starts} | {FUNCTION_SIZE - 1}:
            pc = function.start_vaddr + delta
            expected, found = plain.find(pc), cut.find(pc)
            assert expected is not None
            assert expected.row is not None
            assert found is not None
            assert found.row is not None
            assert found.row.row.state == expected.row.row.state
    for function, number in ranges:
        assert function.body.rows[0].start_delta == 0
        assert function.body.rows[-1].start_delta < function.size
        whole = functions[number]
        assert whole.start_vaddr <= function.start_vaddr < whole.start_vaddr + whole.size
