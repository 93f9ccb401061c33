# SPDX-License-Identifier: Apache-2.0
"""CFI that standards leave open, or that readers take as it was not meant: what becomes of it, from file to rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.api import convert, decode, verify
from cfi2sframe.arch import AARCH64_LE
from cfi2sframe.conversion import Conversion, Options
from cfi2sframe.lower import Skip
from cfi2sframe.reasons import SkipReason
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, cie_of, linked

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch

RA_SIGN_STATE = 34


def conversion_of(arch: Arch, *instructions: asm.Instruction, cie: asm.Cie | None = None, size: int = 32) -> Conversion:
    """Convert a file of one function, and see that the section agrees with the CFI."""
    image = linked(arch, asm.Fde(cie or cie_of(arch), TEXT_VADDR, size, instructions))
    conversion = convert(image, Options(version=3))
    if conversion.data:
        assert verify(image, decode(conversion.data, conversion.section_vaddr)).is_clean
    return conversion


def rows_of(conversion: Conversion) -> list[tuple[int, str]]:
    return [(start, repr(state)) for body in conversion.section.bodies for start, state in zip(*body[:2], strict=True)]


def why_not(conversion: Conversion) -> list[tuple[SkipReason, str, int]]:
    """Return why functions and parts of them are left out: the reason, the detail, and where."""
    left_out = [why for _, why in conversion.left_out]
    holes = [hole.why for _, parts in conversion.in_parts for hole in parts.holes]
    return [tuple(why) for why in (*left_out, *holes) if isinstance(why, Skip)]


# RA_SIGN_STATE (AArch64)


def test_a_constant_says_whether_ra_is_signed() -> None:
    rule = asm.val_expression(RA_SIGN_STATE, b"\x31")
    conversion = conversion_of(AARCH64_LE, asm.advance(4), rule)
    assert rows_of(conversion) == [(0, "cfa=r31+0 ra=u fp=u"), (4, "cfa=r31+0 ra=u[s] fp=u")]


def test_other_rules_of_ra_sign_state_leave_their_rows_out() -> None:
    conversion = conversion_of(AARCH64_LE, asm.advance(4), asm.offset(RA_SIGN_STATE, 1))
    assert why_not(conversion) == [(SkipReason.PAUTH_UNKNOWN, "", 4)]
    assert rows_of(conversion) == [(0, "cfa=r31+0 ra=u fp=u")]
