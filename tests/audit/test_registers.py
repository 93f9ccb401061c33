# SPDX-License-Identifier: Apache-2.0
"""What instructions of AMD64 change without naming it, seen by rules of the CFA that count from each register.

The registers are those that Intel's manual (volume 2) names. Of operands, `tests/instructions/test_effects.py` tells.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.support.audit import audited, contradicted, function, numbers_of
from tests.support.oracle.gas import assembled

pytestmark = pytest.mark.oracle

REGISTERS = (*("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp"), *(f"r{number}" for number in range(8, 16)))
#: Instructions without operands that name what they change. Those that an emulator executes, `test_effects` has.
IMPLICIT: Final[dict[str, set[str]]] = {
    "cpuid": {"rax", "rbx", "rcx", "rdx"},
    "rdtsc": {"rax", "rdx"},
    "rdtscp": {"rax", "rcx", "rdx"},
    "syscall": {"rax", "rcx", "r11"},
    "lahf": {"rax"},
    "call g": {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"},
    **{text: set() for text in ("test %rax, %rbx", "mov %rax, -64(%rsp)", "addsd %xmm1, %xmm0", "prefetcht0 (%rsp)")},
}


def based_on(register: str, instruction: str) -> str:
    """Return a body whose CFA counts from a register before and after an instruction."""
    # FP's value is lost where it is the base.
    fp = ".cfi_undefined %rbp; " if register == "rbp" else ""
    return (
        f"mov %rsp, %{register}; {fp}.cfi_def_cfa_register %{register}; nop; {instruction}; nop; "
        ".cfi_def_cfa %rsp, 8; .cfi_undefined %rbp; ret"
    )


def doubted_in(bodies: list[str], tmp_path: Path) -> list[int]:
    """Return of how many instructions of each function the CFA's rule is not confirmed."""
    path = assembled("".join(function(body, f"f{n}") for n, body in enumerate(bodies)), tmp_path)
    result = audited(path)
    assert result.function_count == len(bodies)
    # Findings of clones are one; each has some instructions.
    found = [
        (place, each.instruction_count // (1 + len(each.also_places)))
        for each in result.findings
        if each.subject == "CFA"
        for place in (each.place, *each.also_places)
    ]
    found += [(each.place, each.instruction_count) for each in result.not_compared]
    counts = [0] * len(bodies)
    for number, (_, count) in zip(numbers_of(path, [place for place, _ in found]), found, strict=True):
        counts[number] += count
    return counts


@pytest.mark.parametrize("instruction", IMPLICIT)
def test_an_instruction_that_changes_registers_without_naming_them(instruction: str, tmp_path: Path) -> None:
    doubted = doubted_in([based_on(register, instruction) for register in REGISTERS], tmp_path)
    changed = {register for register, count in zip(REGISTERS, doubted, strict=True) if count}
    assert changed == IMPLICIT[instruction]


#: Stores to FP's slot, at SP, or to a part of it, that no emulator here knows.
STORES = (
    *("vmovdqu %ymm0, -24(%rsp)", "vmovdqu64 %zmm0, -56(%rsp)", "lock cmpxchg16b -8(%rsp)", "bts %rax, (%rsp)"),
    *("vextracti128 $1, %ymm0, -8(%rsp)", "popq (%rsp); push %rax"),
)
#: Stores beside it.
NEAR = (
    *("mov %rax, -8(%rsp)", "movups %xmm0, -16(%rsp)", "vmovdqu %ymm0, -32(%rsp)", "fstpt -10(%rsp)"),
    *("cmpl $1, (%rsp)", "testb $1, (%rsp)", "movups (%rsp), %xmm0", "ucomisd (%rsp), %xmm0", "addsd (%rsp), %xmm0"),
    *("lock cmpxchg16b -16(%rsp)", "vmovdqu64 %zmm0, -64(%rsp)", "ldmxcsr (%rsp)", "bt $1, (%rsp)"),
)


def after_saving_fp(instruction: str) -> str:
    """Return a body that saves FP, and executes an instruction."""
    return (
        "push %rbp; .cfi_def_cfa_offset 16; .cfi_offset %rbp, -16; mov %rdi, %rbp; "
        f"{instruction}; nop; .cfi_undefined %rbp; pop %rax; .cfi_def_cfa_offset 8; ret"
    )


def test_stores_to_a_slot(tmp_path: Path) -> None:
    path = assembled("".join(function(after_saving_fp(text), f"f{n}") for n, text in enumerate(STORES)), tmp_path)
    result = audited(path)
    lost = contradicted(path) | set(numbers_of(path, [each.place for each in result.not_compared]))
    assert [text for n, text in enumerate(STORES) if n not in lost] == []


def test_stores_beside_a_slot(tmp_path: Path) -> None:
    path = assembled("".join(function(after_saving_fp(text), f"f{n}") for n, text in enumerate(NEAR)), tmp_path)
    result = audited(path)
    assert [NEAR[n] for n in numbers_of(path, [each.place for each in result.not_compared])] == []
    assert result.findings == ()
