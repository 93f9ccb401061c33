# SPDX-License-Identifier: Apache-2.0
"""Instructions of s390x as the assembler takes them, and their effects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cfi2sframe.arch import S390X
from cfi2sframe.code.effects import BETWEEN_STEPS, JUMP_TARGET, NO_EFFECT, NOTHING, Condition, Effect, Flow, Op, Step
from cfi2sframe.code.machines import open_for_code
from tests.support.targets import S390, need, run

if TYPE_CHECKING:
    from pathlib import Path

START: Final = 0x1000
FLAGS: Final = Step(Op.COMPARE, NOTHING)
PADDING: Final = Effect(is_padding=True)


def move(register: int, source: int, offset: int = 0, size: int = 8) -> Step:
    return Step(Op.MOVE, register, source, offset, size)


def constant(register: int, number: int) -> Step:
    return Step(Op.CONSTANT, register, offset=number)


def load(register: int, source: int, offset: int, size: int = 8, *, is_signed: bool = False) -> Step:
    return Step(Op.LOAD, register, source, offset, size, is_signed=is_signed)


def store(register: int, offset: int, source: int = NOTHING, size: int = 8) -> Step:
    return Step(Op.STORE, register, source, offset, size)


def forget(*registers: int) -> tuple[Step, ...]:
    return tuple(Step(Op.FORGET, register) for register in registers)


def add(register: int, source: int) -> Step:
    return Step(Op.ADD, register, source)


def limit(register: int, number: int) -> Step:
    return Step(Op.LIMIT, register, offset=number)


def scale(register: int, factor: int) -> Step:
    return Step(Op.SCALE, register, scale=factor)


def indexed(register: int, source: int, index: int, size: int = 8, offset: int = 0, *, is_signed: bool = False) -> Step:
    return Step(Op.LOAD_INDEXED, register, source, offset, size, index, is_signed=is_signed)


def compare(register: int, source: int = NOTHING, number: int = 0, size: int = 8, *, is_signed: bool = False) -> Step:
    return Step(Op.COMPARE, register, source, number, size, is_signed=is_signed)


def branch_on(step: Step) -> Step:
    return step._replace(op=Op.COMPARE_AND_BRANCH)


def effect(*steps: Step, **fields: Any) -> Effect:  # noqa: ANN401
    return Effect(steps, **fields)


#: What the assembler is given, at START, and the effect.
EFFECTS: Final[dict[str, Effect | None]] = {
    # Prologues and epilogues
    "stmg %r13,%r15,104(%r15)": effect(store(15, 104, 13), store(15, 112, 14), store(15, 120, 15)),
    "stmg %r14,%r1,8(%r2)": effect(store(2, 8, 14), store(2, 16, 15), store(2, 24, 0), store(2, 32, 1)),
    "lmg %r14,%r15,280(%r15)": effect(load(14, 15, 280), load(15, 15, 288)),
    "lmg %r1,%r3,0(%r2)": effect(load(1, 2, 0), load(3, 2, 16), load(2, 2, 8)),
    "lmg %r15,%r0,-8(%r15)": effect(load(0, 15, 0), load(15, 15, -8)),
    "lay %r15,-160(%r15)": effect(move(15, 15, -160)),
    "la %r11,160(%r15)": effect(move(11, 15, 160)),
    "aghi %r15,-160": effect(move(15, 15, -160), FLAGS),
    "agfi %r15,-1000000": effect(move(15, 15, -1000000), FLAGS),
    "slgfi %r15,4096": effect(move(15, 15, -4096), FLAGS),
    "algfi %r15,4294967295": effect(move(15, 15, 0xFFFFFFFF), FLAGS),
    "aghik %r15,%r11,-8": effect(move(15, 11, -8), FLAGS),
    "lgr %r11,%r15": effect(move(11, 15)),
    "ltgr %r15,%r11": effect(move(15, 11), FLAGS),
    "stg %r1,0(%r15)": effect(store(15, 0, 1)),
    "stg %r14,-112(%r15)": effect(store(15, -112, 14)),
    "lg %r14,272(%r15)": effect(load(14, 15, 272)),
    "ldgr %f0,%r14": effect(move(16, 14)),
    "ldgr %f2,%r11": effect(move(17, 11)),
    "lgdr %r14,%f1": effect(move(14, 20)),
    "ldr %f8,%f15": effect(move(24, 31)),
    "std %f8,160(%r15)": effect(store(15, 160, 24)),
    "ld %f9,160(%r15)": effect(load(28, 15, 160)),
    "agr %r15,%r1": effect(add(15, 1), FLAGS),
    "agrk %r15,%r1,%r15": effect(add(15, 1), FLAGS),
    "agrk %r2,%r15,%r3": effect(move(2, 15), add(2, 3), FLAGS),
    "sgr %r15,%r1": effect(*forget(15), FLAGS),
    "sgrk %r15,%r1,%r2": effect(*forget(15), FLAGS),
    "nill %r15,65528": effect(*forget(15), FLAGS),
    "risbg %r15,%r15,0,188,0": effect(*forget(15), FLAGS),
    "lgr %r15,%r15": effect(move(15, 15)),
    # Addresses
    "larl %r1,.+256": effect(constant(1, START + 256)),
    "la %r1,8": effect(constant(1, 8)),
    "la %r1,8(%r1,%r2)": effect(add(1, 2), move(1, 1, 8)),
    "la %r2,0(%r1,%r2)": effect(add(2, 1)),
    "la %r3,0(%r1,%r2)": effect(move(3, 2), add(3, 1)),
    "la %r1,0(%r1,%r1)": effect(*forget(1)),
    "lghi %r1,-1": effect(constant(1, -1)),
    "lgfi %r1,-100000": effect(constant(1, -100000)),
    "llilf %r1,4294967295": effect(constant(1, 0xFFFFFFFF)),
    "llilh %r1,2": effect(constant(1, 0x20000)),
    "llihf %r1,2": effect(constant(1, 2 << 32)),
    "llihh %r1,2": effect(constant(1, 2 << 48)),
    "lhi %r1,5": effect(*forget(1)),
    "basr %r13,%r0": effect(constant(13, START + 2)),
    "bras %r13,.+4": effect(constant(13, START + 4)),
    "lgrl %r1,.+64": effect(load(1, NOTHING, START + 64)),
    "lgfrl %r1,.+64": effect(load(1, NOTHING, START + 64, 4, is_signed=True)),
    # Tables of jumps
    "clgfi %r2,9": effect(compare(2, number=9)),
    "clfi %r2,9": effect(compare(2, number=9, size=4)),
    "clijh %r2,9,.+64": effect(
        branch_on(compare(2, number=9, size=4)), flow=Flow.BRANCH, target=START + 64, condition=Condition.ABOVE
    ),
    "clgijhe %r2,9,.+64": effect(
        branch_on(compare(2, number=9)), flow=Flow.BRANCH, target=START + 64, condition=Condition.ABOVE_OR_EQUAL
    ),
    "llgfr %r2,%r2": effect(move(2, 2, size=4)),
    "lgfr %r2,%r3": effect(move(2, 3, size=4)._replace(is_signed=True)),
    "lr %r2,%r3": effect(*forget(2)),
    "sllg %r1,%r2,3": effect(move(1, 2), scale(1, 8)),
    "sllg %r1,%r1,2": effect(scale(1, 4)),
    "sllg %r1,%r1,2(%r3)": effect(*forget(1)),
    "risbg %r1,%r2,29,188,3": effect(move(1, 2, size=4), scale(1, 8), FLAGS),
    "risbgn %r1,%r2,30,189,2": effect(move(1, 2, size=4), scale(1, 4)),
    "risbg %r1,%r2,56,191,0": effect(move(1, 2, size=1), FLAGS),
    "risbg %r1,%r2,61,191,0": effect(limit(1, 7), FLAGS),
    "risbgn %r1,%r2,58,188,3": effect(limit(1, 7), scale(1, 8)),
    "risbg %r1,%r2,29,60,3": effect(*forget(1), FLAGS),
    "risbgn %r1,%r2,29,187,3": effect(*forget(1)),
    "nilf %r1,7": effect(*forget(1), FLAGS),
    "llgc %r1,0(%r2)": effect(limit(1, 255)),
    "llgh %r1,0(%r2,%r3)": effect(limit(1, 65535)),
    "llc %r1,0(%r2)": effect(*forget(1)),
    "llghr %r1,%r2": effect(limit(1, 65535)),
    "lg %r1,0(%r1,%r2)": effect(indexed(1, 2, 1)),
    "lgf %r1,0(%r2,%r1)": effect(indexed(1, 1, 2, 4, is_signed=True)),
    "agf %r3,0(%r3,%r1)": effect(indexed(BETWEEN_STEPS, 1, 3, 4, is_signed=True), add(3, BETWEEN_STEPS), FLAGS),
    "ag %r3,8(%r15)": effect(*forget(3), FLAGS),
    "b 0(%r1,%r2)": effect(move(JUMP_TARGET, 2), add(JUMP_TARGET, 1), flow=Flow.JUMP_INDIRECT),
    "b 4(%r1)": effect(move(JUMP_TARGET, 1, 4), flow=Flow.JUMP_INDIRECT),
    "br %r1": effect(move(JUMP_TARGET, 1), flow=Flow.JUMP_INDIRECT),
    # Flow
    "br %r14": effect(move(JUMP_TARGET, 14), flow=Flow.RETURN),
    "b 0(%r14)": effect(move(JUMP_TARGET, 14), flow=Flow.RETURN),
    "b 4(%r14)": effect(move(JUMP_TARGET, 14, 4), flow=Flow.JUMP_INDIRECT),
    "ber %r14": effect(move(JUMP_TARGET, 14), flow=Flow.BRANCH_INDIRECT, condition=Condition.EQUAL),
    "bnhr %r14": effect(move(JUMP_TARGET, 14), flow=Flow.BRANCH_INDIRECT, condition=Condition.BELOW_OR_EQUAL),
    "bl 8(%r1)": effect(move(JUMP_TARGET, 1, 8), flow=Flow.BRANCH_INDIRECT, condition=Condition.BELOW),
    "cgibe %r3,0,0(%r14)": effect(
        branch_on(compare(3, is_signed=True)),
        move(JUMP_TARGET, 14),
        flow=Flow.BRANCH_INDIRECT,
        condition=Condition.EQUAL,
    ),
    "bi 8(%r1)": effect(load(JUMP_TARGET, 1, 8), flow=Flow.JUMP_INDIRECT),
    "bine 8(%r1)": effect(load(JUMP_TARGET, 1, 8), flow=Flow.BRANCH_INDIRECT, condition=Condition.NOT_EQUAL),
    "bic 5,8(%r1)": effect(load(JUMP_TARGET, 1, 8), flow=Flow.BRANCH_INDIRECT, condition=Condition.BELOW),
    "j .+64": effect(flow=Flow.JUMP, target=START + 64),
    "jg .-64": effect(flow=Flow.JUMP, target=START - 64),
    "jh .+64": effect(flow=Flow.BRANCH, target=START + 64, condition=Condition.ABOVE),
    "jgnl .+64": effect(flow=Flow.BRANCH, target=START + 64, condition=Condition.ABOVE_OR_EQUAL),
    "jlh .+64": effect(flow=Flow.BRANCH, target=START + 64, condition=Condition.NOT_EQUAL),
    "jo .+64": effect(flow=Flow.BRANCH, target=START + 64),
    "j .+2": effect(flow=Flow.STOP),
    "jne .+2": NO_EFFECT,
    "cgijne %r2,0,.+2": NO_EFFECT,
    "crjl %r1,%r2,.+64": effect(
        branch_on(compare(1, 2, size=4, is_signed=True)),
        flow=Flow.BRANCH,
        target=START + 64,
        condition=Condition.BELOW,
    ),
    "clgrj %r1,%r2,14,.+64": effect(flow=Flow.BRANCH, target=START + 64),
    "cgrt %r1,%r2,8": NO_EFFECT,
    "clgitl %r1,5": NO_EFFECT,
    "brasl %r14,.+64": effect(constant(14, START + 6), flow=Flow.CALL, target=START + 64),
    "bras %r14,.-64": effect(constant(14, START + 4), flow=Flow.CALL, target=START - 64),
    "brasl %r0,.+64": effect(constant(0, START + 6), flow=Flow.CALL, target=START + 64),
    "bras %r13,.+64": effect(constant(13, START + 4), flow=Flow.JUMP, target=START + 64),
    "basr %r14,%r1": effect(move(JUMP_TARGET, 1), constant(14, START + 2), flow=Flow.CALL_INDIRECT),
    "basr %r14,%r14": effect(move(JUMP_TARGET, 14), constant(14, START + 2), flow=Flow.CALL_INDIRECT),
    "bas %r14,8(%r1)": effect(move(JUMP_TARGET, 1, 8), constant(14, START + 4), flow=Flow.CALL_INDIRECT),
    "brctg %r1,.-64": effect(move(1, 1, -1), flow=Flow.BRANCH, target=START - 64),
    "brct %r1,.-64": effect(*forget(1), flow=Flow.BRANCH, target=START - 64),
    "bctgr %r1,%r0": effect(move(1, 1, -1)),
    "bctr %r1,%r0": effect(*forget(1)),
    "bctgr %r1,%r1": effect(move(JUMP_TARGET, 1), move(1, 1, -1), flow=Flow.BRANCH_INDIRECT),
    "brxhg %r1,%r2,.-64": effect(add(1, 2), flow=Flow.BRANCH, target=START - 64),
    "brxh %r1,%r2,.-64": effect(*forget(1), flow=Flow.BRANCH, target=START - 64),
    "bxleg %r1,%r2,0(%r1)": effect(move(JUMP_TARGET, 1), add(1, 2), flow=Flow.BRANCH_INDIRECT),
    "bcr 0,%r7": PADDING,
    "brcl 0,.+64": PADDING,
    "bcr 14,%r0": NO_EFFECT,
    "bcr 15,%r0": NO_EFFECT,
    "exrl %r1,.+64": effect(flow=Flow.EXECUTE, target=START + 64),
    "ex %r1,0(%r2)": None,
    "svc 5": effect(constant(JUMP_TARGET, 5), *forget(2), FLAGS, flow=Flow.SYSTEM_CALL),
    "svc 0": effect(move(JUMP_TARGET, 1), *forget(2), FLAGS, flow=Flow.SYSTEM_CALL),
    "pr": None,
    "bassm %r14,%r1": None,
    "lpswe 0(%r1)": None,
    # Stores
    "st %r1,4(%r11)": effect(store(11, 4, size=4)),
    "sthy %r1,-4(%r11)": effect(store(11, -4, size=2)),
    "stg %r1,0(%r2,%r15)": NO_EFFECT,
    "stm %r14,%r2,8(%r15)": effect(store(15, 8, size=20)),
    "stcm %r1,7,9(%r15)": effect(store(15, 9, size=4)),
    "mvc 160(8,%r15),0(%r2)": effect(store(15, 160)),
    "mvc 160(256,%r15),0(%r2)": effect(store(15, 160, size=256)),
    "xc 160(80,%r15),160(%r15)": effect(store(15, 160, size=80), FLAGS),
    "clc 160(80,%r15),160(%r2)": effect(FLAGS),
    "mvi 160(%r15),1": effect(store(15, 160, size=1)),
    "mvghi 160(%r15),1": effect(store(15, 160)),
    "ni 160(%r15),1": effect(store(15, 160, size=1), FLAGS),
    "agsi 160(%r15),-1": effect(store(15, 160), FLAGS),
    "cs %r1,%r2,8(%r15)": effect(store(15, 8, size=4), *forget(1), FLAGS),
    "cdsg %r2,%r4,16(%r15)": effect(store(15, 16, size=16), *forget(2, 3), FLAGS),
    "laag %r1,%r2,8(%r15)": effect(store(15, 8), *forget(1), FLAGS),
    "stocge %r1,8(%r15)": effect(store(15, 8)),
    "vst %v1,160(%r15)": effect(store(15, 160, size=16)),
    "vstm %v8,%v11,160(%r15)": effect(store(15, 160, size=64)),
    "vsteg %v1,160(%r15),1": effect(store(15, 160)),
    # Other changes
    "vlm %v14,%v20,0(%r1)": effect(*forget(27, 31)),
    "vl %v1,0(%r1)": effect(*forget(20)),
    "vl %v16,0(%r1)": effect(),
    "adbr %f0,%f1": effect(*forget(16), FLAGS),
    "axbr %f0,%f1": effect(*forget(16, 17), FLAGS),
    "cdbr %f0,%f1": effect(FLAGS),
    "cgdbr %r1,0,%f1": effect(*forget(1), FLAGS),
    "locgre %r1,%r2": effect(*forget(1)),
    "mlgr %r2,%r4": effect(*forget(2, 3), FLAGS),
    "dsgr %r4,%r2": effect(*forget(4, 5), FLAGS),
    "flogr %r4,%r2": effect(*forget(4, 5), FLAGS),
    "trt 0(8,%r4),0(%r5)": effect(*forget(1, 2), FLAGS),
    "clst %r4,%r5": effect(*forget(4, 5), FLAGS),
    "mvcle %r4,%r6,0": effect(*forget(4, 5, 6, 7), FLAGS),
    "lm %r14,%r1,0(%r2)": effect(*forget(0, 1, 14, 15)),
    "lmd %r6,%r9,0(%r1),0(%r2)": effect(*forget(6, 7, 8, 9)),
    "stam %a2,%a15,8(%r15)": effect(store(15, 8, size=56)),
    "czdt %f0,8(5,%r15),0": effect(store(15, 8, size=5)),
    "cvd %r1,8(%r15)": effect(store(15, 8)),
    "tm 0(%r2),1": effect(FLAGS),
    "pfd 1,0(%r2)": NO_EFFECT,
    "ipm %r2": effect(*forget(2)),
}


class Decoded(NamedTuple):
    """An instruction's bytes, and its text as capstone has it at START."""

    code: bytes
    mnemonic: str
    operands: str


def assemble(folder: Path) -> dict[str, Decoded]:
    """Return the instructions of `EFFECTS`; skips the test without the assembler."""
    prefix = need(f"{S390.triplet}-as", package="binutils-s390x-linux-gnu").removesuffix("as")
    # Each one starts at the same distance from the one before it.
    spacing = 16
    (folder / "all.s").write_text("".join(f".balign {spacing}\n{text}\n" for text in EFFECTS))
    run([f"{prefix}as", "-march=z14", "-o", folder / "all.o", folder / "all.s"])
    run([f"{prefix}objcopy", "-O", "binary", "-j", ".text", folder / "all.o", folder / "all"])
    code = (folder / "all").read_bytes()
    disassembler = open_for_code(S390X, "code is read")
    found = {}
    for number, text in enumerate(EFFECTS):
        data = code[number * spacing :][:6]
        _, size, mnemonic, operands = next(disassembler.disasm_lite(data, START))
        found[text] = Decoded(data[:size], mnemonic, operands)
    return found
