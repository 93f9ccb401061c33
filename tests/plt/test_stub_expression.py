# SPDX-License-Identifier: Apache-2.0
"""DWARF expressions evaluated to a distance from SP: against plain arithmetic, and what has no value."""

from __future__ import annotations

import pytest

from cfi2sframe.arch import AARCH64_LE, AMD64, S390X
from cfi2sframe.plt.sp_distance import Distance, SpDistances

SP8, PC0 = "7708", "8000"


def _evaluate(text: str, pc: int = 0x1234) -> Distance | None:
    return SpDistances(AMD64).evaluate(bytes.fromhex(text), pc)


@pytest.mark.parametrize("limit", [9, 10, 11])
def test_the_expression_of_gnu_ld_at_every_byte(limit: int) -> None:
    # breg7 8; breg16 0; lit15; and; lit<limit>; ge; lit3; shl; plus
    text = f"{SP8}{PC0}3f1a{0x30 + limit:02x}2a332422"
    for pc in range(0x1000, 0x1040):
        assert _evaluate(text, pc) == Distance(8 + 8 * (pc % 16 >= limit), 16)


@pytest.mark.parametrize(
    ("text", "depth", "modulus"),
    [
        ("7710", 16, 1),  # breg7 16
        ("920710", 16, 1),  # bregx 7, 16
        (f"{SP8}2310", 24, 1),  # plus_uconst 16
        (f"{SP8}341c", 4, 1),  # lit4; minus
        (f"34{SP8}22", 12, 1),  # The number below SP.
        (f"{SP8}09f822", 0, 1),  # const1s -8; plus
        (f"32{SP8}141322", 10, 1),  # over; drop; plus
        (f"{SP8}{PC0}341a22", 8 + (0x1234 & 4), 8),  # breg16; lit4; and; plus
        (f"{SP8}8004331a22", 8 + (0x1238 & 3), 4),  # The PC plus 4, and then its low bits.
        (f"{SP8}{PC0}3f1a{PC0}0a3f001a1c22", 8 + (0x1234 % 16) - (0x1234 % 64), 64),  # Two masks.
        (f"{SP8}{PC0}0a34122e22", 8, 0),  # breg16; const2u 0x1234; ne; plus: this PC alone
        (f"{SP8}{PC0}3425341a22", 8 + ((0x1234 >> 4) & 4), 0),  # shr makes it one of all bits
    ],
)
def test_operations(text: str, depth: int, modulus: int) -> None:
    assert _evaluate(text) == Distance(depth, modulus)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "34",  # A number is no place on the stack.
        "7000",  # rax
        f"{SP8}06",  # deref
        f"{SP8}2f0000",  # skip
        f"{SP8}22",  # One operand is missing.
        f"{SP8}{SP8}22",  # SP + SP
        f"34{SP8}1c",  # 4 - SP
        f"{SP8}3f1a",  # SP's low bits
        f"{SP8}ff",  # No such operation.
        "77",  # Cut.
        PC0,
    ],
)
def test_what_has_no_value(text: str) -> None:
    assert _evaluate(text) is None


def test_other_architectures_have_no_pc_register() -> None:
    for arch in (AARCH64_LE, S390X):
        evaluator = SpDistances(arch)
        sp = bytes([0x70 + arch.sp_register, 0x10])
        assert evaluator.evaluate(sp, 0) == Distance(16, 1)
        assert evaluator.evaluate(sp + bytes.fromhex(f"{PC0}3f1a22"), 0) is None
