# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x instructions that the assembler writes and capstone reads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.arch import S390X
from cfi2sframe.code.effects import NOTHING, Op, Step
from cfi2sframe.code.machines import open_for_code
from cfi2sframe.code.s390x import S390X_CODE
from cfi2sframe.code.s390x.undecoded import read
from tests.support.code.s390x_cases import START, Decoded, assemble
from tests.support.targets import S390

if TYPE_CHECKING:
    from cfi2sframe.code.effects import Effect

pytestmark = pytest.mark.oracle

FLAGS: Final = Step(Op.COMPARE, NOTHING)


@pytest.fixture(scope="module")
def decoded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Decoded]:
    return assemble(tmp_path_factory.mktemp("s390x"))


def test_what_depends_on_the_address_says_so(decoded: dict[str, Decoded]) -> None:
    """Texts have targets as addresses; where an effect at another address differs otherwise, it is known to depend."""
    for code, mnemonic, operands in decoded.values():
        at_start, at_zero = (S390X_CODE.effect_of(vaddr, len(code), mnemonic, operands) for vaddr in (START, 0))
        if at_start != at_zero:
            assert S390X_CODE.depends_on_address(mnemonic, operands)


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
    assert S390X_CODE.effect_of(START, 4, *text) == S390X_CODE.effect_of(START, 4, *SPELLINGS[text])


def test_instruction_whose_registers_are_changed_is_not_known() -> None:
    assert S390X_CODE.effect_of_executed is not None
    assert S390X_CODE.effect_of_executed("%r1, 0x2000", "lgr", "%r15, %r2") is None
    assert S390X_CODE.effect_of_executed("%r0, 0x2000", "j", "0x3000") is None
    assert S390X_CODE.effect_of_executed("%r0, 0x2000", "exrl", "%r0, 0x3000") is None


@pytest.mark.parametrize(
    "operands", ["0x00, 0x00", "0xe7, 0x20, 0x30, 0x00, 0x68", "0xff, 0x00, 0x00, 0x00, 0x00, 0x00"]
)
def test_bytes_that_are_no_instruction_may_do_anything(operands: str) -> None:
    assert S390X_CODE.effect_of(START, 2, ".byte", operands) is None


def _without_flags(found: Effect | None) -> Effect | None:
    return found and found._replace(steps=tuple(step for step in found.steps if step != FLAGS))


def _check_undecoded(code: bytes, mnemonic: str, operands: str) -> bool:
    """Check what is made of bytes against what capstone makes of them; return whether anything is."""
    data = ", ".join(f"0x{byte:02x}" for byte in code)
    if read(START, data) is None:
        return False
    found = S390X_CODE.effect_of(START, len(code), ".byte", data)
    known = S390X_CODE.effect_of(START, len(code), mnemonic, operands)
    # Of those on vectors, which of them change the condition code is not told.
    assert (_without_flags(found) == _without_flags(known)) if mnemonic[0] in "vw" else (found == known)
    return True


def test_bytes_that_capstone_4_does_not_know(decoded: dict[str, Decoded]) -> None:
    if any(each.mnemonic == ".byte" for each in decoded.values()):
        pytest.skip("this capstone does not know them either")
    known = {text for text, each in decoded.items() if _check_undecoded(*each)}
    assert {"b 0(%r1,%r2)", "exrl %r1,.+64", "stm %r14,%r2,8(%r15)", "vstm %v8,%v11,160(%r15)", "svc 5"} <= known


@pytest.mark.property
@given(
    st.one_of(st.sampled_from([0x04, 0x47, 0x84, 0xBF, 0xB3, 0xDC]), st.integers(0, 255)),
    st.binary(min_size=5, max_size=5),
)
def test_random_bytes_that_capstone_4_does_not_know(first: int, rest: bytes) -> None:
    disassembler = open_for_code(S390X, "code is read")
    for _, size, mnemonic, operands in disassembler.disasm_lite(bytes([first]) + rest, START, 1):
        if mnemonic != ".byte":
            _check_undecoded((bytes([first]) + rest)[:size], mnemonic, operands)


@pytest.mark.parametrize(("code", "size"), [("b9", 4), ("e7", 6), ("00", 2), ("ff", 6)])
def test_what_is_not_known_has_the_length_of_an_instruction(code: str, size: int) -> None:
    """So that what follows is read from its start."""
    data = bytes.fromhex(code) + b"\xff" * (size - 1) + bytes.fromhex("b9040023")
    disassembler = open_for_code(S390X, "code is read")
    found = [(mnemonic, length) for _, length, mnemonic, _ in disassembler.disasm_lite(data, START)]
    assert found == [(".byte", size), ("lgr", 4)]


def test_registers_of_the_record() -> None:
    numbers = (S390X_CODE.sp_register, S390X_CODE.fp_register, S390X_CODE.ra_register)
    assert numbers == (S390.arch.sp_register, S390.arch.fp_register, S390.arch.ra_register)
    assert S390X_CODE.entry_sp_offset == S390.arch.sp_offset_from_cfa
    assert {S390.arch.register_name(number) for number in S390X_CODE.call_clobbered} == {
        *("r0", "r1", "r2", "r3", "r4", "r5", "r14"),
        *(f"f{number}" for number in range(8)),
    }
