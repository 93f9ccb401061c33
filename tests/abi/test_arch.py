# SPDX-License-Identifier: Apache-2.0
"""The ABIs: every number against the psABI documents and the SFrame specification's table of ABIs."""

import re
from pathlib import Path
from typing import Final

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


def test_names_of_registers_that_an_abi_does_not_have() -> None:
    assert [arch.register_name(len(arch.registers)) for arch in ARCHES] == ["r33", "r32", "r32", "r32"]


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


each_abi = pytest.mark.parametrize(
    ("arch", "triplet"),
    [(AMD64, "x86_64-linux-gnu"), (AARCH64_LE, "aarch64-linux-gnu"), (S390X, "s390x-linux-gnu")],
    ids=str,
)
#: A call of a function, and what leads to one: the bytes of its field, and whether the value counts from there.
CALLS: Final = {AMD64: "call f", AARCH64_LE: "bl f", S390X: "brasl %r14, f"}
WORDS: Final = {".8byte f": (8, False), ".8byte f-.": (8, True), ".4byte f-.": (4, True), ".4byte f": (4, False)}
MORE: Final = {AMD64: {".4byte f@PLT": (4, True), "mov $f, %rax": (4, False)}}


@pytest.mark.oracle
@each_abi
def test_registers_have_the_names_of_readelf(arch: Arch, triplet: str, tmp_path: Path) -> None:
    steps = "".join(f".cfi_undefined {number}\nnop\n" for number in range(len(arch.registers)))
    path = assembled(f".cfi_startproc\nnop\n{steps}.cfi_endproc\n", tmp_path, f"{triplet}-as")
    shown = re.findall(r"DW_CFA_undefined: (r\d+)(?: \((\w+)\))?", run(need("readelf"), "--debug-dump=frames", path))
    assert [name or number for number, name in shown] == list(arch.registers)


@pytest.mark.oracle
@each_abi
def test_relocations_are_those_of_the_assembler(arch: Arch, triplet: str, tmp_path: Path) -> None:
    """A word for each, and a call, whose field the linker fills in."""
    words = WORDS | MORE.get(arch, {})
    source = "".join(f"{word}\n" for word in words)
    path = assembled(f".globl f\n.data\n{source}.text\n{CALLS[arch]}\n", tmp_path, f"{triplet}-as")
    image = load(path)
    found: dict[str, list[tuple[int, int, int]]] = {
        table.name: [(offset, info & 0xFFFFFFFF, addend) for offset, info, addend in image.records(table, "QQq")]
        for name in (".rela.data", ".rela.text")
        for table in image.sections_named(name)
    }
    kinds = [kind for _, kind, _ in found[".rela.data"]]
    assert [arch.cfi_relocations[kind] for kind in kinds] == list(words.values())
    assert kinds[:3] == [arch.absolute_relocation, arch.pc64_relocation, arch.pc32_relocation]
    ((offset, kind, addend),) = found[".rela.text"]
    bits, lost, size = arch.branch_relocations[kind]
    assert addend == arch.distance_bias
    run(need(f"{triplet}-ld"), "-Ttext=0x10000", "--defsym=f=0x12340", "-e", "f", "-o", tmp_path / "linked", path)
    field = load(tmp_path / "linked").bytes_at(0x10000 + offset, size)
    assert field is not None
    value = int.from_bytes(field, arch.instruction_order)
    assert value & ((1 << bits) - 1) == 0x2340 - offset + addend >> lost


@pytest.mark.oracle
@each_abi
def test_where_linkers_put_programs(arch: Arch, triplet: str, tmp_path: Path) -> None:
    path = assembled(".globl _start\n_start: nop\n", tmp_path, f"{triplet}-as")
    run(need(f"{triplet}-ld"), "-o", tmp_path / "program", path)
    first, *_ = (segment for segment in load(tmp_path / "program").segments if segment.type == PT_LOAD)
    assert first.vaddr == arch.program_vaddr
    run(f"{triplet}-ld", "-shared", "--hash-style=sysv", "-o", tmp_path / "library", path)
    library = load(tmp_path / "library")
    (section,) = library.sections_named(".hash")
    buckets, chains, *_ = words = [word for (word,) in library.records(section, arch.hash_word)]
    assert len(words) == 2 + buckets + chains
