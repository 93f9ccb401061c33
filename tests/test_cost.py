# SPDX-License-Identifier: Apache-2.0
"""What large and generated files have thousands of: time is in proportion to the file, and all of it is converted.

What a hostile file may cost is bounded as a class: `test_guard`.
"""

from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file, object_file, push_fp
from tests.support.oracle.gas import assembled
from tests.support.process import BoundedRun, run_within_bound

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

CIE: Final = cie_of(AMD64)
CODE_SIZE: Final = 1 << 24
VERBS: Final = (
    ("coverage", "--top", "all"),
    ("coverage", "--format", "json"),
    ("verify", "--would-be"),
    ("convert", "-O2"),
)


def run(data: bytes, tmp_path: Path, *arguments: str) -> BoundedRun:
    path = tmp_path / "input.elf"
    path.write_bytes(data)
    target = ("-o", tmp_path / "out.sframe") if arguments[0] == "convert" else ()
    return run_within_bound(*arguments, path, *target, input_size=len(data))


def file_of(*fdes: asm.Fde) -> bytes:
    return linked_file(AMD64, fdes, codes=(Code(size=CODE_SIZE),))


def fp_saved_at(number: int) -> bytes:
    return b"\x86" + asm.uleb128(number)


@pytest.mark.parametrize("arguments", VERBS, ids=" ".join)
def test_many_holes_of_a_function_that_many_others_cut(arguments: tuple[str, ...], tmp_path: Path) -> None:
    """Its parts and holes are looked at for each piece that is left of it."""
    unsayable = b"\x0f\x05\x77\x28\x06\x23\x08"  # def_cfa_expression: breg7 40; deref; plus_uconst 8
    rows = b"".join(b"\x44" + (unsayable if n % 2 else b"\x0c\x07" + asm.uleb128(8)) for n in range(12_000))
    others = [asm.Fde(CIE, TEXT_VADDR + 1 + 16 * n, 2) for n in range(2_900)]
    assert run(file_of(asm.Fde(CIE, TEXT_VADDR, 1 << 17, (rows,)), *others), tmp_path, *arguments).status == 0


def test_code_without_cfi_in_many_sections(tmp_path: Path) -> None:
    """Each section is compared with the ranges in it, not with those of the file."""
    sections = {f".text.f{n}": (push_fp(AMD64, 0),) for n in range(4_000)}
    data = object_file(AMD64, sections, code_size=40)
    done = run(data, tmp_path, "coverage", "--from", "code")
    assert done.is_answered(0)
    assert done.seconds < 2


@pytest.mark.oracle
def test_an_object_of_many_function_sections(tmp_path: Path) -> None:
    """What is the same for all relocation sections is looked up once: half a second, where it took half a minute."""
    function = """.section .text.f{0},"ax",@progbits
    .globl f{0}
f{0}: .cfi_startproc
    sub $8,%rsp
    .cfi_def_cfa_offset 16
    call g
    add $8,%rsp
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
"""
    padded = '.section .text.two,"ax"\nh1: .cfi_startproc\n ret\n .cfi_endproc\n .p2align 4\n'
    padded += "h2: .cfi_startproc\n ret\n .cfi_endproc\n"
    path = assembled("".join(map(function.format, range(16_000))) + padded, tmp_path)
    run = run_within_bound(path, "-o", tmp_path / "out.sframe", input_size=path.stat().st_size)
    assert run.status == 0, run.err
    assert run.seconds < 5


@pytest.mark.parametrize("name", [".text", ".plt"])
@pytest.mark.parametrize("byte", [b"\0", b"\x90", b"\xcc"], ids=["zeros", "nops", "traps"])
def test_what_fills_costs_nothing_for_each_byte(byte: bytes, name: str, tmp_path: Path) -> None:
    """Space that a program fills at run time, between functions or stubs: memory is in proportion to the file."""
    jump = b"\xff\x25\0\0\0\0\x66\x90"
    codes = (Code(data=b"\xc3" * 16), Code(TEXT_VADDR + 0x1000, 0, name, jump + byte * CODE_SIZE + jump))
    fdes = [asm.Fde(CIE, TEXT_VADDR, 16)]
    fdes += [asm.Fde(CIE, TEXT_VADDR + 0x1000 + at, 8) for at in (0, CODE_SIZE + 8) if name == ".text"]
    data = linked_file(AMD64, fdes, codes=codes)
    for arguments in VERBS:
        done = run(data, tmp_path, *arguments)
        assert done.status == 0, done.err
        assert done.memory_size < 8 * CODE_SIZE


def pushes(first: int, last: int) -> bytes:
    """Return the rows of some pushes, a byte of code each."""
    return b"".join(b"\x41\x0e" + asm.uleb128(16 + 8 * n) for n in range(first, last))


#: Functions that follow one another, so that ranges may be cut anywhere: the rows of each, a byte of code for each row.
STRETCHES: Final = {
    "two rows by turns": [b"\x41\x0e\x10\x41\x0e\x08" * 10_000] * 3,
    "each is the beginning of the next": [pushes(0, n) for n in range(1, 250)],
    "each is the end of the next": [pushes(250 - n, 250) for n in range(1, 250)],
    "each has most rows of the next": [pushes(n, 200 + n) for n in range(100)],
    "all rows differ": [pushes(0, 20_000)],
    "equal functions": [pushes(0, 8)] * 5_000,
}


@pytest.mark.parametrize("version", ["3", "2"])
@pytest.mark.parametrize("name", STRETCHES)
def test_stretches_of_rows_that_recur(name: str, version: str, tmp_path: Path) -> None:
    fdes, start = [], TEXT_VADDR
    for number, rows in enumerate(STRETCHES[name]):
        size = rows.count(b"\x41") + 2
        fdes.append(asm.Fde(CIE, start, size, (rows, fp_saved_at(number % 50 + 2))))
        start += size
    assert run(file_of(*fdes), tmp_path, "convert", "-O2", "--sframe-version", version).status == 0
