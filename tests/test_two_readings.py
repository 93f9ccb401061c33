# SPDX-License-Identifier: Apache-2.0
"""CFI that standards leave open, or that readers take as it was not meant: what becomes of it, from file to rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe.abi import AARCH64_LE, AMD64
from cfi2sframe.api import convert, decode, verify
from cfi2sframe.lower import Skip
from cfi2sframe.reasons import SkipReason
from cfi2sframe.report.coverage import account
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, cie_of, linked

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion import Conversion


def conversion_of(arch: Arch, *instructions: asm.Instruction, cie: asm.Cie | None = None, size: int = 32) -> Conversion:
    """Convert a file of one function, and see that the section agrees with the CFI."""
    image = linked(arch, asm.Fde(cie or cie_of(arch), TEXT_VADDR, size, instructions))
    conversion = convert(image, version=3)
    if conversion.data:
        assert verify(image, decode(conversion.data, conversion.section_vaddr)).is_clean
    return conversion


def rows_of(conversion: Conversion) -> list[tuple[int, str]]:
    return [(start, repr(state)) for body in conversion.section.bodies for start, state in zip(*body[:2], strict=True)]


def why_not(conversion: Conversion) -> list[Skip]:
    """Return why functions and parts of them are left out: the reason, the detail, and where."""
    left_out = [why for _, why in conversion.skips]
    holes = [why for _, parts in conversion.in_parts for why in parts.pieces if isinstance(why, Skip)]
    return [*left_out, *holes]


# DW_CFA_def_cfa_register after an expression


def test_a_frame_of_vectors_that_ends_in_def_cfa_register() -> None:
    """clang: the CFA is SP + 16 + 8 * VG, and SP + 16 to unwinders after the last instruction."""
    vectors = asm.def_cfa_expression(b"\x8f\x10\x92\x2e\x00\x38\x1e\x22")
    start = (asm.advance(4), asm.def_cfa_offset(16), asm.advance(4), vectors)
    conversion = conversion_of(AARCH64_LE, *start, asm.advance(4), asm.def_cfa_register(31))
    text = "breg31 16; bregx 46 0; lit8; mul; plus"
    assert why_not(conversion) == [(SkipReason.CFA_EXPRESSION, text, 8), (SkipReason.CFA_OFFSET_UNKNOWN, "", 12)]
    assert rows_of(conversion) == [(0, "cfa=r31+0 ra=u fp=u"), (4, "cfa=r31+16 ra=u fp=u")]


def test_a_cie_whose_only_rule_of_the_cfa_is_an_expression() -> None:
    """It was taken for damaged where a register followed."""
    cie = cie_of(AMD64)._replace(instructions=(asm.def_cfa_expression(b"\x77\x08"), asm.offset(16, 1)))
    conversion = conversion_of(AMD64, asm.advance(4), asm.def_cfa_register(6), cie=cie)
    assert why_not(conversion) == [(SkipReason.CFA_OFFSET_UNKNOWN, "", 4)]
    assert rows_of(conversion) == [(0, "cfa=r7+8 ra=c-8 fp=u")]


# FDEs that reach past their section


@pytest.mark.parametrize("in_parts", [False, True])
def test_an_fde_that_is_longer_than_its_section(in_parts: bool) -> None:  # noqa: FBT001
    """It was dropped as a whole, and the conversion called lossless."""
    unsaid = (asm.advance(4), asm.def_cfa_expression(b"\x77\x08\x06\x06"), asm.advance(4), asm.def_cfa(7, 24))
    instructions = (*(unsaid if in_parts else ()), asm.advance(4), asm.def_cfa_offset(16))
    conversion = conversion_of(AMD64, *instructions, size=0x1001)
    assert why_not(conversion)[-1] == (SkipReason.PAST_CODE, "", 0x1000)
    assert len(why_not(conversion)) == 1 + in_parts
    ends = [function.start_vaddr + function.size for function in conversion.section.functions]
    assert ends[-1] == TEXT_VADDR + 0x1000
    assert not conversion.is_whole
    found = account(conversion).of_kind("in part")[-1]
    assert (found.function_size, found.address, found.size) == (0x1001, TEXT_VADDR + 0x1000, 1)


def test_an_fde_that_ends_with_its_section_is_whole() -> None:
    assert conversion_of(AMD64, asm.advance(4), asm.def_cfa_offset(16), size=0x1000).is_whole


def test_an_fde_longer_than_its_section_that_no_version_can_express() -> None:
    conversion = conversion_of(AMD64, asm.def_cfa_expression(b"\x77\x08\x06\x06"), size=0x1001)
    assert [why.reason for why in why_not(conversion)] == [SkipReason.CFA_EXPRESSION]
