# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions that the assembler writes and capstone reads."""

from __future__ import annotations

from typing import Final

import pytest

from cfi2sframe.instructions.s390x import ABI
from tests.support.instructions.s390x_cases import START, Decoded, assemble

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoded]:
    return assemble(tmp_path_factory.mktemp("s390x"))


def test_what_depends_on_the_address_says_so(decoded: dict[str, Decoded]) -> None:
    """Texts have targets as addresses; where an effect at another address differs otherwise, it is known to depend."""
    for code, mnemonic, operands in decoded.values():
        at_start, at_zero = (ABI.effect_of(vaddr, len(code), mnemonic, operands) for vaddr in (START, 0))
        if at_start != at_zero:
            assert ABI.depends_on_address(mnemonic, operands)


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
