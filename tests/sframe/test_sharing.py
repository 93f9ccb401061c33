# SPDX-License-Identifier: Apache-2.0
"""Equal rows stored once: smaller, and the same answer at every PC."""

from __future__ import annotations

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.read import DecodedSection, read_section
from tests.fuzz.harness import timed
from tests.support.bodies import body_of_rows, section_bytes, with_functions
from tests.support.raw_sframe import RawFunction, RawSection

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
    section = with_functions(Section(version, AMD64.abi_id, start_is_pcrel=version > 1), functions)
    data = section_bytes(section, AMD64, VADDR, share=share)
    return data, read_section(data, VADDR)


PUSH = ((0, 8), (1, 16), (9, 8))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_equal_rows_are_stored_once(version: int) -> None:
    _, decoded = make(version, body(*PUSH), body((0, 8)), body(*PUSH), share=True)
    first, _, last = decoded.records
    assert last.fre_offset == first.fre_offset
    assert decoded.header.fre_count == sum(len(f.rows) for f in decoded.functions)


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize("share", [False, True])
def test_bytes_do_not_depend_on_which_equal_rows_are_one_object(version: int, *, share: bool) -> None:
    one, states = body(*PUSH), body(*PUSH).states
    same_states = [FunctionBody(starts, states) for starts in ((0, 1, 9), (0, 2, 9))]
    interned = [one, body((0, 8)), one, *same_states]
    fresh = [body(*PUSH), body((0, 8)), body(*PUSH), body(*PUSH), body((0, 8), (2, 16), (9, 8))]
    assert interned == fresh
    assert make(version, *interned, share=share)[0] == make(version, *fresh, share=share)[0]


# The bound of what is read


def test_lists_that_overlap_over_and_over_are_refused() -> None:
    """A section of 70 KB whose 2,000 functions each have 8,000 rows, from another one on."""
    rows = b"\0\3\x08" * 10_000
    functions = (RawFunction(rows=rows, row_count=10_000), *(RawFunction(0x20010 + n, rows=b"") for n in range(2000)))
    data = bytearray(RawSection(functions, version=2).assemble())
    for number in range(2000):
        record = 28 + 20 * (number + 1)
        data[record + 8 : record + 16] = (3 * number).to_bytes(4, "little") + (8000).to_bytes(4, "little")
    with pytest.raises(SFrameError, match="the functions' row lists overlap one another over and over"):
        read_section(bytes(data), 0x30000)


def test_functions_with_rows_of_their_own_are_read_in_linear_time() -> None:
    """The rows of one function are found without going through those of all others."""
    data, _ = make(3, *[body((0, 8))] * 40_000, share=False)
    decoded: list[Section] = []
    # Ten times what it takes; the square of their number would take ten seconds.
    assert timed(lambda data: decoded.append(read_section(data, VADDR)), data) < 3
    assert decoded[0].row_count == 40_000
