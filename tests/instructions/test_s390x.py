# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions that the assembler writes and capstone reads, held to their execution, too."""

import random
import re
from typing import Final

import pytest

from cfi2sframe.instructions.s390x import ABI
from tests.support.instructions.assembled import codes_of
from tests.support.instructions.execution import TARGETS, Checker
from tests.support.oracle.targets import S390

pytestmark = pytest.mark.oracle

START: Final = 0x1000
#: Instructions of prologues, tables of jumps, calls, stores, and others.
TEXTS: Final = re.split(
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
#: Those that are not executed, or that the emulator does not know.
NOT_EXECUTED: Final = frozenset(
    {"svc 0", "svc 5", "exrl %r1,.+64", "bi 8(%r1)", "bine 8(%r1)", "bic 5,8(%r1)", "czdt %f0,8(5,%r15),0"}
    | {"lmd %r6,%r9,0(%r1),0(%r2)", "bctgr %r1,%r1", "bxleg %r1,%r2,0(%r1)"}
    | {"bassm %r14,%r1", "ex %r1,0(%r2)", "lpswe 0(%r1)", "pr"}
)


@pytest.fixture(scope="module")
def assembled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return codes_of(TEXTS, S390.triplet, tmp_path_factory.mktemp("s390x"), "-march=z14")


def test_instructions_of_the_assembler(assembled: dict[str, bytes]) -> None:
    checker, choice = Checker(TARGETS["s390x"]), random.Random(1)  # noqa: S311 - the same each time
    for text, code in assembled.items():
        before = checker.executed.total()
        assert [found for _ in range(5) for found in checker.check(code, choice)] == [], text
        assert checker.executed.total() > before or text in NOT_EXECUTED


def test_what_depends_on_the_address_says_so(assembled: dict[str, bytes]) -> None:
    """Texts have targets as addresses; where an effect at another address differs otherwise, it is known to depend."""
    disassembler = Checker(TARGETS["s390x"]).disassembler
    count = 0
    for code in assembled.values():
        _, size, mnemonic, operands = next(disassembler.disasm_lite(code, START))
        at_start, at_zero = (ABI.effect_of(vaddr, size, mnemonic, operands) for vaddr in (START, 0))
        if at_start != at_zero:
            count += 1
            assert ABI.depends_on_address(mnemonic, operands)
    assert count > 0


#: The text of capstone 6, and that of 4 and 5.
SPELLINGS: Final = {
    ("lg", "%r1, 0(%r1,%r2)"): ("lg", "%r1, 0(%r1, %r2)"),
    ("la", "%r1, 8(%r15,0)"): ("la", "%r1, 8(%r15)"),
    ("mvc", "0x10(1,%r12), 0x1a"): ("mvc", "0x10(1, %r12), 0x1a"),
    ("basr", "%r1, 0"): ("basr", "%r1, %r0"),
    ("br", "0"): ("br", "%r0"),
    ("bner", "0"): ("bner", "%r0"),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_spellings_of_capstone_versions(text: tuple[str, str]) -> None:
    assert ABI.effect_of(START, 4, *text) == ABI.effect_of(START, 4, *SPELLINGS[text])


def test_instruction_whose_registers_are_changed_is_not_known() -> None:
    assert ABI.executed("%r1, 0x2000", "lgr", "%r15, %r2") is None
    assert ABI.executed("%r0, 0x2000", "j", "0x3000") is None
    assert ABI.executed("%r0, 0x2000", "exrl", "%r0, 0x3000") is None
