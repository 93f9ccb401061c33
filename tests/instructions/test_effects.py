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
from cfi2sframe.instructions import aarch64, amd64, s390x
from cfi2sframe.instructions.effects import Op, Step
from tests.support.elf.referring import adrp, words
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


@pytest.mark.oracle
def test_flags_that_an_instruction_sets_do_not_stop_the_next(checkers: dict[str, Checker]) -> None:
    """POPF may ask for single steps."""
    checker = checkers["amd64"]
    for seed in range(8):
        assert checker.check(b"\x9d", random.Random(seed)) == []  # noqa: S311
        before = checker.executed["add"]
        assert checker.check(b"\x01\xc0", random.Random(seed)) == []  # noqa: S311
        assert checker.executed["add"] > before


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


#: Instructions of AMD64 that change registers without naming them, and that store; what the emulator knows of them.
_AMD64_TEXTS: Final = re.split(
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
#: Of s390x, instructions of prologues, tables of jumps, calls, stores, and others.
_S390X_TEXTS: Final = re.split(
    r";\s+",
    """
stmg %r13,%r15,104(%r15); stmg %r14,%r1,8(%r2); lmg %r14,%r15,280(%r15); lmg %r1,%r3,0(%r2); lmg %r15,%r0,-8(%r15);
lay %r15,-160(%r15); la %r11,160(%r15); aghi %r15,-160; agfi %r15,-1000000; slgfi %r15,4096; algfi %r15,4294967295;
aghik %r15,%r11,-8; lgr %r11,%r15; ltgr %r15,%r11; stg %r1,0(%r15); stg %r14,-112(%r15); lg %r14,272(%r15);
ldgr %f0,%r14; ldgr %f2,%r11; lgdr %r14,%f1; ldr %f8,%f15; std %f8,160(%r15); ld %f9,160(%r15); agr %r15,%r1;
agrk %r15,%r1,%r15; agrk %r2,%r15,%r3; sgr %r15,%r1; sgrk %r15,%r1,%r2; nill %r15,65528; risbg %r15,%r15,0,188,0;
lgr %r15,%r15; larl %r1,.+256; la %r1,8; la %r1,8(%r1,%r2); la %r2,0(%r1,%r2); la %r3,0(%r1,%r2); la %r1,0(%r1,%r1);
lghi %r1,-1; lgfi %r1,-100000; llilf %r1,4294967295; llilh %r1,2; llihf %r1,2; llihh %r1,2; lhi %r1,5; basr %r13,%r0;
bras %r13,.+4; lgrl %r1,.+64; lgfrl %r1,.+64; clgfi %r2,9; clfi %r2,9; clijh %r2,9,.+64; clgijhe %r2,9,.+64;
llgfr %r2,%r2; lgfr %r2,%r3; lr %r2,%r3; sllg %r1,%r2,3; sllg %r1,%r1,2; sllg %r1,%r1,2(%r3); risbg %r1,%r2,29,188,3;
risbgn %r1,%r2,30,189,2; risbg %r1,%r2,56,191,0; risbg %r1,%r2,61,191,0; risbgn %r1,%r2,58,188,3;
risbg %r1,%r2,29,60,3; risbgn %r1,%r2,29,187,3; nilf %r1,7; llgc %r1,0(%r2); llgh %r1,0(%r2,%r3); llc %r1,0(%r2);
llghr %r1,%r2; lg %r1,0(%r1,%r2); lgf %r1,0(%r2,%r1); agf %r3,0(%r3,%r1); ag %r3,8(%r15); b 0(%r1,%r2); b 4(%r1);
br %r1; br %r14; b 0(%r14); b 4(%r14); ber %r14; bnhr %r14; bl 8(%r1); cgibe %r3,0,0(%r14); bi 8(%r1); bine 8(%r1);
bic 5,8(%r1); j .+64; jg .-64; jh .+64; jgnl .+64; jlh .+64; jo .+64; j .+2; jne .+2; cgijne %r2,0,.+2;
crjl %r1,%r2,.+64; clgrj %r1,%r2,14,.+64; cgrt %r1,%r2,8; clgitl %r1,5; brasl %r14,.+64; bras %r14,.-64;
brasl %r0,.+64; bras %r13,.+64; basr %r14,%r1; basr %r14,%r14; bas %r14,8(%r1); brctg %r1,.-64; brct %r1,.-64;
bctgr %r1,%r0; bctr %r1,%r0; bctgr %r1,%r1; brxhg %r1,%r2,.-64; brxh %r1,%r2,.-64; bxleg %r1,%r2,0(%r1); bcr 0,%r7;
brcl 0,.+64; bcr 14,%r0; bcr 15,%r0; exrl %r1,.+64; ex %r1,0(%r2); svc 5; svc 0; pr; bassm %r14,%r1; lpswe 0(%r1);
st %r1,4(%r11); sthy %r1,-4(%r11); stg %r1,0(%r2,%r15); stm %r14,%r2,8(%r15); stcm %r1,7,9(%r15);
mvc 160(8,%r15),0(%r2); mvc 160(256,%r15),0(%r2); xc 160(80,%r15),160(%r15); clc 160(80,%r15),160(%r2);
mvi 160(%r15),1; mvghi 160(%r15),1; ni 160(%r15),1; agsi 160(%r15),-1; cs %r1,%r2,8(%r15); cdsg %r2,%r4,16(%r15);
laag %r1,%r2,8(%r15); stocge %r1,8(%r15); vst %v1,160(%r15); vstm %v8,%v11,160(%r15); vsteg %v1,160(%r15),1;
vlm %v14,%v20,0(%r1); vl %v1,0(%r1); vl %v16,0(%r1); adbr %f0,%f1; axbr %f0,%f1; cdbr %f0,%f1; cgdbr %r1,0,%f1;
locgre %r1,%r2; mlgr %r2,%r4; dsgr %r4,%r2; flogr %r4,%r2; trt 0(8,%r4),0(%r5); clst %r4,%r5; mvcle %r4,%r6,0;
lm %r14,%r1,0(%r2); lmd %r6,%r9,0(%r1),0(%r2); stam %a2,%a15,8(%r15); czdt %f0,8(5,%r15),0; cvd %r1,8(%r15);
tm 0(%r2),1; pfd 1,0(%r2); ipm %r2
""".strip(),
)
#: Those that are not executed, or that the emulator does not know; or that it refuses for their addresses.
_NOT_EXECUTED: Final = frozenset(
    {"svc 0", "svc 5", "exrl %r1,.+64", "bi 8(%r1)", "bine 8(%r1)", "bic 5,8(%r1)", "czdt %f0,8(5,%r15),0"}
    | {"lmd %r6,%r9,0(%r1),0(%r2)", "bctgr %r1,%r1", "bxleg %r1,%r2,0(%r1)"}
    | {"bassm %r14,%r1", "ex %r1,0(%r2)", "lpswe 0(%r1)", "pr"}
)


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    folder = tmp_path_factory.mktemp("instructions")
    amd64 = codes_of(_AMD64_TEXTS, "x86_64-linux-gnu", folder)
    return {"amd64": amd64, "s390x": codes_of(_S390X_TEXTS, S390.triplet, folder, "-march=z14")}


@pytest.mark.oracle
@pytest.mark.parametrize("abi", ["amd64", "s390x"])
def test_instructions_of_the_assembler(
    abi: str, checkers: dict[str, Checker], assembled: dict[str, dict[str, bytes]]
) -> None:
    checker, choice = checkers[abi], random.Random(1)  # noqa: S311 - the same each time
    for text, code in assembled[abi].items():
        before = checker.executed.total()
        assert [found for _ in range(5) for found in checker.check(code, choice)] == [], text
        assert checker.executed.total() > before or text in _NOT_EXECUTED or text.startswith("movaps"), text


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


@pytest.mark.parametrize(("base", "op"), [("sp", Op.MOVE_FRAME), ("x2", Op.FORGET)])
def test_a_base_that_moves_by_a_register_is_not_known(base: str, op: Op) -> None:
    """Of SP, that it moves is."""
    effect = TARGETS["aarch64"].abi.effect_of(0, 4, "st1", f"{{v0.16b}}, [{base}], x1")
    assert effect is not None
    assert effect.steps[-1].op is op
    assert effect.steps[-1].register == {"sp": 31, "x2": 2}[base]


def test_addresses_to_which_instructions_of_aarch64_refer() -> None:
    """ADRP with each ADD of a number to its register; with another register, a shifted number or SUB, there is none."""
    pages, add = adrp(0x2000, 0x5000, 3), 0x91000060 | 0x123 << 10
    for other in (0x91000080 | 0x123 << 10, 0x91400060 | 0x123 << 10, 0xD1000060 | 0x123 << 10, 0x8B030060):
        code = words(pages, other, add, 0x91000065 | 0x456 << 10)
        assert list(aarch64.ABI.references(code, 0x2000, False)) == [(0x2000, 0x5123), (0x2000, 0x5456)]
    # ADR, B and BL, in front and back.
    code = words(0x10000040, 0x17FFFFFF, 0x94000002, 0xF0FFFFE3, add)
    places = [(0x2000, 0x2008), (0x2004, 0x2000), (0x2008, 0x2010), (0x200C, 0x1123)]
    assert list(aarch64.ABI.references(code, 0x2000, False)) == places


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


_START: Final = 0x1000


@pytest.mark.oracle
def test_what_depends_on_the_address_says_so(
    checkers: dict[str, Checker], assembled: dict[str, dict[str, bytes]]
) -> None:
    """Texts have targets as addresses; where an effect at another address differs otherwise, it is known to depend."""
    disassembler = checkers["s390x"].disassembler
    count = 0
    for code in assembled["s390x"].values():
        _, size, mnemonic, operands = next(disassembler.disasm_lite(code, _START))
        at_start, at_zero = (s390x.ABI.effect_of(vaddr, size, mnemonic, operands) for vaddr in (_START, 0))
        if at_start != at_zero:
            count += 1
            assert s390x.ABI.depends_on_address(mnemonic, operands)
    assert count > 0


#: The text of capstone 6, and that of 4 and 5.
_SPELLINGS: Final = {
    ("lg", "%r1, 0(%r1,%r2)"): ("lg", "%r1, 0(%r1, %r2)"),
    ("la", "%r1, 8(%r15,0)"): ("la", "%r1, 8(%r15)"),
    ("mvc", "0x10(1,%r12), 0x1a"): ("mvc", "0x10(1, %r12), 0x1a"),
    ("basr", "%r1, 0"): ("basr", "%r1, %r0"),
    ("br", "0"): ("br", "%r0"),
    ("bner", "0"): ("bner", "%r0"),
}


@pytest.mark.parametrize("text", _SPELLINGS)
def test_spellings_of_capstone_versions_of_s390x(text: tuple[str, str]) -> None:
    assert s390x.ABI.effect_of(_START, 4, *text) == s390x.ABI.effect_of(_START, 4, *_SPELLINGS[text])


def test_an_instruction_of_s390x_whose_registers_are_changed_is_not_known() -> None:
    assert s390x.ABI.executed("%r1, 0x2000", "lgr", "%r15, %r2") is None
    assert s390x.ABI.executed("%r0, 0x2000", "j", "0x3000") is None
    assert s390x.ABI.executed("%r0, 0x2000", "exrl", "%r0, 0x3000") is None
