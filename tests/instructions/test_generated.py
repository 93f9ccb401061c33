# SPDX-License-Identifier: Apache-2.0
"""Random programs whose rows are known by construction: the analysis finds no others, and most of them."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import HealthCheck, given, settings

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.instructions.derive import derive
from cfi2sframe.rules import Rule
from tests.support.instructions.assembled import rows_of, shown
from tests.support.instructions.generated import Body, Generated, Statement, bodies, generated
from tests.support.instructions.handmade import code_file, problems_of
from tests.support.rules import register_offset
from tests.support.samples import TEXT_VADDR

if TYPE_CHECKING:
    from cfi2sframe.dwarf.rules import RowState

pytestmark = pytest.mark.property


def derived_rows(program: Generated) -> dict[int, RowState]:
    """Return the rows from instructions, by offset."""
    image = load(code_file(AMD64, program.code, functions=program.symbols))
    derived = derive(image, ())
    assert problems_of(image, (), derived) == []
    return {vaddr - TEXT_VADDR: row for vaddr, row in rows_of(derived).items()}


def differences(program: Generated) -> list[str]:
    """Return where rows are not those of the maker.

    Where FP has its value again, what was saved of it may still be in its slot, and a row may say so; whether it is
    there shows when the program runs.
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


_STACK_VADDR: Final = 0x7F00_0000_0000
_STACK_SIZE: Final = 0x100000
_MAX_STEPS: Final = 3000


def run(program: Generated, rows: dict[int, RowState], seed: int) -> int:
    """Execute a program from its start; return at how many instructions the rows led to the function's CFA and FP."""
    unicorn = pytest.importorskip("unicorn", reason="no emulator; get it with: pip install unicorn")
    from unicorn import x86_const as x86

    emulator = unicorn.Uc(unicorn.UC_ARCH_X86, unicorn.UC_MODE_64)
    emulator.mem_map(TEXT_VADDR, 0x100000)
    emulator.mem_write(TEXT_VADDR, program.code)
    emulator.mem_map(_STACK_VADDR, _STACK_SIZE)
    sp = _STACK_VADDR + _STACK_SIZE // 2
    for register, value in (
        (x86.UC_X86_REG_RSP, sp),
        (x86.UC_X86_REG_RDI, 0x130),
        (x86.UC_X86_REG_R9, random.Random(seed).getrandbits(64)),  # noqa: S311 - the same each time
    ):
        emulator.reg_write(register, value)
    #: Of each function that is being executed: its CFA, and FP at its entry.
    frames = [(sp + 8, 0)]
    seen, wrong = 0, list[str]()

    def look(_emulator: Any, pc: int, _size: int, _user: object) -> None:  # noqa: ANN401
        nonlocal seen
        here = {6: emulator.reg_read(x86.UC_X86_REG_RBP), 7: emulator.reg_read(x86.UC_X86_REG_RSP)}
        if look_back == [0xE8]:
            frames.append((here[7] + 8, here[6]))
        elif look_back == [0xC3]:
            frames.pop()
        if not frames:
            emulator.emu_stop()
            return
        look_back[:] = [program.code[pc - TEXT_VADDR]]
        row = rows.get(pc - TEXT_VADDR)
        if row is None:
            return
        assert isinstance(row.cfa, Rule)
        assert row.cfa.register is not None
        cfa, fp = here[row.cfa.register] + row.cfa.offset, here[6]
        if cfa == frames[-1][0] and isinstance(row.fp, Rule):
            fp = int.from_bytes(emulator.mem_read(cfa + row.fp.offset, 8), "little")
        if (cfa, fp) != frames[-1]:
            wrong.append(f"{pc:#x}: {shown(row)} lead to {(cfa, fp)}, and the CFA is {frames[-1]}, {here}")
            emulator.emu_stop()
        seen += 1

    look_back: list[int] = []
    emulator.hook_add(unicorn.UC_HOOK_CODE, look)
    # It comes to a trap, or to the end of its first function.
    with suppress(unicorn.UcError):
        emulator.emu_start(TEXT_VADDR, 0, count=_MAX_STEPS)
    assert wrong == []
    return seen


@settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])
@given(bodies())
def test_rows_hold_while_the_program_runs(functions: list[Body]) -> None:
    program = generated([functions[0]._replace(returns=True), *functions[1:]])
    rows = derived_rows(program)
    for seed in range(3):
        assert run(program, rows, seed) > 0


def test_a_wrong_row_is_seen() -> None:
    """What the other tests rely on."""
    program = generated([Body((Statement("push", "rbx", (Statement("move"),)),), False, True, True, b"")])
    assert differences(program) == []
    wrong = {offset: row._replace(cfa=register_offset(7, 8)) for offset, row in program.rows.items()}
    assert differences(program._replace(rows=wrong))
    assert run(program, program.rows, 0) == 4
    with pytest.raises(AssertionError, match="and the CFA is"):
        run(program, wrong, 0)
