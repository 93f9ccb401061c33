# SPDX-License-Identifier: Apache-2.0
"""What an instruction does to registers, to the stack and to the flow of control, as data: the same words for all ABIs.

Registers have their DWARF numbers, so that rows can be made of them. Only values that a frame depends on are followed:
copies of SP and FP, the RA, what is saved in the frame, and addresses of code and of tables of jumps. An effect names
every register whose value an instruction changes, and nothing else: flags, vectors and memory that no register of the
frame points to are left out.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - part of a NamedTuple's fields
from enum import IntEnum
from typing import Any, Final, NamedTuple

#: In place of a register where there is none: no base, a source of unknown value.
NOTHING: Final = -1
#: A register of no ABI: where an indirect jump leads.
JUMP_TARGET: Final = 1000
#: Another one: a value that a step leaves for the next step of the same effect.
BETWEEN_STEPS: Final = 1001
#: DWARF's pseudo-register for AArch64 (AADWARF64, 4.1): 0 where the RA is an address, 1 where the A key has signed it,
#: 2 where the B key has.
RA_SIGN_STATE: Final = 34


class Op(IntEnum):
    """The operations on values; their operands are fields of `Step`. Sums are modulo 2**64."""

    MOVE = 0
    """register = source + offset; of a copy of fewer than 8 bytes, the low `size` bytes, signed where `is_signed`"""
    CONSTANT = 1
    """register = offset, an address or a number; of a number of 1 byte, the others are as they were"""
    NUMBER = 11
    """register = offset, a number that cannot be an address of code or data"""
    ABSOLUTE = 12
    """register = offset, a number that may be an address only where the file has fixed addresses"""
    LOAD = 2
    """register = the `size` bytes at source + offset, signed where `is_signed`; at offset where source is `NOTHING`"""
    STORE = 3
    """the `size` bytes at register + offset = source; an unknown value where source is `NOTHING`"""
    FORGET = 4
    """register = a value that cannot be told (also SP, after an alignment or after an unknown sum)"""
    ADD = 5
    """register = register + source * scale: of the source, the low `size` bytes, signed where `is_signed`.

    A word of a table of jumps may count instructions (scale 4); a difference has scale -1."""
    LOAD_INDEXED = 6
    """register = the `size` bytes at source + index * scale + offset, signed where `is_signed`: a table of jumps.

    Where source is `NOTHING` the table is at offset."""
    LIMIT = 8
    """register = a number of at most offset, as after a mask: an index into a table of jumps"""
    COMPARE = 7
    """the flags tell how the low `size` bytes of register and source, or of register and offset, compare.

    Numbers are signed where `is_signed`. Where there is no source it is `NOTHING`; where register is `NOTHING`, too,
    the flags tell nothing of two values."""
    SCALE = 9
    """register = register * scale: an index of words"""
    COMPARE_AND_BRANCH = 10
    """as COMPARE, but for the branch of the same instruction only: the flags stay as they are"""


class Step(NamedTuple):
    """One operation; fields that it does not have are 0 or `NOTHING`."""

    op: Op
    register: int
    source: int = NOTHING
    offset: int = 0
    size: int = 8
    index: int = NOTHING  # type: ignore[assignment]  # hides tuple.index
    scale: int = 1
    is_signed: bool = False


class Flow(IntEnum):
    """Where control continues after an instruction; `Effect.target` is the target of a direct jump or call."""

    NEXT = 0
    JUMP = 1
    BRANCH = 2
    """To the target, or to the next instruction."""
    CALL = 3
    """To the target, which comes back to the next instruction if it comes back."""
    JUMP_INDIRECT = 4
    """To the address in `JUMP_TARGET`."""
    CALL_INDIRECT = 5
    """To an address that is not known."""
    RETURN = 6
    """To the RA: on top of the stack (AMD64), or in `JUMP_TARGET`."""
    STOP = 7
    """Nowhere: a trap."""
    SYSTEM_CALL = 8
    """To the next instruction, unless the call with the number in `JUMP_TARGET` ends the thread or a signal."""
    BRANCH_INDIRECT = 9
    """To the address in `JUMP_TARGET`, or to the next instruction: a conditional return where that is the RA."""
    EXECUTE = 10
    """To the next instruction, after the one at the target has been executed (`CodeArch.effect_of_executed`)."""


#: The flows that leave an address to come back to.
CALLS: Final = frozenset({Flow.CALL, Flow.CALL_INDIRECT})
#: The flows that may lead to another function with nothing to come back to: a tail call.
JUMPS: Final = frozenset({Flow.JUMP, Flow.BRANCH, Flow.JUMP_INDIRECT})


class Condition(IntEnum):
    """What is known where a branch is taken, of the two operands of the last comparison."""

    NONE = 0
    EQUAL = 1
    NOT_EQUAL = 2
    ABOVE = 3
    """The first is above the second, as unsigned numbers: it leads past a table of jumps."""
    ABOVE_OR_EQUAL = 4
    BELOW = 5
    BELOW_OR_EQUAL = 6


class Effect(NamedTuple):
    """What an instruction does: its steps, one after the other, and then where control continues.

    `target` is a virtual address. `popped` counts bytes of arguments that a return removes. `condition` is that of a
    branch. `is_padding`: the instruction does nothing, and may fill the space between functions.
    """

    steps: tuple[Step, ...] = ()
    flow: Flow = Flow.NEXT
    target: int | None = None
    popped: int = 0
    condition: Condition = Condition.NONE
    is_padding: bool = False


#: The effect of most instructions: those on vectors and flags.
NO_EFFECT: Final = Effect()


class CodeArch(NamedTuple):
    """What the analysis needs to know of an ABI. Registers are DWARF's numbers; offsets count bytes from the CFA.

    At a function's entry SP is CFA + `entry_sp_offset`, FP and the RA have the caller's values: the RA in
    `ra_register`, or on the stack at CFA + `ra_slot` where that is not None. A call leaves none of the `call_clobbered`
    registers as they were. `red_zone` counts the bytes below SP that signal handlers spare. `alignment` is that of
    instructions. `system_call_register` has the number of a system call, `last_system_calls` are those of Linux's calls
    that do not come back, `sigreturn_calls` those of them that return from a signal, and after `clone_calls` a new
    thread has another stack. `entry_marks` are instructions that functions begin with where jumps are checked or
    addresses are signed; AMD64's is also where a call returns for the second time. `jump_marks` are those at which no
    call may arrive, and no function begins. All marks of an ABI have one size.

    `effect_of(address, size, mnemonic, operands)` returns the effect of an instruction from the text of its
    disassembly (capstone's), which is the same for equal texts unless `depends_on_address`. It knows every instruction:
    one that is in no table changes all registers that its text names, and those that such instructions may change
    without naming them; None: even so it may do anything to SP, or to the flow.
    `prepare(disassembler)` makes capstone's disassembler pass over what it does not know, with a text for `effect_of`.
    `effect_of_executed(executing, mnemonic, operands)` returns the effect of an instruction whose flow is
    `Flow.EXECUTE`, from its operands and the text of the instruction at its target; None as for `effect_of`.
    """

    sp_register: int
    fp_register: int
    ra_register: int
    entry_sp_offset: int
    ra_slot: int | None
    call_clobbered: frozenset[int]
    red_zone: int
    alignment: int
    system_call_register: int
    last_system_calls: frozenset[int]
    sigreturn_calls: frozenset[int]
    clone_calls: frozenset[int]
    entry_marks: tuple[bytes, ...]
    jump_marks: tuple[bytes, ...]
    effect_of: Callable[[int, int, str, str], Effect | None]
    depends_on_address: Callable[[str, str], bool]
    prepare: Callable[[Any], None] | None = None
    effect_of_executed: Callable[[str, str, str], Effect | None] | None = None
