# SPDX-License-Identifier: Apache-2.0
"""Programs in assembly whose instructions have to give what their CFI, written by hand, says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.code.code_reasons import CodeReason
from tests.support.code.assembled import assembled, sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.oracle

ARCHES: Final[dict[str, Arch]] = {
    **dict.fromkeys(("frames", "calls", "tables"), AMD64),
    "aarch64": AARCH64_LE,
    "s390x": S390X,
}
#: Numbers below a page are no addresses for the analysis.
OPTIONS: Final = {"aarch64": ("-Ttext-segment=0x10000",), "s390x": ("-Ttext-segment=0x10000",)}
PROGRAMS: Final = [(file, name) for file in ARCHES for name in sources(file)]


@pytest.mark.parametrize(("file", "name"), PROGRAMS)
def test_rows(file: str, name: str, tmp_path: Path) -> None:
    text, reasons = sources(file)[name]
    # Of the AMD64 programs, all code without a row has its reason.
    known = reasons if ARCHES[file] is AMD64 else None
    is_static = name.endswith("at fixed addresses")
    program = assembled(ARCHES[file], text, tmp_path, is_static=is_static, options=OPTIONS.get(file, ()))
    assert program.problems(known) == []


@pytest.mark.parametrize("is_static", [False, True], ids=["a number in a library", "an address in a program"])
def test_a_number_is_an_address_where_addresses_are_fixed(tmp_path: Path, *, is_static: bool) -> None:
    """Rust's `char` has values from 0x110000 on that are none, which begin code of large libraries, too."""
    source = f"""
        func f
        mov eax, 0x110010
        ret
        endf
        .balign 16
        .Lg:
        {".cfi_startproc" if is_static else ""}
        xor eax, eax
        ret
        {".cfi_endproc" if is_static else ""}
    """
    program = assembled(AMD64, source, tmp_path, is_static=is_static, options=("--section-start=.text=0x110000",))
    assert program.problems({} if is_static else {".Lg": CodeReason.NOT_REACHED}) == []


@pytest.mark.xfail(strict=True, reason="what a function of this file saves and restores counts as changed, but for FP")
def test_a_function_of_this_file_that_saves_a_register(tmp_path: Path) -> None:
    source = """
        func f
        push rbx
        .cfi_def_cfa_offset 16
        mov rbx, rsp
        and rsp, -64
        .cfi_def_cfa rbx, 16
        call saves
        mov rsp, rbx
        .cfi_def_cfa rsp, 16
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        endf
        func saves
        push rbx
        .cfi_def_cfa_offset 16
        xor ebx, ebx
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        endf
    """
    assert assembled(AMD64, source, tmp_path).problems({}) == []
