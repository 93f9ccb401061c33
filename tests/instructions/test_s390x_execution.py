# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions against an emulator that executes them, one by one."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.abi import S390X
from cfi2sframe.instructions.decoder import open_disassembler
from cfi2sframe.instructions.effects import JUMP, NOTHING, Flow
from cfi2sframe.instructions.s390x import ABI, FLOATS, S390xText
from tests.support.instructions.concrete import Expected, expect
from tests.support.instructions.s390x_cases import UNKNOWN, assemble
from tests.support.instructions.s390x_machine import (
    CODE_VADDR,
    CRASHING,
    GENERAL_COUNT,
    WINDOW_SIZE,
    WINDOW_VADDR,
    Machine,
    State,
)
from tests.support.targets import S390

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from cfi2sframe.instructions.effects import Effect
    from tests.support.oracle.tools import CorpusArch

pytestmark = pytest.mark.oracle

_WINDOW_END: Final = WINDOW_VADDR + WINDOW_SIZE
_STEP: Final = 64
#: Operands that equal but for the numbers of registers and for numbers have one shape.
_REGISTER_NUMBER: Final = re.compile(r"(%[racfv])\d+")
_NUMBER: Final = re.compile(r"-?\b(?:0x[0-9a-f]+|\d+)\b")
#: How often an instruction is executed, and how many of the same shape.
_RUNS: Final = 6
_EXAMPLES: Final = 2
#: What stores to where registers point, as many bytes as other registers say.
_UNBOUNDED_STORES: Final = frozenset(
    {"mvcl", "mvcle", "mvclu", "mvst", "mvck", "mvcos", "tre", "troo", "trot", "trto", "trtt", "kimd", "klmd", "kmac"}
    | {"km", "kmc", "kmf", "kmo", "kmctr", "kma", "pcc", "ppno", "prno"}
    | {"cu12", "cu14", "cu21", "cu24", "cu41", "cu42", "cuutf", "cutfu", "csst"}
)
#: The first bytes of the instructions of many kinds that compilers use.
_FIRST_BYTES: Final = bytes.fromhex("a5a7b2b3b9b9b9b9c0c2c4c6cce3e3e3e3e5e7ebebebecececed")
#: Of the assembler's instructions, those that are not executed, or that the emulator does not know.
_NOT_EXECUTED: Final = frozenset(
    {"svc 0", "svc 5", "exrl %r1,.+64", "bi 8(%r1)", "bine 8(%r1)", "bic 5,8(%r1)", "czdt %f0,8(5,%r15),0"}
    | {"lmd %r6,%r9,0(%r1),0(%r2)", "bctgr %r1,%r1", "bxleg %r1,%r2,0(%r1)", *UNKNOWN}
)
#: Files of the cross compiler's C library: the first has hand-written assembly.
_FILES: Final = ("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libatomic.so.1")


class Instruction(NamedTuple):
    """An instruction, and its text at `CODE_VADDR`."""

    code: bytes
    mnemonic: str
    operands: str

    @property
    def effect(self) -> Effect | None:
        """What is to be shown."""
        return ABI.effect_of(CODE_VADDR, len(self.code), self.mnemonic, self.operands)


def decode(data: bytes, vaddr: int) -> Iterator[Instruction]:
    """Yield the instructions of some code, in order; what is none is passed over."""
    disassembler = open_disassembler(ABI, "code is read")
    offset = 0
    while offset < len(data):
        for address, size, mnemonic, operands in disassembler.disasm_lite(data[offset:], vaddr + offset):
            yield Instruction(data[address - vaddr : address - vaddr + size], mnemonic, operands)
            offset = address - vaddr + size
        offset += S390X.instruction_alignment


def at_code_vaddr(code: bytes) -> Instruction | None:
    """Return an instruction as it is executed here; None where the bytes are none."""
    return next((i for i in decode(code, CODE_VADDR) if i.code == code), None)


