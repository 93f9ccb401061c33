# SPDX-License-Identifier: Apache-2.0
"""The effects of AArch64's instructions, held to their execution by an emulator: real ones, and any others."""

from __future__ import annotations

import random
import re
import struct
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.aarch64 import ABI
from cfi2sframe.instructions.decoder import open_disassembler
from cfi2sframe.instructions.effects import Op
from tests.support.aarch64_execution import REGISTERS, SP, Machine
from tests.support.effect_check import contradictions
from tests.support.instructions.concrete import expect

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cfi2sframe.instructions.effects import Effect, Step
    from tests.support.oracle.tools import CorpusArch

_MASK: Final = (1 << 64) - 1
#: What leaves the exception level, waits, or changes how the emulator runs.
_NOT_EXECUTED: Final = re.compile(
    r"svc|hvc|smc|brk|hlt|udf|eret.*|drps|dcps.|wf.*|msr|sys.*|at|tlbi|ic|dc|hint|sb|t(?:start|commit|cancel)"
)
_MEMORY: Final = re.compile(r"\[(?:([xw]\d+|sp)(?:, ([xw]\d+))?)?")
_INDEXED: Final = re.compile(r"\[[^\]]*, [xwz]\d|\[z|\]!, ")
#: What may store nothing, or fewer bytes than are told: exclusive stores, comparisons, lists of vectors.
_MAY_STORE_LESS: Final = re.compile(
    r"st[1-4] .*|ld(add|clr|eor|set|[su]m).*|swp.*|stl?x.*|cas.*|dc|st\w+ \{ ?z.*|st\w+ [zp]\d.*|stg.*|st2g.*"
)
#: Different instructions that are looked at in one file.
_MOST_WORDS: Final = 40_000
#: Code of compilers, and of people.
_LIBRARIES: Final = ("libc.so.6", "libcrypto.so.3", "libdav1d.so.7", "libx264.so.164", "libgmp.so.10")


class Checker:
    """Executes instructions, one by one, and compares what they do with their effects."""

    def __init__(self, effect_of: Callable[[int, int, str, str], Effect | None] = ABI.effect_of) -> None:
        self.machine = Machine()
        self._effect_of = effect_of
        self.disassembler = open_disassembler(ABI, "code is read")
        #: By mnemonic and shape of operands: how many could be executed.
        self.executed: dict[str, int] = {}
        self.not_executed: dict[str, int] = {}

    def check(self, words: Iterable[int], seed: int) -> list[str]:
        """Return what is wrong with the effects of instructions, each from two states of the registers."""
        code = b"".join(word.to_bytes(4, "little") for word in words)
        start = self.machine.load(code)
        wrong: list[str] = []
        self.disassembler.skipdata = True
        for pc, size, mnemonic, operands in self.disassembler.disasm_lite(code, start):
            if mnemonic != ".byte" and not _NOT_EXECUTED.fullmatch(mnemonic):
                rng = random.Random(seed ^ pc)  # noqa: S311 - values for tests
                wrong += self._check_one(pc, size, mnemonic, operands, rng)
                wrong += self._check_one(pc, size, mnemonic, operands, rng)
        return wrong

    def _check_one(self, pc: int, size: int, mnemonic: str, operands: str, rng: random.Random) -> list[str]:
        effect = self._effect_of(pc, size, mnemonic, operands)
        assert effect is not None, (mnemonic, operands)
        before = _registers(operands, rng)
        flags = rng.getrandbits(4) << 28
        machine = self.machine
        machine.forget()
        expected = expect(effect, before, machine.read)
        after = machine.execute(pc, before, flags)
        shape = f"{mnemonic} {shape_of(operands)}"
        if after is None:
            self.not_executed[shape] = self.not_executed.get(shape, 0) + 1
            return []
        self.executed[shape] = self.executed.get(shape, 0) + 1
        text = f"{mnemonic} {operands}"
        found = contradictions(
            effect,
            pc,
            before,
            expected,
            after,
            machine.read,
            is_plain=_INDEXED.search(operands) is None,
            is_exact=_MAY_STORE_LESS.match(text) is None,
        )
        return [f"{text}: {what}" for what in found]


def shape_of(operands: str) -> str:
    """Return operands without their numbers, but with SP, FP and the zero register by name."""
    text = re.sub(r"#?(?<![\w.])-?(?:0x[0-9a-f]+|\d[\d.]*(?:e[+-]?\d+)?)(?!\w)", "#", operands)
    text = re.sub(r"\bx29\b", "fp", text)
    return re.sub(r"\b([xwbhsdqvzp])\d+\b", r"\1", text)


