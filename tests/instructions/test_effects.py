# SPDX-License-Identifier: Apache-2.0
"""The effects of instructions, held to their execution by an emulator: real ones, and any others."""

import random
import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path
from typing import Final

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.instructions import amd64
from cfi2sframe.instructions.effects import Op, Step
from tests.support.instructions.assembled import codes_of
from tests.support.instructions.execution import TARGETS, Checker, examples
from tests.support.oracle.targets import S390
from tests.support.oracle.tools import CorpusArch, corpus_directory

#: Bytes of a file's code that are looked at.
_MOST_BYTES: Final = 200_000
#: Code of compilers, and of people.
_LIBRARIES: Final = ("libc.so.6", "libcrypto.so.3", "libdav1d.so.7", "libx264.so.164", "libgmp.so.10")
_ARCHES: Final[dict[str, CorpusArch]] = {"amd64": "amd64", "aarch64": "arm64"}


@pytest.fixture(scope="module")
def checkers() -> dict[str, Checker]:
    return {name: Checker(target) for name, target in TARGETS.items()}


def check_file(checker: Checker, path: Path) -> None:
    choice = random.Random(path.name)  # noqa: S311 - the same each time
    image = load(path)
    codes = [image.code_bytes(code, code.start_vaddr, code.end_vaddr)[:_MOST_BYTES] for code in image.code_ranges]
    before = checker.executed.total()
    for code in examples(checker, codes, most=2):
        assert checker.check(code, choice) == []
    assert checker.executed.total() - before > 200


