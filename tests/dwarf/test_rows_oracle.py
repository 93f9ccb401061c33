# SPDX-License-Identifier: Apache-2.0
"""The rows of a conversion equal what independent readers make of the same CFI, on large libraries of each ABI."""

from __future__ import annotations

import gc
from importlib.metadata import version
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from elftools.dwarf.callframe import CallFrameInfo
from elftools.dwarf.structs import DWARFStructs

from tests.support import cfi_asm as asm
from tests.support import known_wrong
from tests.support.oracle.rows import compare_rows
from tests.support.oracle.tools import find_llvm_dwarfdump
from tests.support.targets import AARCH64, S390, Target, label

if TYPE_CHECKING:
    from collections.abc import Iterator


pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

#: Left out: nearly nothing, and never a function that default rows can express.
MAX_LEFT_OUT: Final = {2: 250, 3: 150}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: collecting would be half of the time."""
    gc.disable()
    yield
    gc.enable()


def check(library: Path, fewest: int, dwarfdump: str | None) -> None:
    for sframe_version in (2, 3):
        found = compare_rows(library, sframe_version, dwarfdump=dwarfdump)
        assert found.problems == [], sframe_version
        assert found.left_out <= MAX_LEFT_OUT[sframe_version]
        assert found.described >= fewest
        assert found.points > 2 * (found.described - found.untold)
        assert found.untold == 0 if dwarfdump else found.untold < fewest / 20


@pytest.mark.parametrize("target", [None, AARCH64, S390], ids=lambda target: label(target) if target else "amd64")
def test_the_c_library_of_this_machine(target: Target | None) -> None:
    library = target.sysroot / "lib/libc.so.6" if target else Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not library.exists():
        pytest.skip(f"no {library}")
    try:
        dwarfdump = str(find_llvm_dwarfdump("newest").path)
    except pytest.skip.Exception:
        dwarfdump = None
    check(library, 2_500, dwarfdump)


# What pyelftools is wrong about: FDEs that llvm-dwarfdump judges where it is here

IN_REGISTER: Final = (asm.def_cfa(7, 8), asm.offset(16, 1))
#: Initial instructions, an FDE's, and the rows (distance from the start, offset of the CFA from RSP) that they make.
WRONG: Final[
    dict[str, tuple[tuple[asm.Instruction, ...], tuple[asm.Instruction, ...], list[tuple[int, int | None]]]]
] = {
    "args-size": (IN_REGISTER, (asm.advance(1), asm.gnu_args_size(16)), [(0, 8), (1, 8)]),
    "negative-offset-extended": (IN_REGISTER, (asm.gnu_negative_offset_extended(6, 2),), [(0, 8)]),
    "def-cfa-sf": (IN_REGISTER, (asm.def_cfa_sf(7, -2),), [(0, 16)]),
    "expression-alone": (
        (asm.def_cfa(7, 8),),
        (asm.advance(1), asm.def_cfa_expression(b"\x77\x08")),
        [(0, 8), (1, None)],
    ),
    "restore-in-a-cie": ((*IN_REGISTER, asm.restore(6)), (), [(0, 8)]),
    "debug-frame-augmentation": (IN_REGISTER, (), [(0, 8)]),
}


@pytest.mark.parametrize("case", [*WRONG, "negate-ra-state"])
def test_pyelftools_is_known_to_be_wrong(case: str, request: pytest.FixtureRequest) -> None:
    known_wrong.expect_failure(request, case, "pyelftools", version("pyelftools"))
    initial, instructions, expected = WRONG.get(case, (IN_REGISTER, (asm.aarch64_negate_ra_state(),), [(0, 8)]))
    is_debug_frame = case == "debug-frame-augmentation"
    cie = asm.Cie(instructions=initial, lsda_encoding=0x1B, augmentation="zR" if not is_debug_frame else "zRL")
    frame = asm.EhFrame((asm.Fde(cie, 0x1000, 16, instructions),), debug_frame=is_debug_frame)
    data = frame.assemble()
    structs = DWARFStructs(little_endian=True, dwarf_format=32, address_size=8)
    try:
        frames = CallFrameInfo(BytesIO(data), len(data), 0, structs, for_eh_frame=not is_debug_frame)
        entries: list[Any] = frames.get_entries()
        table = entries[-1].get_decoded().table
    except Exception as error:
        raise AssertionError(repr(error)) from error
    assert [(line["pc"] - 0x1000, line["cfa"].offset) for line in table] == expected
    if case == "negate-ra-state":
        assert 34 in table[0]
