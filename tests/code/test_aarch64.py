# SPDX-License-Identifier: Apache-2.0
"""The effects of AArch64's instructions, from the assembler's bytes and capstone's text."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AARCH64_LE
from cfi2sframe.code.aarch64 import AARCH64_CODE
from cfi2sframe.code.effects import (
    BETWEEN_STEPS,
    JUMP_TARGET,
    NOTHING,
    RA_SIGN_STATE,
    Condition,
    Effect,
    Flow,
    Op,
    Step,
)
from cfi2sframe.code.machines import open_for_code
from tests.support.targets import AARCH64, need

if TYPE_CHECKING:
    from pathlib import Path

_START: Final = 0x10000
SP, FP, RA = 31, 29, 30
_FLAGS: Final = Step(Op.COMPARE, NOTHING)


def _move(register: int, source: int, offset: int = 0, size: int = 8, *, is_signed: bool = False) -> Step:
    return Step(Op.MOVE, register, source, offset, size, is_signed=is_signed)


def _constant(register: int, value: int) -> Step:
    return Step(Op.CONSTANT, register, offset=value)


def _number(register: int, value: int) -> Step:
    return Step(Op.NUMBER, register, offset=value)


def _load(register: int, base: int, offset: int = 0, size: int = 8, *, is_signed: bool = False) -> Step:
    return Step(Op.LOAD, register, base, offset, size, is_signed=is_signed)


def _store(base: int, source: int, offset: int = 0, size: int = 8) -> Step:
    return Step(Op.STORE, base, source, offset, size)


def _add(register: int, source: int, scale: int = 1, size: int = 8, *, is_signed: bool = False) -> Step:
    return Step(Op.ADD, register, source, size=size, scale=scale, is_signed=is_signed)


def _indexed(register: int, base: int, index: int, scale: int, size: int, *, is_signed: bool = False) -> Step:
    return Step(Op.LOAD_INDEXED, register, base, 0, size, index, scale, is_signed)


def _limit(register: int, limit: int) -> Step:
    return Step(Op.LIMIT, register, offset=limit)


def _compare(register: int, source: int = NOTHING, number: int = 0, size: int = 8) -> Step:
    return Step(Op.COMPARE, register, source, number, size)


def _forget(*registers: int) -> tuple[Step, ...]:
    return tuple(Step(Op.FORGET, register) for register in registers)


#: Instructions that go on to the next one: the assembler's text, and the steps.
_STEPS: Final[list[tuple[str, tuple[Step, ...]]]] = [
    # Copies and sums
    ("mov x29, sp", (_move(FP, SP),)),
    ("mov sp, x29", (_move(SP, FP),)),
    ("mov x0, x30", (_move(0, RA),)),
    ("mov w0, w1", (_move(0, 1, size=4),)),
    ("mov x0, xzr", (_number(0, 0),)),
    ("mov wsp, w0", _forget(SP)),
    ("mov xzr, x1", ()),
    ("mov x9, v0.d[1]", _forget(9)),
    ("sub sp, sp, #0x40", (_move(SP, SP, -0x40),)),
    ("sub sp, sp, #3, lsl #12", (_move(SP, SP, -0x3000),)),
    ("add sp, x29, #0x10", (_move(SP, FP, 0x10),)),
    ("sub x9, sp, #0x1d0", (_move(9, SP, -0x1D0),)),
    ("add x29, sp, #1, lsl #12", (_move(FP, SP, 0x1000),)),
    ("add w0, w0, #8", _forget(0)),
    ("add wsp, wsp, #8", _forget(SP)),
    ("sub wsp, w0, #8", _forget(SP)),
    ("add x0, x0, x1", (_add(0, 1),)),
    ("add x0, x1, x0", (_add(0, 1),)),
    ("add x0, x1, x2", (_move(0, 1), _add(0, 2))),
    ("add x0, x1, x2, lsl #2", (_move(0, 1), _add(0, 2, 4))),
    ("add x0, x1, x0, lsl #2", (_move(BETWEEN_STEPS, 0), _move(0, 1), _add(0, BETWEEN_STEPS, 4))),
    ("add x0, x1, x2, lsr #2", _forget(0)),
    ("add x0, x1, w2, sxth #2", (_move(0, 1), _add(0, 2, 4, 2, is_signed=True))),
    ("add x0, x0, w2, uxtb", (_add(0, 2, 1, 1),)),
    ("sub sp, sp, x16", (_add(SP, 16, -1),)),
    ("sub sp, sp, w1, uxtw #4", (_add(SP, 1, -16, 4),)),
    ("sub sp, x29, x1, lsl #3", (_move(SP, FP), _add(SP, 1, -8))),
    ("add x0, xzr, x1, lsl #1", _forget(0)),
    ("neg x0, x1", _forget(0)),
    ("adds x0, x1, #4", (_FLAGS, _move(0, 1, 4))),
    ("subs x8, x8, #7", (_compare(8, number=7), _move(8, 8, -7))),
    ("subs w8, w9, #7", (_compare(9, number=7, size=4), *_forget(8))),
    # Numbers and addresses; the assembler leaves ADRP, here as .inst, to the linker
    ("mov x16, #-0x1000", (_number(16, -0x1000),)),
    ("mov x16, #0xffff000000000000", (_number(16, -(1 << 48)),)),
    ("mov x0, #0x4321000000000000", (_number(0, 0x4321 << 48),)),
    ("mov w0, #-1", (_number(0, 0xFFFFFFFF),)),
    ("mov w0, #0x55555555", (_number(0, 0x55555555),)),
    ("mov x0, #0x5555555555555555", (_number(0, 0x5555555555555555),)),
    ("mov sp, #0x5555555555555555", (_number(SP, 0x5555555555555555),)),
    ("movz w0, #1, lsl #16", (_number(0, 0x10000),)),
    ("movk x0, #1, lsl #16", _forget(0)),
    ("adr x0, . + 0x20", (_constant(0, _START + 0x20),)),
    (".inst 0xb0000020", (_constant(0, _START + 0x5000),)),
    (".inst 0xb000003f", ()),
    # Alignment, and what else may have SP as its target
    ("and sp, x9, #-64", _forget(SP)),
    ("and sp, x9, #0xff", _forget(SP)),
    ("orr sp, x9, #1", _forget(SP)),
    ("addvl sp, sp, #-3", _forget(SP)),
    ("addpl sp, sp, #-1", _forget(SP)),
    ("addvl x8, sp, #1", _forget(8)),
    ("irg sp, sp", _forget(SP)),
    ("addg sp, sp, #16, #1", _forget(SP)),
    # Indices
    ("and w8, w0, #0xff", (_move(8, 0, size=1),)),
    ("and x8, x0, #0xffff", (_move(8, 0, size=2),)),
    ("and x8, x0, #0xffffffff", (_move(8, 0, size=4),)),
    ("and w8, w0, #7", (_limit(8, 7),)),
    ("and x8, x0, #-2", _forget(8)),
    ("ands x8, x0, #7", (_FLAGS, *_forget(8))),
    ("uxtb w0, w1", (_move(0, 1, size=1),)),
    ("uxth w0, w1", (_move(0, 1, size=2),)),
    ("sxtw x0, w1", (_move(0, 1, size=4, is_signed=True),)),
    ("sxtb x0, w1", (_move(0, 1, size=1, is_signed=True),)),
    ("sxtb w0, w1", _forget(0)),
    ("ubfx x0, x1, #0, #8", (_move(0, 1, size=1),)),
    ("ubfx x0, x1, #4, #3", (_limit(0, 7),)),
    ("lsr w0, w1, #28", (_limit(0, 15),)),
    ("lsr x0, x1, x2", _forget(0)),
    ("cset w0, eq", (_limit(0, 1),)),
    # Loads
    ("ldr x0, [sp, #8]", (_load(0, SP, 8),)),
    ("ldr w0, [sp, #8]", (_load(0, SP, 8, 4),)),
    ("ldrsw x0, [sp, #8]", (_load(0, SP, 8, 4, is_signed=True),)),
    ("ldrh w0, [x1]", (_load(0, 1, 0, 2),)),
    ("ldrb w0, [x1]", (_limit(0, 0xFF),)),
    ("ldrsb w0, [x1]", _forget(0)),
    ("ldur x30, [x29, #-8]", (_load(RA, FP, -8),)),
    ("ldr x30, [sp], #16", (_load(RA, SP), _move(SP, SP, 16))),
    ("ldr x0, [x1], #-16", (_load(0, 1), _move(1, 1, -16))),
    ("ldr x0, [x1, #-16]!", (_move(1, 1, -16), _load(0, 1))),
    ("ldr x0, [x0, #16]", (_load(0, 0, 16),)),
    ("ldr xzr, [sp], #16", (_move(SP, SP, 16),)),
    ("ldr q0, [sp], #16", (_move(SP, SP, 16),)),
    ("ldp x29, x30, [sp], #32", (_load(RA, SP, 8), _load(FP, SP), _move(SP, SP, 32))),
    ("ldp x29, x30, [sp, #16]", (_load(RA, SP, 24), _load(FP, SP, 16))),
    ("ldp x0, x1, [x0]", (_load(1, 0, 8), _load(0, 0))),
    ("ldp x0, x1, [x1]", (_load(0, 1), _load(1, 1, 8))),
    ("ldp w0, w1, [sp]", (_load(1, SP, 4, 4), _load(0, SP, 0, 4))),
    ("ldp d8, d9, [sp], #16", (_move(SP, SP, 16),)),
    ("ldpsw x0, x1, [sp]", (_load(1, SP, 4, 4, is_signed=True), _load(0, SP, 0, 4, is_signed=True))),
    ("ldr x0, . + 0x100", (_load(0, NOTHING, _START + 0x100),)),
    ("ldrsw x0, . + 0x100", (_load(0, NOTHING, _START + 0x100, 4, is_signed=True),)),
    ("ldr q0, . + 0x100", ()),
    ("ldr x0, [x1, x2, lsl #3]", (_indexed(0, 1, 2, 8, 8),)),
    ("ldrsw x0, [x1, x2, lsl #2]", (_indexed(0, 1, 2, 4, 4, is_signed=True),)),
    ("ldrb w1, [x1, w0, uxtw]", (_move(BETWEEN_STEPS, 0, size=4), _indexed(1, 1, BETWEEN_STEPS, 1, 1))),
    ("ldrh w1, [x1, w0, sxtw #1]",
     (_move(BETWEEN_STEPS, 0, size=4, is_signed=True), _indexed(1, 1, BETWEEN_STEPS, 2, 2))),
    ("ldr x0, [x1, xzr]", (_load(0, 1),)),
    ("ldar x0, [sp]", (_load(0, SP),)),
    ("ldxp x0, x1, [x2]", (_load(1, 2, 8), _load(0, 2))),
    ("ldraa x0, [x1, #8]!", _forget(0, 1)),
    ("ld1 {v0.16b, v1.16b}, [sp], #32", (_move(SP, SP, 32),)),
    ("ld1 {v0.16b}, [sp], x1", (_add(SP, 1),)),
    ("ldr z8, [sp, #1, mul vl]", ()),
    # Stores
    ("str x30, [sp, #-16]!", (_move(SP, SP, -16), _store(SP, RA))),
    ("stp x29, x30, [sp, #-32]!", (_move(SP, SP, -32), _store(SP, FP), _store(SP, RA, 8))),
    ("stp x29, x30, [sp, #16]", (_store(SP, FP, 16), _store(SP, RA, 24))),
    ("stp x0, xzr, [sp], #16", (_store(SP, 0), _store(SP, NOTHING, 8), _move(SP, SP, 16))),
    ("stur x30, [x29, #-8]", (_store(FP, RA, -8),)),
    ("str w0, [sp, #4]", (_store(SP, NOTHING, 4, 4),)),
    ("strh w0, [sp]", (_store(SP, NOTHING, 0, 2),)),
    ("strb w0, [sp]", (_store(SP, NOTHING, 0, 1),)),
    ("str d8, [sp, #8]", (_store(SP, NOTHING, 8, 8),)),
    ("stp q0, q1, [sp, #-32]!", (_move(SP, SP, -32), _store(SP, NOTHING, 0, 16), _store(SP, NOTHING, 16, 16))),
    ("str x0, [sp, x1]", ()),
    ("str x0, [x0], #8", (_store(0, NOTHING), _move(0, 0, 8))),
    ("st1 {v0.16b, v1.16b}, [sp]", (_store(SP, NOTHING, 0, 32),)),
    ("st1 {v8.8b, v9.8b, v10.8b, v11.8b}, [sp], #32", (_store(SP, NOTHING, 0, 32), _move(SP, SP, 32))),
    ("st1 {v0.s}[1], [sp]", (_store(SP, NOTHING, 0, 4),)),
    ("st2 {v0.h, v1.h}[1], [x0], x1", (_store(0, NOTHING, 0, 4), _add(0, 1))),
    ("str z8, [sp, #1, mul vl]", (_store(SP, NOTHING, 16, 496),)),
    ("str p8, [sp]", (_store(SP, NOTHING, 0, 32),)),
    ("st1b {z0.b}, p0, [x0]", (_store(0, NOTHING, 0, 1024),)),
    ("stxr w0, x1, [sp]", (_store(SP, NOTHING), *_forget(0))),
    ("stlr x0, [sp]", (_store(SP, 0),)),
    ("stg sp, [sp], #16", (_move(SP, SP, 16),)),
    ("st2g x0, [sp, #-32]!", (_move(SP, SP, -32),)),
    ("stz2g x0, [sp, #32]", (_store(SP, NOTHING, 32, 32),)),
    ("stgp x0, x1, [sp, #-16]!", (_move(SP, SP, -16), _store(SP, 0), _store(SP, 1, 8))),
    ("dc zva, x3", (_store(3, NOTHING, -2047, 4095),)),
    # Atomic operations
    ("ldadd x0, x1, [sp]", (_store(SP, NOTHING), *_forget(1))),
    ("swpalb w0, w1, [x2]", (_store(2, NOTHING, 0, 1), *_forget(1))),
    ("cas x0, x1, [x2]", (_store(2, NOTHING), *_forget(0))),
    ("casp x0, x1, x2, x3, [x4]", (_store(4, NOTHING, 0, 16), *_forget(0, 1))),
    ("stadd w0, [x1]", (_store(1, NOTHING, 0, 4),)),
    ("ld64b x0, [x9]", _forget(*range(8))),
    ("cpyfp [x0]!, [x1]!, x2!", (*_forget(0, 1, 2), _FLAGS)),
    # Comparisons
    ("cmp x0, #10", (_compare(0, number=10),)),
    ("cmp w0, #1, lsl #12", (_compare(0, number=0x1000, size=4),)),
    ("cmp sp, x9", (_compare(SP, 9),)),
    ("cmp x0, w1, sxtw", (_FLAGS,)),
    ("cmn x0, #1", (_FLAGS,)),
    ("ccmp x0, #1, #0, eq", (_FLAGS,)),
    ("tst x0, #1", (_FLAGS,)),
    ("fcmp d0, d1", (_FLAGS,)),
    ("whilelo p0.b, x0, x1", (_FLAGS,)),
    # Pointer authentication
    ("paciasp", (_constant(RA_SIGN_STATE, 1),)),
    ("pacibsp", (_constant(RA_SIGN_STATE, 2),)),
    ("paciaz", (_constant(RA_SIGN_STATE, 1),)),
    ("pacia x30, sp", (_constant(RA_SIGN_STATE, 1),)),
    ("pacib x30, x1", _forget(RA)),
    ("pacia x1, sp", _forget(1)),
    ("autiasp", (_constant(RA_SIGN_STATE, 0),)),
    ("autibsp", (_constant(RA_SIGN_STATE, 0),)),
    ("autib x30, sp", (_constant(RA_SIGN_STATE, 0),)),
    ("autia1716", _forget(17)),
    ("xpaclri", ()),
    ("xpaci x0", _forget(0)),
    # The rest
    ("bti c", ()),
    ("yield", ()),
    ("hint #0x6f", ()),
    ("dmb ish", ()),
    ("mrs x0, tpidr_el0", _forget(0)),
    ("msr tpidr_el0, x0", ()),
    ("msr nzcv, x0", (_FLAGS,)),
    ("fmov x0, d0", _forget(0)),
    ("fmov d0, x0", ()),
    ("umov w0, v0.b[1]", _forget(0)),
    ("add v0.4s, v1.4s, v2.4s", ()),
    ("dup v0.4s, w1", ()),
    ("csel x0, x1, x2, eq", _forget(0)),
    ("madd x0, x1, x2, x3", _forget(0)),
]  # fmt: skip

#: Instructions with another flow, and padding.
_EFFECTS: Final[list[tuple[str, Effect | None]]] = [
    ("nop", Effect(is_padding=True)),
    (".inst 0", Effect(flow=Flow.STOP, is_padding=True)),
    ("udf #1", Effect(flow=Flow.STOP)),
    ("brk #1", Effect(flow=Flow.STOP)),
    ("b . + 0x100", Effect(flow=Flow.JUMP, target=_START + 0x100)),
    ("bl . - 0x100", Effect(flow=Flow.CALL, target=_START - 0x100)),
    ("cbz x0, . + 8", Effect(flow=Flow.BRANCH, target=_START + 8)),
    ("cbnz w0, . + 8", Effect(flow=Flow.BRANCH, target=_START + 8)),
    ("tbz x0, #33, . + 8", Effect(flow=Flow.BRANCH, target=_START + 8)),
    ("tbnz w0, #3, . + 8", Effect(flow=Flow.BRANCH, target=_START + 8)),
    ("b.al . + 8", Effect(flow=Flow.JUMP, target=_START + 8)),
    ("svc #0", Effect((_move(JUMP_TARGET, 8), *_forget(0)), Flow.SYSTEM_CALL)),
    ("br x16", Effect((_move(JUMP_TARGET, 16),), Flow.JUMP_INDIRECT)),
    ("blr x16", Effect((_move(JUMP_TARGET, 16),), Flow.CALL_INDIRECT)),
    ("ret", Effect((_move(JUMP_TARGET, RA),), Flow.RETURN)),
    ("ret x1", Effect((_move(JUMP_TARGET, 1),), Flow.RETURN)),
    ("retaa", Effect((_constant(RA_SIGN_STATE, 0), _move(JUMP_TARGET, RA)), Flow.RETURN)),
    ("retab", Effect((_constant(RA_SIGN_STATE, 0), _move(JUMP_TARGET, RA)), Flow.RETURN)),
    ("braa x0, x1", Effect(_forget(JUMP_TARGET), Flow.JUMP_INDIRECT)),
    ("blraaz x0", Effect(_forget(JUMP_TARGET), Flow.CALL_INDIRECT)),
    ("eret", None),
    ("msr spsel, #0", None),
    ("msr sp_el0, x0", None),
]
_CONDITIONS: Final = {
    "eq": Condition.EQUAL,
    "ne": Condition.NOT_EQUAL,
    "hi": Condition.ABOVE,
    "hs": Condition.ABOVE_OR_EQUAL,
    "lo": Condition.BELOW,
    "ls": Condition.BELOW_OR_EQUAL,
    **dict.fromkeys(("mi", "pl", "vs", "vc", "ge", "lt", "gt", "le"), Condition.NONE),
}
_ALL: Final[dict[str, Effect | None]] = {
    **{text: Effect(steps) for text, steps in _STEPS},
    **{f"b.{name} . + 8": Effect((), Flow.BRANCH, _START + 8, 0, which) for name, which in _CONDITIONS.items()},
    **dict(_EFFECTS),
}


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The bytes of each text; targets count from the instruction itself."""
    folder: Path = tmp_path_factory.mktemp("assembled")
    assembler = need(f"{AARCH64.triplet}-as", package=f"binutils-{AARCH64.triplet}")
    path, thing, raw = folder / "in.s", folder / "out.o", folder / "out.bin"
    path.write_text("\n".join((".arch armv8.8-a+sve2+memtag+ls64+mops", *_ALL)) + "\n")
    done = subprocess.run([assembler, "-o", thing, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    subprocess.run([need(f"{AARCH64.triplet}-objcopy"), "-O", "binary", "-j", ".text", thing, raw], check=True)
    code = raw.read_bytes()
    assert len(code) == 4 * len(_ALL)
    return {text: code[4 * number : 4 * number + 4] for number, text in enumerate(_ALL)}


@pytest.mark.oracle
@pytest.mark.parametrize("text", list(_ALL))
def test_effect(text: str, assembled: dict[str, bytes]) -> None:
    disassembler = open_for_code(AARCH64_LE, "code is read")
    decoded = list(disassembler.disasm_lite(assembled[text], _START))
    if not decoded:
        pytest.skip(f"this version of capstone does not know {text}")
    assert AARCH64_CODE.effect_of(*decoded[0]) == _ALL[text]
