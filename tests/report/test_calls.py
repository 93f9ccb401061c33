# SPDX-License-Identifier: Apache-2.0
"""Calls in code: every form of the instructions, and all calls of real files as GNU objdump finds them."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.arch import AARCH64_BE, AARCH64_LE, AMD64, S390X
from cfi2sframe.budget import Budget
from cfi2sframe.errors import BudgetError
from cfi2sframe.report.calls import CallFinder
from tests.support.emitted import run
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from tests.support.oracle.tools import CorpusArch

CALLS: Final = {
    AMD64: (
        "e8 78563412",
        "ffd0",
        "41ffd4",
        "ff10",
        "ff15 78563412",
        "3effd0",
        "f2e8 78563412",
        "ff18",
        "ff9c24 78563412",
    ),
    AARCH64_LE: ("78563496", "00003fd6", "e0033fd6", "1f093fd6", "1f0d3fd6", "41083fd7", "410c3fd7"),
    S390X: ("c0e5 12345678", "a7e5 1234", "0de1", "05ef", "4de0 1008", "45e0 1008"),
}
#: Jumps, instructions whose names or bytes are like calls', and (at last) calls of the next instruction.
OTHERS: Final = {
    AMD64: ("0f05", "0f34", "e9 78563412", "ffe0", "b8 e8000000", "c3", "06", "e8 00000000"),
    AARCH64_LE: ("78563414", "00001fd6", "c0035fd6", "01000094"),
    # A branch on condition, registers other than the link register, and register 0, which stands for no branch.
    S390X: ("c0f4 12345678", "07fe", "c015 12345678", "a735 1234", "0d10", "0de0", "c0e4 12345678", "c0e5 00000003"),
}
NOPS: Final = {AMD64: "90", AARCH64_LE: "1f2003d5", S390X: "0707"}


def calls_of(arch: Arch, code: bytes, *, is_linked: bool = True) -> list[int]:
    return list(CallFinder(arch, Budget(1 << 20), is_linked=is_linked).return_addresses(code, 0x1000))


@pytest.mark.parametrize("arch", CALLS, ids=lambda arch: arch.name)
def test_forms(arch: Arch) -> None:
    nop = bytes.fromhex(NOPS[arch])
    for text in CALLS[arch]:
        call = bytes.fromhex(text)
        assert calls_of(arch, nop + call + nop) == [0x1000 + len(nop + call)], text
    for text in OTHERS[arch]:
        assert calls_of(arch, nop + bytes.fromhex(text) + nop) == [], text
    # All in a row: no instruction's length was mistaken.
    code = b"".join(bytes.fromhex(text) for text in (*CALLS[arch], *OTHERS[arch], *CALLS[arch]))
    assert len(calls_of(arch, code)) == 2 * len(CALLS[arch])


@pytest.mark.parametrize("arch", CALLS, ids=lambda arch: arch.name)
def test_call_of_what_is_next(arch: Arch) -> None:
    """The last instruction of a function may call the next function; in objects no distance is final."""
    call, nop = bytes.fromhex(OTHERS[arch][-1]), bytes.fromhex(NOPS[arch])
    assert calls_of(arch, nop + call) == [0x1000 + len(nop + call)]
    assert calls_of(arch, nop + call + nop, is_linked=False) == [0x1000 + len(nop + call)]


def test_big_endian_aarch64_has_little_endian_code() -> None:
    code = bytes.fromhex("".join(CALLS[AARCH64_LE]))
    assert calls_of(AARCH64_BE, code) == calls_of(AARCH64_LE, code)


@pytest.mark.parametrize("arch", CALLS, ids=lambda arch: arch.name)
@pytest.mark.parametrize("size", [1 << 14, 3 << 14])
def test_long_code(arch: Arch, size: int) -> None:
    """AMD64 code is disassembled by pieces: no instruction is lost between them, wherever they part."""
    nop, call = bytes.fromhex(NOPS[arch]), bytes.fromhex(CALLS[arch][0])
    for shift in range(8):
        code = nop * (shift + size // len(nop) - 4) + call * 3 + nop * 9
        first = len(nop) * (shift + size // len(nop) - 4)
        assert calls_of(arch, code) == [0x1000 + first + len(call) * n for n in (1, 2, 3)]
    with pytest.raises(BudgetError, match="between calls"):
        list(CallFinder(arch, _spent(), is_linked=True).return_addresses(nop * size, 0))


def _spent() -> Budget:
    budget = Budget(0)
    budget.spend(500_000 - 1000, "a test")
    return budget


#: `address: bytes  instruction` of objdump; the instruction without its prefixes.
_LINE: Final = re.compile(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2,8} )+) *\t(?:(?:bnd|notrack|[a-z]s|rex\S*) )*(.*)")
_CALLS: Final = {
    "objdump": re.compile(r"l?call\b"),
    "aarch64-linux-gnu-objdump": re.compile(r"(bl|blr|blraaz?|blrabz?)\t"),
    "s390x-linux-gnu-objdump": re.compile(r"(brasl|bras|bas|bal|basr|balr)\t%r14,(?!%r0$)"),
}


def objdump_calls(program: str, path: Path) -> tuple[set[int], set[int]]:
    """Return the addresses after calls, and those after bytes that objdump prints as data."""
    calls, data = set[int](), set[int]()
    for line in run(program, "-dw", path).splitlines():
        match = _LINE.match(line)
        if match is not None:
            end = int(match[1], 16) + len(match[2].replace(" ", "")) // 2
            if _CALLS[program].match(match[3]):
                calls.add(end)
            elif match[3].startswith("."):
                data.add(end)
    return calls, data


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("arch", "program"),
    list(zip(("amd64", "arm64", "s390x"), _CALLS, strict=True)),
)
def test_calls_of_a_c_library(corpus: Callable[[CorpusArch], Path], arch: CorpusArch, program: str) -> None:
    if program == "objdump" and platform.machine() != "x86_64":
        pytest.skip("this machine's objdump reads other code")
    need(program)
    path = next(iter(sorted(corpus(arch).rglob("libc.so.6"))))
    image = load(str(path))
    finder = CallFinder(image.arch, image.budget, is_linked=True)
    found = set[int]()
    for code in image.code_ranges:
        data = image.bytes_at(code.start_vaddr, code.end_vaddr - code.start_vaddr)
        assert data is not None
        found |= set(finder.return_addresses(data, code.start_vaddr))
    calls, unread = objdump_calls(program, path)
    assert len(calls) > 10_000
    # The sweep takes the whole section for one range: calls of what is next, of a few functions, look like no calls.
    missed = calls - found
    assert len(missed) <= 4
    # objdump takes four bytes for data where two of zero come first.
    assert found - calls <= unread
