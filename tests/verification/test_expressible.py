# SPDX-License-Identifier: Apache-2.0
"""What each version has a row for, at its limits; `test_reduce` compares the judge's rule with the writer's."""

import pytest

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.sframe.model import OUTERMOST
from cfi2sframe.verification.expressible import Row, row_for
from tests.support.dwarf.rules import at_cfa, at_expression, in_register, register_offset, value_at_cfa

#: A function of s390x at its start.
START = RowState(
    register_offset(S390X.sp_register, 160),
    in_register(S390X.ra_register),
    in_register(S390X.fp_register),
    value_at_cfa(-160),
    RaSigning.NONE,
)


@pytest.mark.parametrize(
    ("version", "errata", "has_row"), [(1, 0, False), (2, 0, False), (2, 1, False), (2, 2, True), (3, 0, True)]
)
def test_outermost_frames(version: int, errata: int, *, has_row: bool) -> None:
    row = row_for(START._replace(ra=NoRule.UNDEFINED), S390X, version, errata)
    assert row == (Row(OUTERMOST) if has_row else None)


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE], ids=lambda arch: arch.name)
def test_words_of_version_2_that_name_no_registers(arch: Arch) -> None:
    """Those of ABIs whose functions save all that they change."""
    row = RowState(register_offset(arch.sp_register, 8), at_cfa(-8), at_cfa(-16), NoRule.UNSPECIFIED, RaSigning.NONE)
    assert row_for(row, arch, 2, 1) is not None
    assert row_for(row._replace(fp=in_register(3)), arch, 2, 1) is None


def test_an_expression_counts_from_the_cfa() -> None:
    """DW_OP_plus_uconst: the CFA is on the stack when it begins."""
    by_expression, by_rule = (START._replace(fp=rule) for rule in (at_expression(b"\x23\x10"), at_cfa(16)))
    assert row_for(by_expression, S390X, 3, 0) == row_for(by_rule, S390X, 3, 0) is not None


@pytest.mark.parametrize(
    ("rule", "has_row"),
    [
        (in_register(len(S390X.registers) - 1), True),
        (in_register(len(S390X.registers)), False),
        (at_cfa(-8), True),
        (at_cfa(-7), False),
        (at_cfa(0), False),
    ],
)
def test_words_of_version_2_that_may_name_registers(rule: RegisterRule, *, has_row: bool) -> None:
    """There, an odd number is a register's, and 0 means that nothing is saved."""
    for row in (START._replace(fp=rule), START._replace(ra=rule)):
        assert (row_for(row, S390X, 2, 1) is not None) == has_row
