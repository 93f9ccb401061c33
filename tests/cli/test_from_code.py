# SPDX-License-Identifier: Apache-2.0
"""`--from code` on the command line: a program with one function that has CFI and calls one that has none."""

import json
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.samples import CODE, FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, cie_of

ROOT = Path(__file__).resolve().parents[2]
#: `sub rsp, 8; call pushing; add rsp, 8; ret`, and nops up to the next function.
COVERED = bytes.fromhex("48 83 ec 08  e8 17 00 00 00  48 83 c4 08  c3") + bytes.fromhex("0f 1f 40 00") * 4 + b"\x90\x90"
#: `push rbx; mov rbx, rdi; pop rbx; ret`; nothing leads to what follows: `add rax, 1; ret`, and `add rax, 2; jmp rax`.
PUSHING = bytes.fromhex("53  48 89 fb  5b  c3")
UNNAMED = bytes.fromhex("48 83 c0 01  c3")
UNREACHED = bytes.fromhex("48 83 c0 02  ff e0")
NAMES = ("with", "without")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A folder with a program that has CFI for its first function, and one that has none at all."""
    program = (asm.advance(4), asm.def_cfa_offset(16), asm.advance(9), asm.def_cfa_offset(8))
    fde = asm.Fde(cie_of(AMD64), TEXT_VADDR, 14, program)
    frame = asm.EhFrame((fde, asm.Terminator()), FRAME_VADDR).assemble()
    eh_frame = asm.Section(".eh_frame", frame, 1, SHF_ALLOC, FRAME_VADDR, align=8)
    text = asm.Section(".text", COVERED + PUSHING + UNNAMED + UNREACHED, 1, CODE, TEXT_VADDR, align=16)
    assert len(COVERED) == 32
    for name, frames in zip(NAMES, ((eh_frame,), ()), strict=True):
        spare = (asm.Segment(0, 0, (".text",)),) * 2
        segments = (*(asm.Segment(1, 4, (".eh_frame",)) for _ in frames), asm.Segment(1, 5, (".text",)), *spare)
        symbol = asm.Symbol("pushing", TEXT_VADDR + 32, 6, 0x12)
        data = asm.elf_file(AMD64.elf_machine, (*frames, text), file_type=3, segments=segments, symbols=(symbol,))
        (tmp_path / name).write_bytes(data)
    return tmp_path


def test_convert_and_verify(files: Path) -> None:
    path = files / "with"
    done = run("--in-place", "-v", "--from", "code", path)
    assert done.status == 0
    assert any(" from instructions), and the only function with CFI; " in line for line in done.err)
    assert run("verify", "--from", "code", path) == (0, b"", ())
    assert run("verify", path) == (0, b"", ())
    # What would be written is there; without the option something else would be.
    assert run("--check", "--from", "code", path).status == 0
    assert run("--check", path, "--replace").status == 1


def test_a_file_without_cfi(files: Path) -> None:
    path = files / "without"
    done = run("--in-place", path)
    assert (done.status, done.err[0].endswith("convert --from code needs none")) == (3, True)
    assert run("--in-place", "--from", "code", path).status == 0
    assert run("verify", "--from", "code", path) == (0, b"", ())
    assert run("verify", path) == (0, b"", ())


def test_coverage(files: Path) -> None:
    done = run("coverage", "--from", "code", *(files / name for name in NAMES))
    first, _, heading, *rows = done.out.decode().splitlines()
    assert first.startswith("2 files: SFrame version 3 describes ")
    assert " from code  file" in heading
    assert [row.split()[-2] for row in rows[:3]] == ["11", "25", "36"]
    # The table has the column only if it says something.
    assert b"from code" not in run("coverage", files / "with", files / "with").out
    (account,) = json.loads(run("coverage", "--format", "json", "--from", "code", files / "with").out)["files"]
    assert account["from_code_size"] == 11
    assert list(account["sources"]) == [".eh_frame", "code"]
    (unreached,) = account["missing"]
    assert (unreached["size"], unreached["reason"]) == (6, "NOT_REACHED")


def test_size(files: Path) -> None:
    command = ("size", "--format", "json", "-O0", files / "with")
    reports = [json.loads(run(*command, *words).out) for words in (("--from", "code"), ())]
    with_code, without = (report["files"][0] for report in reports)
    assert with_code["record_count"] == without["record_count"] + 2
    # GNU as would have had nothing to say.
    assert with_code["gnu_size"] == without["gnu_size"]
    assert with_code["function_count"] == without["function_count"] == 1


@pytest.mark.parametrize("size", [1 << 40, 1 << 62, (1 << 64) - 1])
@pytest.mark.parametrize(("name", "status"), [("with", 0), ("without", 3)])
def test_a_section_larger_than_any_file(files: Path, name: str, status: int, size: int) -> None:
    """Its header may say so: the instructions are then a source that cannot be read."""
    file = File((files / name).read_bytes())
    file.section(".text").size = size
    (files / name).write_bytes(file)
    assert run("verify", "--would-be", "--from", "code", files / name).status == status
