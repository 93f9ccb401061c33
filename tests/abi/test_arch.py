# SPDX-License-Identifier: Apache-2.0
"""The ABIs: every number against the psABI documents and the SFrame specification's table of ABIs."""

from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, S390X, Arch, arch_of_elf
from cfi2sframe.constants.elf import PT_LOAD
from tests.support.needs import need, run
from tests.support.oracle.gas import assembled

#: ABI -> ELF machine, byte order, sfh_abi_arch, SP, FP, RA, fixed RA offset, SP of the caller - CFA.
NUMBERS = {
    "AMD64": (62, "<", 3, 7, 6, 16, -8, 0),
    "AArch64": (183, "<", 2, 31, 29, 30, 0, 0),
    "AArch64 BE": (183, ">", 1, 31, 29, 30, 0, 0),
    "s390x": (22, ">", 4, 15, 11, 14, 0, -160),
}


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_numbers(arch: Arch) -> None:
    assert NUMBERS[arch.name] == (
        arch.elf_machine,
        arch.byte_order,
        arch.abi_id,
        arch.sp_register,
        arch.fp_register,
        arch.ra_register,
        arch.fixed_ra_offset,
        arch.sp_offset_from_cfa,
    )


def test_cfa_offsets_are_scaled_on_s390x_alone() -> None:
    scales = {arch.name: (arch.cfa_offset_bias, arch.cfa_offset_scale) for arch in ARCHES}
    assert scales == {"AMD64": (0, 1), "AArch64": (0, 1), "AArch64 BE": (0, 1), "s390x": (160, 8)}


@pytest.mark.parametrize(
    ("arch", "names"),
    [
        (AMD64, "0 rax 1 rdx 2 rcx 3 rbx 4 rsi 5 rdi 6 rbp 7 rsp 8 r8 15 r15 16 rip 17 xmm0 32 xmm15 33 r33"),
        (AARCH64_LE, "0 x0 30 x30 31 sp 46 r46"),
        (S390X, "0 r0 15 r15 16 f0 17 f2 20 f1 24 f8 31 f15 32 r32"),
    ],
)
def test_register_names(arch: Arch, names: str) -> None:
    numbers, expected = map(int, names.split()[::2]), names.split()[1::2]
    assert list(map(arch.register_name, numbers)) == expected


@pytest.mark.parametrize(
    ("machine", "byte_order", "expected"),
    [
        (62, "<", AMD64),
        (62, ">", None),
        (183, "<", AARCH64_LE),
        (183, ">", AARCH64_BE),
        (22, ">", S390X),
        (22, "<", None),
        (243, "<", None),
    ],
)
def test_arch_of_elf(machine: int, byte_order: str, expected: Arch | None) -> None:
    assert arch_of_elf(machine, byte_order) == expected


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("arch", "triplet"),
    [(AMD64, "x86_64-linux-gnu"), (AARCH64_LE, "aarch64-linux-gnu"), (S390X, "s390x-linux-gnu")],
    ids=str,
)
def test_where_linkers_put_programs(arch: Arch, triplet: str, tmp_path: Path) -> None:
    path = assembled(".globl _start\n_start: nop\n", tmp_path, f"{triplet}-as")
    run(need(f"{triplet}-ld"), "-o", tmp_path / "program", path)
    first, *_ = (segment for segment in load(tmp_path / "program").segments if segment.type == PT_LOAD)
    assert first.vaddr == arch.program_vaddr
