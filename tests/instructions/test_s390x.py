# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions that the assembler writes and capstone reads."""

from __future__ import annotations

from typing import Final

import pytest

from cfi2sframe.instructions.s390x import S390X_ABI
from tests.support.instructions.s390x_cases import START, Decoded, assemble
from tests.support.targets import S390

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoded]:
    return assemble(tmp_path_factory.mktemp("s390x"))


def test_what_depends_on_the_address_says_so(decoded: dict[str, Decoded]) -> None:
    """Texts have targets as addresses; where an effect at another address differs otherwise, it is known to depend."""
    for code, mnemonic, operands in decoded.values():
        at_start, at_zero = (S390X_ABI.effect_of(vaddr, len(code), mnemonic, operands) for vaddr in (START, 0))
        if at_start != at_zero:
            assert S390X_ABI.depends_on_address(mnemonic, operands)


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
    assert S390X_ABI.effect_of(START, 4, *text) == S390X_ABI.effect_of(START, 4, *SPELLINGS[text])


def test_instruction_whose_registers_are_changed_is_not_known() -> None:
    assert S390X_ABI.executed is not None
    assert S390X_ABI.executed("%r1, 0x2000", "lgr", "%r15, %r2") is None
    assert S390X_ABI.executed("%r0, 0x2000", "j", "0x3000") is None
    assert S390X_ABI.executed("%r0, 0x2000", "exrl", "%r0, 0x3000") is None


def test_registers_of_the_record() -> None:
    numbers = (S390X_ABI.sp, S390X_ABI.fp, S390X_ABI.ra_register)
    assert numbers == (S390.arch.sp_register, S390.arch.fp_register, S390.arch.ra_register)
    assert S390X_ABI.entry_sp == S390.arch.sp_offset_from_cfa
    changed = {S390.arch.register_name(number) for number in range(32) if S390X_ABI.clobbered >> number & 1}
    assert changed == {*("r0", "r1", "r2", "r3", "r4", "r5", "r14"), *(f"f{number}" for number in range(8))}