@pytest.mark.corpus
@pytest.mark.oracle
@pytest.mark.sampled
@pytest.mark.parametrize("name", _LIBRARIES)
@pytest.mark.parametrize("abi", _ARCHES)
def test_real_code(abi: str, name: str, checkers: dict[str, Checker]) -> None:
    folder = {"amd64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}[abi]
    check_file(checkers[abi], corpus_directory(_ARCHES[abi]) / "usr/lib" / folder / name)


@pytest.mark.oracle
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libatomic.so.1"])
def test_libraries_of_s390x(name: str, checkers: dict[str, Checker]) -> None:
    check_file(checkers["s390x"], S390.sysroot / "lib" / name)


#: Bits 28 to 25 of an instruction tell its kind (Arm ARM, C4.1): immediate data, branches, memory, registers. Of those
#: on vectors, the emulator knows too few, and ends the process at some.
_KINDS: Final = (0b1000, 0b1001, 0b1010, 0b1011, 0b0100, 0b0110, 0b1100, 0b1110, 0b0101, 0b1101)
#: The first bytes of the instructions of many kinds that compilers use.
_FIRST_BYTES: Final = {
    "amd64": bytes.fromhex("48 48 49 49 4c 0f f3 01 03 29 31 39 63 6b 81 83 85 87 89 8d ff fe c7 c6 d3 f7"),
    "s390x": bytes.fromhex("a5a7b2b3b9b9b9b9c0c2c4c6cce3e3e3e3e5e7ebebebecececed"),
}


@st.composite
def any_code(draw: st.DrawFn, abi: str) -> bytes:
    """Draw an instruction, of a kind that compilers use and of FP, RA and SP more often than chance would have it."""
    if abi != "aarch64":
        return bytes((draw(st.sampled_from(_FIRST_BYTES[abi])), *draw(st.binary(min_size=9, max_size=9))))
    word = draw(st.integers(0, (1 << 32) - 1)) & ~(0xF << 25) | draw(st.sampled_from(_KINDS)) << 25
    for lowest in (0, 5, 10, 16):
        register = draw(st.sampled_from((None, None, 29, 30, 31)))
        if register is not None:
            word = word & ~(0x1F << lowest) | register << lowest
    return word.to_bytes(4, "little")


@pytest.mark.property
@pytest.mark.parametrize("abi", TARGETS)
@given(data=st.data(), seed=st.integers(0, 1 << 32))
def test_any_instructions(abi: str, data: st.DataObject, seed: int, checkers: dict[str, Checker]) -> None:
    choice = random.Random(seed)  # noqa: S311 - the same each time
    for code in data.draw(st.lists(any_code(abi), min_size=4, max_size=12)):
        assert checkers[abi].check(code, choice) == []


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
def test_wrong_effects_are_found(checkers: dict[str, Checker]) -> None:
    target, disassembler = TARGETS["aarch64"], checkers["aarch64"].disassembler
    for word in _SAMPLE:
        code = word.to_bytes(4, "little")
        effect = target.abi.effect_of(*next(disassembler.disasm_lite(code, 0)))
        assert effect is not None
        for place, step in enumerate(effect.steps):
            for change in _changes(step):
                steps = (*effect.steps[:place], *([change] if change else []), *effect.steps[place + 1 :])
                wrong = effect._replace(steps=steps)
                checker = Checker(target, lambda *_, wrong=wrong: wrong)
                assert any(checker.check(code, random.Random(seed)) for seed in range(8)), (hex(word), steps)  # noqa: S311


#: Instructions that change registers without naming them, and that store; what the emulator knows of them.
TEXTS: Final = re.split(
    r";\s+",
    """
mulq (%rsp); divq (%rsp); imulq (%rsp); idivl (%rsp); cqto; cltd; cltq; cwtl; xgetbv; lodsb; stosq; movsl; cmpsb; scasb;
rep movsb; rep stosl; repne scasb; cmpxchg %r9, -64(%r10); lock cmpxchg16b -64(%r10); xchg %rax, %r9; xadd %r9, %r8;
mulx %r8, %r9, %r10; xlat; pcmpestri $0, %xmm0, %xmm1; pcmpestrm $0, %xmm0, %xmm1; fnstsw %ax; vzeroupper; fld1; std;
movb $1, (%rsp); movw $1, 6(%rsp); mov %eax, 4(%rsp); mov %rax, (%rsp); movups %xmm0, -8(%rsp); movaps %xmm0, -15(%rsp);
movss %xmm0, 4(%rsp); movsd %xmm0, (%rsp); movhps %xmm0, (%rsp); movntps %xmm0, -8(%rsp); fstpt -2(%rsp);
fistpll (%rsp); fnstcw 6(%rsp); stmxcsr 4(%rsp); movnti %rax, (%rsp); addl $1, (%rsp); incw 6(%rsp); notb 7(%rsp);
shlq $1, (%rsp); sete 7(%rsp); btsq $3, (%rsp); xchg %eax, 4(%rsp); lock xadd %rax, (%rsp); cmpxchg %rcx, (%rsp);
pextrq $1, %xmm0, (%rsp); movbe %rax, (%rsp); popq (%rsp); pushq %fs; pushfq
""".strip(),
)


@pytest.mark.oracle
def test_instructions_of_the_assembler(tmp_path: Path, checkers: dict[str, Checker]) -> None:
    checker, choice = checkers["amd64"], random.Random(1)  # noqa: S311 - the same each time
    for text, code in codes_of(TEXTS, "x86_64-linux-gnu", tmp_path).items():
        before = checker.executed.total()
        assert [found for _ in range(5) for found in checker.check(code, choice)] == [], text
        assert checker.executed.total() > before or text.startswith("movaps"), text


@pytest.mark.oracle
@pytest.mark.parametrize("code", ["48 dd 34 24", "d9 34 24", "0f ae 04 24", "48 0f ae 04 24", "9b dd 75 80"])
def test_whole_areas_are_stored(code: str, checkers: dict[str, Checker]) -> None:
    """FNSAVE, FNSTENV, FXSAVE: capstone gives them the size of a word, or none."""
    before = checkers["amd64"].executed.total()
    for seed in range(4):
        assert checkers["amd64"].check(bytes.fromhex(code), random.Random(seed)) == []  # noqa: S311
    assert checkers["amd64"].executed.total() > before


@pytest.mark.parametrize(("operands", "size"), [("{v30.16b, v31.16b}, [x0]", 64), ("{z0.b}, p0, [x0]", 1024)])
def test_lists_of_vectors_store_what_they_may_hold(operands: str, size: int) -> None:
    """Four registers at most: of 16 bytes each, or of 256 in SVE."""
    effect = TARGETS["aarch64"].abi.effect_of(0, 4, "st1", operands)
    assert effect is not None
    assert [(step.op, step.size) for step in effect.steps] == [(Op.STORE, size)]


#: What selects one of the legacy instructions of AMD64 that have an opcode: the bytes before it.
_PREFIXES: Final = ("", "66", "f2", "f3", "48", "f2 48")
_MAPS: Final = ("", "0f", "0f 38", "0f 3a")


def test_no_instruction_on_vectors_is_taken_for_another_one_of_its_name() -> None:
    """For MOVSD and CMPSD, capstone has one name and one number each; only groups tell the two instructions apart."""
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    wrong: set[str] = set()
    kinds: dict[str, set[bool]] = {}
    for prefix, table, opcode, operands in product(_PREFIXES, _MAPS, range(256), ("11", "d1")):
        code = bytes.fromhex(f"{prefix} {table} {opcode:02x} {operands}").ljust(16, b"\x1f")
        for found in disassembler.disasm(code, 0, 1):
            groups = map(disassembler.group_name, found.groups)
            is_vector = any(group.startswith(("mmx", "sse")) for group in groups)
            kinds.setdefault(found.mnemonic, set()).add(is_vector)
            effect = amd64.effect_of(0, found.size, found.mnemonic, found.op_str)
            named = re.findall(r"[a-d]x|[ds]i", found.op_str)
            if is_vector and (effect is None or len([n for n in range(16) if effect.changed >> n & 1]) > len(named)):
                wrong.add(found.mnemonic)
    assert wrong == {"pcmpestri", "pcmpistri"}, "of those on vectors, only these change a register without naming it"
    assert {name for name, both in kinds.items() if len(both) == 2} >= {"movsd", "cmpsd"}
