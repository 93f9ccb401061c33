# SPDX-License-Identifier: Apache-2.0
"""Directives of AArch64 and s390x, right and wrong, assembled by GNU as."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.audited import Said, assembled, audited, function, said_of

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.oracle

A64, S390 = "aarch64-linux-gnu-as", "s390x-linux-gnu-as"
PAIR = "stp x29, x30, [sp, #-32]!; .cfi_def_cfa_offset 32; .cfi_offset x29, -32; .cfi_offset x30, -24; mov x29, sp"
BACK = "ldp x29, x30, [sp], #32; .cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0; ret"
SAVE = "stmg %r11, %r15, 88(%r15); .cfi_offset %r11, -72; .cfi_offset %r14, -48; .cfi_offset %r15, -40; lgr %r1, %r15"
LOAD = (
    "lmg %r11, %r15, 248(%r15); .cfi_restore %r11; .cfi_restore %r14; .cfi_restore %r15; "
    ".cfi_def_cfa_offset 160; br %r14"
)
CASES = {
    "AArch64: a frame": (A64, f"{PAIR}; bl g; {BACK}", []),
    "AArch64: signed": (
        A64,
        (
            f"paciasp; .cfi_negate_ra_state; {PAIR}; bl g; {BACK.removesuffix('; ret')}; autiasp; "
            ".cfi_negate_ra_state; ret"
        ),
        [],
    ),
    "AArch64: the pair without rules": (
        A64,
        (
            "stp x29, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; mov x29, sp; bl g; ldp x29, x30, [sp], #16; "
            ".cfi_def_cfa_offset 0; ret"
        ),
        [Said(8, "FP", "unchanged", "*(c-16)"), Said(8, "RA", "unchanged", "*(c-8)")],
    ),
    "AArch64: a wrong size": (
        A64,
        "sub sp, sp, #48; .cfi_def_cfa_offset 32; str x0, [sp]; add sp, sp, #48; .cfi_def_cfa_offset 0; ret",
        [Said(4, "CFA", "sp+32", "sp+48")],
    ),
    "s390x: a frame": (S390, f"{SAVE}; aghi %r15, -160; .cfi_def_cfa_offset 320; brasl %r14, g; {LOAD}", []),
    "s390x: a frame without a directive": (
        S390,
        f"{SAVE}; aghi %r15, -160; brasl %r14, g; {LOAD}",
        [Said(14, "CFA", "r15+160", "r15+320")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_functions(name: str, tmp_path: Path) -> None:
    tool, body, expected = CASES[name]
    result = audited(assembled(function(body), tmp_path, tool))
    assert said_of(result) == expected
    assert not result.undecided
