# SPDX-License-Identifier: Apache-2.0
"""Random programs whose rows are known by construction: the analysis finds no others, and most of them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.rules import NoRule, RowState
from cfi2sframe.instructions.derive import derive
from tests.support.dwarf.rules import register_offset
from tests.support.elf.samples import TEXT_VADDR
from tests.support.instructions.assembled import rows_of, shown
from tests.support.instructions.generated import Body, Generated, Statement, bodies, generated
from tests.support.instructions.handmade import code_file, problems_of

pytestmark = pytest.mark.property


def derived_rows(program: Generated) -> dict[int, RowState]:
    """Return the rows from instructions, by offset."""
    image = load(code_file(AMD64, program.code, functions=program.symbols))
    derived = derive(image, ())
    assert problems_of(image, (), derived) == []
    return {vaddr - TEXT_VADDR: row for vaddr, row in rows_of(derived).items()}


def differences(program: Generated) -> list[str]:
    """Return where rows are not those of the maker.

    Where FP has its value again, what was saved of it may still be in its slot, and a row may say so.
    """
    rows = {
        offset: row._replace(fp=NoRule.UNSPECIFIED)
        if offset in program.rows and program.rows[offset].fp is NoRule.UNSPECIFIED and isinstance(row.fp, Rule)
        else row
        for offset, row in derived_rows(program).items()
    }
    return [
        f"{offset:#x}: {shown(program.rows.get(offset))} was made, {shown(row)} is found"
        for offset, row in rows.items()
        if row != program.rows.get(offset)
    ]


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(bodies())
def test_rows_are_those_of_the_maker(functions: list[Body]) -> None:
    assert differences(generated(functions)) == []


@settings(max_examples=60, suppress_health_check=[HealthCheck.filter_too_much])
@given(bodies())
def test_all_rows_are_found_where_all_functions_return(functions: list[Body]) -> None:
    program = generated([body._replace(returns=True, dead=b"") for body in functions])
    assert derived_rows(program).keys() == program.rows.keys()


def test_a_wrong_row_is_seen() -> None:
    """What the other tests rely on."""
    program = generated([Body((Statement("push", "rbx", (Statement("move"),)),), False, True, True, b"")])
    assert differences(program) == []
    wrong = {offset: row._replace(cfa=register_offset(7, 8)) for offset, row in program.rows.items()}
    assert differences(program._replace(rows=wrong))
