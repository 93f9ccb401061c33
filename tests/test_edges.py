# SPDX-License-Identifier: Apache-2.0
"""Promises of parts of the core that whole conversions cannot test: there a second way leads to the same result."""

from __future__ import annotations

import struct
from unittest.mock import patch

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.dwarf.instructions import Cutter, Instruction, read_instructions
from cfi2sframe.dwarf.machine import RowMachine
from cfi2sframe.dwarf.programs import RowMachines
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, UnwindTable
from cfi2sframe.errors import RequestError
from cfi2sframe.lower import Lowering, Target
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.write import RowStore, store_rows
from tests.support.bodies import section_bytes, with_functions
from tests.support.rules import at_cfa, register_offset
from tests.support.samples import parsed_cie

ROW = RowState(register_offset(7, 8), at_cfa(-8), NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)

# Instructions


def test_instructions_with_their_operands() -> None:
    """An operand in the low six bits comes first; the one of DW_CFA_set_loc is its place."""
    found = list(
        read_instructions(b"\x44\x0e\x90\x01\x86\x02\x15\x05\x7f\x16\x06\x02\x77\x08\x01\x01\x02\x03\x04", "<", 4)
    )
    assert found == [
        Instruction(0, 0x40, (4,), 1),
        Instruction(1, 0x0E, (0x90,), 4),
        Instruction(4, 0x80, (6, 2), 6),
        Instruction(6, 0x15, (5, -1), 9),
        Instruction(9, 0x16, (6, b"\x77\x08"), 14),
        Instruction(14, 0x01, (15,), 19),
    ]


def test_every_advance_begins_a_chunk() -> None:
    """Also those with operands; if they were part of a chunk, the machine would notice and be slow."""
    pieces = [b"\x0e\x10", b"\x02\x10\x0e\x18", b"\x03\x10\x00", b"\x44\x0e\x20\x0a", b"\x04\x01\x00\x00\x00"]
    assert Cutter(0).cut(b"".join(pieces)) == pieces


def test_a_cutter_has_patience() -> None:
    cutter = Cutter(2)
    assert [cutter.cut(b"\x0a") for _ in range(4)] == [None, None, [b"\x0a"], [b"\x0a"]]


def test_rows_before_the_end_of_a_function() -> None:
    table = UnwindTable((0, 4, 8), (ROW, ROW._replace(fp=at_cfa(-16)), ROW))
    assert [table.before(end).starts for end in (0, 4, 5, 8, 9)] == [(0,), (0,), (0, 4), (0, 4), (0, 4, 8)]


def both_ways(machines: RowMachines, code: str) -> UnwindTable:
    """Run a program by looking it up, seeing that it was not interpreted as a whole, and by interpreting it."""
    cie = parsed_cie(AMD64)._replace(instructions=bytes.fromhex("0c 07 08 90 01"))
    with patch.object(RowMachine, "_interpret", None):
        table = machines.of(cie).run(bytes.fromhex(code))
    assert table == RowMachine(cie, AMD64, Cutter(1)).run(bytes.fromhex(code))
    return table


def test_programs_without_expressions_are_looked_up() -> None:
    machines = RowMachines(AMD64, Cutter(0))
    assert both_ways(machines, "41 0e 10 02 20 0e 08").starts == (0, 1, 33)
    # The first chunk without an advance, and one by 0.
    assert both_ways(machines, "0e 10 44 0e 20").starts == (0, 4)
    assert both_ways(machines, "41 0e 10 40 0e 18").starts == (0, 1)
    # A row without length between two equal ones.
    assert both_ways(machines, "41 0e 10 44 0e 18 40 0e 10 44 0e 20").starts == (0, 1, 9)
    # Rows equal to the one before: saving rbx, and nothing.
    assert both_ways(machines, "41 0e 10 42 83 02 41 44 0e 18").starts == (0, 1, 8)


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
    assert len(rows(1).stored[0].data) == 1 << 16
    assert rows((1 << 16) - 1).offsets[-1] == ((1 << 16) - 2) << 16
    with pytest.raises(RequestError, match="more than 4 GiB"):
        rows(1 << 16)


@pytest.mark.parametrize(
    ("start_vaddr", "field"),
    [
        (1 << 62, 1 << 62),
        ((1 << 63) - 1, (1 << 63) - 1),
        # Beyond, the shorter way leads down.
        (1 << 63, -1 << 63),
        ((1 << 64) - 1, -1),
    ],
)
def test_starts_of_version_3_reach_as_far_as_addresses_go(start_vaddr: int, field: int) -> None:
    state = FrameState(Rule(7, 8, deref=False), Rule(None, -8, deref=True), None)
    functions = (Function(start_vaddr, 1, FunctionBody((0,), (state,))),)
    section = with_functions(Section(3, AMD64.abi_id, start_is_pcrel=False), functions)
    assert struct.unpack_from("<q", section_bytes(section, AMD64, 0), 28) == (field,)