def random_registers(choice: random.Random) -> dict[int, int]:
    """Return values of all registers: some lead into the window, to code, or are small."""

    def point() -> int:
        return WINDOW_VADDR + choice.randrange(WINDOW_SIZE // 4, WINDOW_SIZE * 3 // 4) & ~7

    kinds: tuple[Callable[[], int], ...] = (
        point,
        point,
        point,
        lambda: choice.randrange(64),
        lambda: -choice.randrange(1, 64) & (1 << 64) - 1,
        lambda: CODE_VADDR + 2 * choice.randrange(4096),
        lambda: choice.getrandbits(64),
    )
    only_points = choice.random() < 0.4
    general = {n: point() if only_points else choice.choice(kinds)() for n in range(GENERAL_COUNT)}
    return general | {register: choice.getrandbits(64) for register in FLOATS}


def differences(instruction: Instruction, effect: Effect, before: State, after: State) -> list[str]:
    """Return what an effect says otherwise than the machine."""

    def read(vaddr: int, count: int) -> int | None:
        if not WINDOW_VADDR <= vaddr <= _WINDOW_END - count:
            return None
        return int.from_bytes(before.window[vaddr - WINDOW_VADDR :][:count], "big")

    expected = expect(effect, before.registers, read)
    return [
        *_in_registers(expected, before, after),
        *_in_memory(instruction, expected, before, after),
        *_in_flow(effect, expected, after, CODE_VADDR + len(instruction.code)),
    ]


def _in_registers(expected: Expected, before: State, after: State) -> Iterator[str]:
    for register, value in after.registers.items():
        if register not in expected.registers:
            if value != before.registers[register]:
                yield f"r{register} changes and is not named"
            continue
        wanted = expected.registers[register]
        if wanted is not None and wanted != value:
            yield f"r{register} is {value:x}, not {wanted:x}"


def _in_memory(instruction: Instruction, expected: Expected, before: State, after: State) -> Iterator[str]:
    announced: set[int] = set()
    for vaddr, size, value in expected.stores:
        announced.update(range(vaddr, vaddr + size))
        if value is not None and WINDOW_VADDR <= vaddr <= _WINDOW_END - size:
            stored = int.from_bytes(after.window[vaddr - WINDOW_VADDR :][:size], "big")
            if stored != value:
                yield f"{stored:x} is stored, not {value:x}"
    if before.window == after.window or _stores_elsewhere(instruction):
        return
    for start in range(0, WINDOW_SIZE, _STEP):
        old, new = before.window[start : start + _STEP], after.window[start : start + _STEP]
        for place, (one, other) in enumerate(zip(old, new, strict=True)):
            if one != other and WINDOW_VADDR + start + place not in announced:
                yield f"a byte at {WINDOW_VADDR + start + place:x} is stored to and not announced"


def _stores_elsewhere(instruction: Instruction) -> bool:
    """Whether an instruction stores to an address that is no sum of one register and a number."""
    text = S390xText(CODE_VADDR, len(instruction.code), instruction.mnemonic, instruction.operands)
    places = [text.memory(place) for place, operand in enumerate(text.operands) if "(" in operand]
    return instruction.mnemonic in _UNBOUNDED_STORES or any(each.index != NOTHING for each in places)


def _in_flow(effect: Effect, expected: Expected, after: State, end: int) -> Iterator[str]:
    aim = expected.registers.get(JUMP)
    known: dict[Flow, set[int | None]] = {
        Flow.NEXT: {end},
        Flow.JUMP: {effect.target},
        Flow.CALL: {effect.target if effect.target is not None else aim},
        Flow.BRANCH: {effect.target, end},
        Flow.BRANCH_INDIRECT: {aim, end},
        Flow.STOP: set(),
    }
    ways = known.get(effect.flow, {aim})
    if effect.flow is Flow.NEXT:
        # An instruction may be interrupted in its midst, and is then to be executed again.
        ways.add(CODE_VADDR)
    if effect.flow in (Flow.NEXT, Flow.STOP):
        # A trap: no instruction is there.
        ways.add(CODE_VADDR + 2)
    if after.pc not in ways and not (None in ways and aim is None):
        yield f"control is at {after.pc:x}"


class Outcome(NamedTuple):
    """How often an instruction was executed, and what differed."""

    run_count: int
    differences: list[str]


def try_instruction(machine: Machine, instruction: Instruction, choice: random.Random, runs: int = _RUNS) -> Outcome:
    """Execute an instruction with random registers."""
    effect = instruction.effect
    if effect is None or effect.flow is Flow.EXECUTE or instruction.mnemonic in CRASHING:
        return Outcome(0, [])
    done, found = 0, []
    for _ in range(runs):
        before = State(random_registers(choice), choice.randrange(4), CODE_VADDR, choice.randbytes(WINDOW_SIZE))
        after = machine.execute(instruction.code, before)
        if after is None:
            continue
        done += 1
        found += [
            f"{instruction.mnemonic} {instruction.operands}: {text}"
            for text in differences(instruction, effect, before, after)
        ]
    return Outcome(done, found)


def examples(files: Iterable[Path]) -> Iterator[Instruction]:
    """Yield some instructions of each shape in the code of files."""
    counts: dict[tuple[str, str], int] = {}
    for path in files:
        image = load(path)
        for code in image.code_ranges:
            for each in decode(image.code_bytes(code, code.start_vaddr, code.end_vaddr), code.start_vaddr):
                shape = (each.mnemonic, _NUMBER.sub("N", _REGISTER_NUMBER.sub(r"\1", each.operands)))
                count = counts.get(shape, 0)
                if count == _EXAMPLES:
                    continue
                counts[shape] = count + 1
                here = at_code_vaddr(each.code)
                if here is not None:
                    yield here


@pytest.fixture(scope="module")
def machine() -> Machine:
    return Machine()


def test_instructions_of_the_assembler(machine: Machine, tmp_path: Path) -> None:
    choice = random.Random(1)  # noqa: S311
    for text, (code, _, _) in assemble(tmp_path).items():
        instruction = at_code_vaddr(code)
        assert instruction is not None
        count, found = try_instruction(machine, instruction, choice, 20)
        assert found == [], text
        assert count or text in _NOT_EXECUTED


@pytest.mark.sampled
@pytest.mark.parametrize("name", _FILES)
def test_instructions_of_libraries(name: str, machine: Machine) -> None:
    choice = random.Random(name)  # noqa: S311
    run_count = 0
    for instruction in examples([S390.sysroot / "lib" / name]):
        count, found = try_instruction(machine, instruction, choice)
        assert found == []
        run_count += count
    assert run_count


@pytest.mark.property
@given(
    first=st.one_of(st.sampled_from(sorted(_FIRST_BYTES)), st.integers(0, 255)),
    rest=st.binary(min_size=5, max_size=5),
    seed=st.integers(0, 1 << 32),
)
@settings(max_examples=500, deadline=None)
def test_random_instructions(first: int, rest: bytes, seed: int, machine: Machine) -> None:
    instruction = next(decode(bytes([first]) + rest, CODE_VADDR), None)
    assume(instruction is not None and instruction.code[0] == first)
    assert instruction is not None
    choice = random.Random(seed)  # noqa: S311
    assert try_instruction(machine, instruction, choice).differences == []


@pytest.mark.corpus
@pytest.mark.slow
def test_instructions_of_the_corpus(machine: Machine, corpus: Callable[[CorpusArch], Path]) -> None:
    choice = random.Random(2)  # noqa: S311
    files = sorted(path for path in corpus("s390x").rglob("*") if path.is_file() and not path.is_symlink())
    programs = [path for path in files if path.read_bytes()[:4] == b"\x7fELF"]
    for instruction in examples(programs):
        assert try_instruction(machine, instruction, choice).differences == []
