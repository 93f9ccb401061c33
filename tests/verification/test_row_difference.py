# SPDX-License-Identifier: Apache-2.0
"""Rows and attributes of functions against the rules of one FDE: which differences there are, and in which words."""

import pytest

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.rules import NoCfa, NoRule, RaSigning, RowState
from cfi2sframe.sframe.model import FrameState
from cfi2sframe.verification.expressible import row_for
from cfi2sframe.verification.row_difference import row_difference
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.rules import at_cfa
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked
from tests.support.sframe.raw_sframe import RawFunction, RawSection
from tests.support.verification import AARCH64, one_row, said, truth

SIGNED_WITH_PC = asm.aarch64_negate_ra_state_with_pc()


@pytest.mark.parametrize(
    ("instruction", "row", "info2", "found"),
    [
        (asm.undefined(16), "00 00", 0, []),
        (asm.undefined(16), "00 03 08", 0, ["wrong +0x0 RA is undefined, but the row has a caller"]),
        (asm.register(16, 2), "00 08 39 08 11 00", 1, []),
        (asm.expression(16, b"\x08"), "00 03 08", 0, ["wrong +0x0 RA is exp(bytes 08), the row has c-8"]),
        (asm.undefined(6), "00 03 08", 0, ["wrong +0x0 FP is undefined, the row has unchanged"]),
        (
            asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"),
            "00 03 08",
            0,
            ["wrong +0x0 CFA is breg7 40; deref; plus_uconst 8, the row has rsp+8"],
        ),
        # SFrame's CFA is the caller's SP: where that is not DWARF's CFA, RA and FP count from elsewhere.
        (asm.register(7, 10), "00 03 08", 0, ["wrong +0x0 SP is r10, the row has rsp+8"]),
        (asm.offset(7, 3), "00 08 3b f0 3b 00", 1, []),
        (asm.offset(7, 3), "00 08 3b e8 3b 00", 1, ["wrong +0x0 SP is c-24, the row has (rsp-24)"]),
        (asm.offset(7, 3), "00 08 3b f0 02 f8", 1, ["wrong +0x0 RA is c-8, the row has c-8"]),
    ],
)
def test_rules_of_amd64(instruction: asm.Instruction, row: str, info2: int, found: list[str]) -> None:
    """What is printed; which rows differ is for `tests/conversion/test_reduce.py`, with all rules of all ABIs."""
    assert said(truth(AMD64, instruction), one_row(row, info2=info2)) == found


@pytest.mark.parametrize(
    ("arch", "instruction", "row", "found"),
    [
        (AARCH64_LE, asm.offset(30, 1), "00 03 00", ["wrong +0x0 RA is c-8, the row has unchanged"]),
        (AARCH64_LE, asm.nop(), "00 83 00", ["wrong +0x0 RA is none, the row has signed"]),
        (AARCH64_LE, SIGNED_WITH_PC, "00 83 00", ["wrong +0x0 RA is signed_with_pc, the row has signed"]),
        (S390X, asm.offset(15, 5), "00 03 00", []),
        (S390X, asm.register(15, 16), "00 03 00", []),
        (S390X, asm.val_offset(15, 1), "00 03 00", ["wrong +0x0 SP is v-8, the row has r15+160-160"]),
        (S390X, asm.def_cfa_offset(168), "00 03 00", ["wrong +0x0 CFA is r15+168, the row has r15+160"]),
    ],
)
def test_rules_of_other_abis(arch: Arch, instruction: asm.Instruction, row: str, found: list[str]) -> None:
    section = one_row(row, abi=arch.abi_id, fixed_ra=0)._replace(order=arch.byte_order)
    assert said(truth(arch, instruction), section) == found


@pytest.mark.parametrize(("rule", "text"), [(None, "none"), (NoCfa.UNKNOWN, "unknown")])
def test_a_cfa_without_a_value(rule: NoCfa | None, text: str) -> None:
    """It is no register's own value, as that of RA without a rule is."""
    row = RowState(rule, at_cfa(-8), NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)
    state = FrameState(Rule(AMD64.sp_register, 0, deref=False), None, None)
    assert row_difference(row, state, AMD64) == f"CFA is {text}, the row has rsp+0"
    assert row_for(row, AMD64, 3, 0) is None


def test_the_signal_flag() -> None:
    """Unwinders look a return address up one byte earlier, which they must not do in signal frames."""
    signal, plain = truth(AMD64, augmentation="zRS"), truth(AMD64)
    assert said(signal, one_row("00 03 08", info=0x80)) == []
    assert said(signal, one_row("00 03 08")) == ["wrong +0x0 a signal frame that is not marked as one"]
    assert said(plain, one_row("00 03 08", info=0x80)) == ["wrong +0x0 marked as a signal frame"]
    assert said(signal, one_row("00 03 08", version=2)) == []


def test_the_pointer_authentication_key() -> None:
    signed = asm.aarch64_negate_ra_state()
    key_a, key_b = truth(AARCH64_LE, signed), truth(AARCH64_LE, signed, augmentation="zRB")
    for version in (1, 2, 3):
        a, b = (one_row("00 83 00", version=version, info=info, **AARCH64) for info in (0, 0x20))
        assert said(key_a, a) == said(key_b, b) == []
        assert said(key_a, b) == ["wrong +0x0 RA is signed with key A, the function has B"]
        assert said(key_b, a) == ["wrong +0x0 RA is signed with key B, the function has A"]


def test_the_key_of_an_unsigned_ra_is_no_difference() -> None:
    """GNU as marks every function whose CIE names the key; ours only where it matters."""
    image = truth(AARCH64_LE, augmentation="zRB")
    for info in (0, 0x20):
        assert said(image, one_row("00 03 00", info=info, **AARCH64)) == []
        # Nor where something else is wrong.
        wrong = ["wrong +0x0 CFA is sp+0, the row has sp+8"]
        assert said(image, one_row("00 03 08", info=info, **AARCH64)) == wrong


def test_the_key_matters_where_ra_is_signed() -> None:
    """A function of the section may reach over several FDEs (-O2), of which one signs nothing and names a key."""
    cie_a, cie_b = cie_of(AARCH64_LE, asm.aarch64_negate_ra_state()), cie_of(AARCH64_LE, augmentation="zRB")
    both = linked(AARCH64_LE, asm.Fde(cie_a, TEXT_VADDR, 0x10), asm.Fde(cie_b, TEXT_VADDR + 0x10, 0x10))
    for version in (1, 2, 3):
        for info, found in ((0, []), (0x20, ["wrong +0x0 RA is signed with key A, the function has B"])):
            joined = RawFunction(TEXT_VADDR, 0x20, bytes.fromhex("00 83 00 10 03 00"), 2, info)
            assert said(both, RawSection((joined,), version=version, abi=2, fixed_ra=0)) == found
