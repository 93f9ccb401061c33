# SPDX-License-Identifier: Apache-2.0
"""The naive evaluator judges: its rows of large libraries are ours and pyelftools'."""

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import pytest
from elftools.dwarf.callframe import FDE, CallFrameInfo
from elftools.dwarf.structs import DWARFStructs
from elftools.elf.elffile import ELFFile

from cfi2sframe import load
from cfi2sframe.conversion.sources import find_cfi, read_programs
from tests.support.dwarf import naive
from tests.support.dwarf.naive_compare import problems_of_cfi
from tests.support.oracle.targets import AARCH64, S390, Target, label

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

FEWEST: Final = 2_500
#: What pyelftools reads wrongly: it raises on GNU_args_size, multiplies def_cfa_sf by the wrong factor, reads over
#: AARCH64_negate_ra_state, and has no row of a CFA by expression where no register has a rule.
WRONG: Final = frozenset((0x2E, 0x12, 0x2D, 0x0F))
KINDS: Final = {
    "UNDEFINED": "undefined",
    "SAME_VALUE": "same value",
    "OFFSET": "offset",
    "VAL_OFFSET": "val_offset",
    "REGISTER": "register",
    "EXPRESSION": "expression",
    "VAL_EXPRESSION": "val_expression",
}


@pytest.fixture(params=[None, AARCH64, S390], ids=lambda target: label(target) if target else "amd64")
def library(request: pytest.FixtureRequest) -> Path:
    """The C library of this machine, or one for a cross compiler."""
    target: Target | None = request.param
    path = target.sysroot / "lib/libc.so.6" if target else Path("/lib/x86_64-linux-gnu/libc.so.6")
    if not path.exists():
        pytest.skip(f"no {path}")
    return path


def test_rows_are_those_of_the_naive_evaluator(library: Path) -> None:
    """Of every FDE, whether SFrame can express them or not; `tests/conversion/test_corpus.py` has other files."""
    image = load(str(library))
    cfi = read_programs(image, *find_cfi(image, "eh_frame"))
    fdes = list(naive.fdes_of(library))
    assert len(fdes) >= FEWEST
    assert list(problems_of_cfi(cfi, image.arch, fdes)) == []
    # Rows that are missing are seen.
    without = [fde._replace(rows=fde.rows[1:]) for fde in fdes]
    seen = {text.partition("+")[0] for text in problems_of_cfi(cfi, image.arch, without)}
    assert len(seen) == len({*cfi.entries.starts})


def test_the_rows_are_those_of_pyelftools(library: Path) -> None:
    naive_fdes = {fde.offset: fde for fde in naive.fdes_of(library)}
    count = 0
    for offset, rows in elftools_rows(library):
        own = naive_fdes[offset]
        assert rows == [row for row in own.rows if row.start < own.size], f"0x{own.start_vaddr:x}"
        count += 1
    assert count > 0.9 * FEWEST


def elftools_rows(path: Path) -> Iterator[tuple[int, list[naive.Row]]]:
    """Yield the offset of each FDE that pyelftools is not known to be wrong about, and its rows."""
    with path.open("rb") as file:
        elf = ELFFile(file)
        section: Any = elf.get_section_by_name(".eh_frame")
        structs = DWARFStructs(little_endian=elf.little_endian, dwarf_format=32, address_size=8)
        data = section.data()
    frames = CallFrameInfo(BytesIO(data), len(data), section["sh_addr"], structs, for_eh_frame=True)
    fdes: list[Any] = [entry for entry in frames.get_entries() if isinstance(entry, FDE)]
    for entry in fdes:
        if WRONG & {each.opcode for each in (*entry.cie.instructions, *entry.instructions)}:
            continue
        begin, size = entry["initial_location"], entry["address_range"]
        lines = [line for line in entry.get_decoded().table if line["pc"] - begin < size]
        yield entry.offset, [naive.Row(line["pc"] - begin, _cfa(line["cfa"]), dict(_rules(line))) for line in lines]


def _cfa(rule: Any) -> naive.Rule:  # noqa: ANN401 - pyelftools checks its types by itself
    return ("value", bytes(rule.expr)) if rule.expr is not None else ("sum", rule.reg, rule.offset)


def _rules(line: dict[Any, Any]) -> Iterator[tuple[int, naive.Rule]]:
    for register, rule in line.items():
        if isinstance(register, int):
            operand = bytes(rule.arg) if "EXPRESSION" in rule.type else rule.arg
            yield register, (KINDS[rule.type],) if operand is None else (KINDS[rule.type], operand)
