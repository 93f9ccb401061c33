# SPDX-License-Identifier: Apache-2.0
"""Random CFI programs, assembled by GNU as: rows equal those of two other readers (`tools/fuzz_differential.py`)."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe.dwarf.row_machine import RowMachine
from tests.fuzz.cfi_programs import MACHINES, Writer
from tests.fuzz.differential import Tools, run
from tests.support import known_wrong

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
