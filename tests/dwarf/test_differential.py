# SPDX-License-Identifier: Apache-2.0
"""Random CFI programs, assembled by GNU as: rows equal those of two other readers."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe import load
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.row_machine import RowMachine
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.sources import find_cfi
from tests.fuzz.cfi_programs import MACHINES, Writer
from tests.fuzz.differential import Tools, run
from tests.support import known_wrong
from tests.support.oracle.frames import RegisterOffset, Rule
from tests.support.oracle.llvm_frames import parse_llvm_frames
from tests.support.oracle.readelf_frames import parse_readelf_frames

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.arch import Arch as MachineArch
    from cfi2sframe.dwarf.entries import DwarfCie
    from tests.support.oracle.frames import Arch
    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

pytestmark = pytest.mark.oracle

#: Functions by architecture; seed 8 is one for readelf alone.
PROGRAMS: dict[Arch, tuple[tuple[int, int], ...]] = {
    "amd64": ((1, 400), (8, 100)),
    "aarch64": ((1, 200), (8, 50)),
    "s390x": ((1, 200), (8, 50)),
}


@pytest.fixture
def tools_for(
    binutils: Callable[[BinutilsVersion], Binutils], llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool]
) -> Callable[[Arch], Tools]:
    def find(arch: Arch) -> Tools:
        newest = binutils("newest")
        return Tools(newest.tool("as", arch), newest.tool("readelf", arch), str(llvm_dwarfdump("newest").path))

    return find


@pytest.mark.parametrize("arch", PROGRAMS)
def test_rows_of_random_programs(arch: Arch, tools_for: Callable[[Arch], Tools], tmp_path: Path) -> None:
    for seed, count in PROGRAMS[arch]:
        outcome = run(arch, tools_for(arch), seed, count, tmp_path)
        assert outcome.differences == []
        assert outcome.function_count == count
        assert outcome.row_count > 3 * count


def test_differences_are_seen(
    tools_for: Callable[[Arch], Tools], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the test above relies on: both judges notice when every saved register is elsewhere."""
    init = RowMachine.__init__

    def init_for_another(self: RowMachine, cie: DwarfCie, arch: MachineArch) -> None:
        init(self, cie._replace(data_alignment=-4), arch)

    monkeypatch.setattr(RowMachine, "__init__", init_for_another)
    found = run("amd64", tools_for("amd64"), 1, 50, tmp_path).differences
    assert {text.partition(":")[0] for text in found} == {"readelf", "llvm-dwarfdump"}


@pytest.mark.parametrize("arch", MACHINES)
def test_programs_use_every_opcode(arch: Arch) -> None:
    text = "\n".join(Writer(MACHINES[arch], 1, is_gnu=True).lines(1500))
    escaped = {line.split()[1].rstrip(",") for line in text.splitlines() if ".cfi_escape" in line}
    codes = {int(code, 16) for code in escaped}
    assert {code for code in codes if code < 0x40} >= {0, *range(0x05, 0x0A), 0x0F, *range(0x10, 0x17), 0x2E, 0x2F}
    assert {code & 0xC0 for code in codes} == {0, 0x80, 0xC0}
    directives = {line.split()[0] for line in text.splitlines() if line.startswith("\t.cfi")}
    assert len(directives) >= 19


def test_one_opcode_stops_llvm(
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """Why some programs are readelf's alone to judge."""
    known_wrong.expect_failure(request, "cfa-gnu-negative-offset", "llvm-dwarfdump", llvm_dwarfdump("newest").version)
    source, made = tmp_path / "a.s", tmp_path / "a.o"
    source.write_text(".cfi_startproc\nnop\n.cfi_escape 0x2f, 6, 2\nnop\n.cfi_endproc\n", encoding="ascii")
    subprocess.run([binutils("newest").tool("as"), source, "-o", made], check=True)
    shown = subprocess.run([llvm_dwarfdump("newest").path, "--eh-frame", made], capture_output=True, check=False)
    assert shown.returncode == 0, shown.stderr


RESTORE_IN_CIE = ".cfi_startproc\n.cfi_restore 6\npush %rbp\n.cfi_def_cfa_offset 16\nnop\n.cfi_endproc\n"


@pytest.mark.parametrize("printer", ["readelf", "llvm-dwarfdump"])
def test_a_restore_in_a_cie_is_no_rule(
    printer: str,
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    """GNU as writes it there when .cfi_restore stands before the first advance (PR gas/33170)."""
    tools, dwarfdump = binutils("newest"), llvm_dwarfdump("newest")
    version = tools.version if printer == "readelf" else dwarfdump.version
    known_wrong.expect_failure(request, "restore-in-a-cie", printer, version)
    source, made = tmp_path / "a.s", tmp_path / "a.o"
    source.write_text(RESTORE_IN_CIE, encoding="ascii")
    subprocess.run([tools.tool("as"), source, "-o", made], check=True)
    image = load(made)
    (entry,) = read_programs(image, find_cfi(image)).entries
    assert b"\xc6" in entry.fde.cie.instructions
    command = [tools.tool("readelf"), "-wF"] if printer == "readelf" else [dwarfdump.path, "--eh-frame"]
    shown = subprocess.run([*command, made], capture_output=True, text=True, check=False).stdout.splitlines()
    sections = parse_readelf_frames(shown, "amd64") if printer == "readelf" else parse_llvm_frames(shown, "amd64")
    (fde,) = sections[-1].fdes
    found = [(row.pc_vaddr, row.cfa, row.registers.get(6, Rule("undefined"))) for row in fde.rows]
    assert found == [(0, RegisterOffset(7, 8), Rule("undefined")), (1, RegisterOffset(7, 16), Rule("undefined"))]
    assert [(row.start_delta, row.state.fp) for row in entry.program.table.rows] == [
        (0, NoRule.UNSPECIFIED),
        (1, NoRule.UNSPECIFIED),
    ]
