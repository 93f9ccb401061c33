# SPDX-License-Identifier: Apache-2.0
"""Programs in assembly whose instructions have to give what their CFI, written by hand, says, or nothing."""

from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.why import Reason
from tests.support.instructions.assembled import assembled, sources

pytestmark = pytest.mark.oracle

ARCHES: Final[dict[str, Arch]] = {
    **dict.fromkeys(("frames", "calls", "tables"), AMD64),
    "aarch64": AARCH64_LE,
    "s390x": S390X,
}
#: Numbers below a page are no addresses for the analysis.
OPTIONS: Final = {"aarch64": ("-Ttext-segment=0x10000",), "s390x": ("-Ttext-segment=0x10000",)}
PROGRAMS: Final = [(file, name) for file in ARCHES for name in sources(file)]
#: The programs with rows that are not derived, and the labels after which they would be.
MISSING: Final = {
    "SP of an unknown value": {"f"},
    "the RA is overwritten": {"f"},
    "two depths at one place": {"f"},
    "an instruction that may do anything": {"f"},
    "an import that never returns": {"f"},
    "imports of other languages that never return": {"f", "g"},
    "an import by its slot": {"f"},
    "a function that is found never to return": {".Lfail", "fail"},
    "a call that padding follows": {"f"},
    "a call right before another function": {"f"},
    "a tail call": {"f", "g"},
    "a retpoline": {".Lspeculated", "f", "g"},
    "a jump by a register": {"f"},
    "calls leave their registers as they like": {"f"},
    "a function of this file that changes it by what it calls": {"f"},
    "a function of this file that spoils FP": {"f", "spoils"},
    "a system call that ends the process": {"f"},
    "a new thread has another stack": {"f"},
    "a function of the same file that never returns, by its stub": {"f", "fail"},
    "a function of the same file that never returns, by its slot": {"f", "fail"},
    "a function of the same file that never returns, by a word that only the loader writes": {"f", "fail"},
    "a function of the same file that never returns, by a word that anything may write": {"fail"},
    "a label that an array names, in a function that never comes back": {".Lcall", ".Lf", ".Lnext"},
    "a mark of a function after a call of which it is not known that it never returns": {".Lfail", "jumps"},
    "an address in a register": {".Lgo", ".Lsecond", "f"},
    "an address of four bytes, at fixed addresses": {".Lgo", ".Lsecond", "f"},
    "an address that counts from a label": {".Lcases", "f"},
    "an instruction to execute, after a call that never returns": {"f"},
    "no entry, in the midst of a function": {"f", ".Lback", ".Lnever", ".Lother", ".Lcases", ".Lout"},
}


@pytest.mark.parametrize(("file", "name"), PROGRAMS)
def test_rows(file: str, name: str, tmp_path: Path) -> None:
    is_static = name.endswith("at fixed addresses")
    program = assembled(ARCHES[file], sources(file)[name], tmp_path, is_static=is_static, options=OPTIONS.get(file, ()))
    assert program.problems() == []
    assert program.missing() == MISSING.get(name, set())


def reasons(source: str, tmp_path: Path) -> dict[str, Reason]:
    return assembled(AMD64, source, tmp_path).reasons()


def test_reasons(tmp_path: Path) -> None:
    source = """
        func unknown
        push rbx
        iretq
        endf
        func disagrees
        test edi, edi
        je .Lmixed
        push rbx
        .Lmixed:
        mov eax, 1
        jmp .Lmixed
        endf
        func traps
        push rbx
        ud2
        endf
        func takes_arguments_off
        ret 16
        endf
        func leaves_something
        push rbx
        ret
        endf
        .balign 16
        .Lnothing:
        push rbx
        pop rbx
        jmp disagrees
    """
    found = reasons(source, tmp_path)
    assert {name: found[name] for name in found if name != ".Lmixed"} == {
        "unknown": Reason.UNKNOWN,
        "disagrees": Reason.PATHS_DISAGREE,
        "traps": Reason.NOT_PROVEN,
        "takes_arguments_off": Reason.NOT_PROVEN,
        "leaves_something": Reason.NOT_PROVEN,
        ".Lnothing": Reason.NOT_REACHED,
    }


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
        jmp f
        {".cfi_endproc" if is_static else ""}
    """
    program = assembled(AMD64, source, tmp_path, is_static=is_static, options=("--section-start=.text=0x110000",))
    assert program.problems() == []
    assert program.missing() == set()