def _registers(operands: str, rng: random.Random) -> dict[int, int]:
    """Draw values of all registers: those with which memory is addressed have addresses, or indices."""
    numbers = [int(text, 0) for text in re.findall(r"(?<![\w.-])(?:0x[0-9a-f]+|\d+)(?!\w|\.\d)", operands)]
    # Numbers that the text has, and those beside them, are where comparisons tell.
    near = [number + rng.randrange(-1, 2) & _MASK for number in numbers] or [0]
    values = {
        number: rng.choice((rng.getrandbits(64), rng.getrandbits(8), _address(rng), rng.choice(near)))
        for number in REGISTERS
    }
    values[SP] = _address(rng)
    for base, index in _MEMORY.findall(operands):
        if index:
            # Of an index of 32 bits, the others do not count.
            value = rng.getrandbits(64) if index.startswith("w") else rng.getrandbits(12) - (1 << 11) & _MASK
            values[int(index[1:])] = value
        if base:
            values[SP if base == "sp" else int(base[1:])] = _address(rng)
    for base in re.findall(r"^x\d+$", operands):
        values[int(base[1:])] = _address(rng)
    return values


def _address(rng: random.Random) -> int:
    return 0x10_0000_0000 + rng.getrandbits(24) * 64


@pytest.fixture(scope="module")
def checker() -> Checker:
    return Checker()


def _words_by_shape(paths: Iterable[Path], disassembler: Any, most: int) -> dict[str, set[int]]:  # noqa: ANN401
    """Return some words of code for each mnemonic with each shape of operands."""
    found: dict[str, set[int]] = {}
    disassembler.skipdata = True
    for path in paths:
        image = ElfImage(path.read_bytes(), path.name)
        words: set[int] = set()
        for code in image.code_ranges:
            data = image.code_bytes(code, code.start_vaddr, code.end_vaddr)
            words.update(struct.unpack(f"<{len(data) // 4}I", data[: len(data) // 4 * 4]))
        ordered = random.Random(len(words)).sample(sorted(words), min(len(words), _MOST_WORDS))  # noqa: S311 - the same
        for (_, _, mnemonic, operands), word in zip(
            disassembler.disasm_lite(struct.pack(f"<{len(ordered)}I", *ordered), 0), ordered, strict=True
        ):
            of_shape = found.setdefault(f"{mnemonic} {shape_of(operands)}", set())
            if len(of_shape) < most:
                of_shape.add(word)
    return found


@pytest.mark.corpus
@pytest.mark.oracle
@pytest.mark.parametrize("name", _LIBRARIES)
def test_instructions_of_real_code(name: str, checker: Checker, corpus: Callable[[CorpusArch], Path]) -> None:
    path = corpus("arm64") / "usr/lib/aarch64-linux-gnu" / name
    by_shape = _words_by_shape([path], checker.disassembler, most=2)
    assert len(by_shape) > 100
    words = sorted(set().union(*by_shape.values()))
    wrong = checker.check(words, seed=len(words))
    assert wrong == []
    assert len(checker.executed) > 100


#: Bits 28 to 25 of an instruction tell its kind (Arm ARM, C4.1): immediate data, branches, memory, registers. Of those
#: on vectors, the emulator knows too few, and ends the process at some.
_KINDS: Final = (0b1000, 0b1001, 0b1010, 0b1011, 0b0100, 0b0110, 0b1100, 0b1110, 0b0101, 0b1101)


@st.composite
def _any_words(draw: st.DrawFn) -> int:
    """Draw an instruction of any kind, whose registers are those of the frame more often than chance would have it."""
    word = draw(st.integers(0, (1 << 32) - 1)) & ~(0xF << 25) | draw(st.sampled_from(_KINDS)) << 25
    for lowest in (0, 5, 10, 16):
        register = draw(st.sampled_from((None, None, 29, 30, 31)))
        if register is not None:
            word = word & ~(0x1F << lowest) | register << lowest
    return word


@given(words=st.lists(_any_words(), min_size=8, max_size=40), seed=st.integers(0, _MASK))
def test_any_instructions(words: list[int], seed: int, checker: Checker) -> None:
    assert checker.check(words, seed) == []


#: STP with write-back, LDP of the same, SUB of SP, ADD of an extended register.
_SAMPLE: Final = (0xA9BE7BFD, 0xA8C27BFD, 0xD10083FF, 0x8B22C820)


def _changes(step: Step) -> Iterable[Step | None]:
    """Yield steps that say something else, and None for no step."""
    yield None
    if step.op in (Op.MOVE, Op.LOAD, Op.STORE):
        yield step._replace(offset=step.offset + 8)
    if step.op is Op.ADD:
        yield step._replace(scale=step.scale * 2)
        yield step._replace(is_signed=not step.is_signed)
    yield step._replace(register=(step.register + 1) % 31)


@pytest.mark.oracle
def test_wrong_effects_are_found() -> None:
    known = open_disassembler(ABI, "code is read")
    for word in _SAMPLE:
        effect = ABI.effect_of(*next(known.disasm_lite(word.to_bytes(4, "little"), 0)))
        assert effect is not None
        for place, step in enumerate(effect.steps):
            for change in _changes(step):
                new = (*effect.steps[:place], *([change] if change else []), *effect.steps[place + 1 :])
                wrong = effect._replace(steps=new)
                checker = Checker(lambda *_, wrong=wrong: wrong)
                assert any(checker.check([word], seed) for seed in range(8)), (hex(word), wrong)
