# SPDX-License-Identifier: Apache-2.0
"""The rows of a conversion equal what two independent readers make of the same CFI, on large libraries."""

from __future__ import annotations

import gc
import subprocess
from bisect import bisect_left, bisect_right
from collections import Counter
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe import Lookup, Options, convert, decode, load
from tests import known_wrong
from tests.oracle.compare import difference, is_hard_to_say, is_plain, row_at
from tests.oracle.llvm_frames import parse_llvm_frames
from tests.oracle.readelf_frames import parse_readelf_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.lower import Skip
    from cfi2sframe.sframe.decode import DecodedFunction
    from tests.oracle.frames import OracleFde
    from tests.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = [pytest.mark.oracle, pytest.mark.corpus]

# Library -> fewest FDEs that it must have, so that an empty answer of a tool is no success.
LIBRARIES = {
    "libc.so.6": 3_000,
    "libstdc++.so.6": 4_000,
    "libcrypto.so.3": 10_000,
    "libpython3.13.so.1.0": 6_000,
    "machine's libc": 3_000,
}
MACHINE_LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
# Left out in these versions: nearly nothing, and never a function that a default row could say.
MAX_LEFT_OUT = {2: 250, 3: 150}

Printer = Literal["readelf", "llvm-dwarfdump"]


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: collecting takes half of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def library(request: pytest.FixtureRequest, corpus: Callable[[CorpusArch], Path]) -> Path:
    name: str = request.param
    if name == "machine's libc":
        if not MACHINE_LIBC.exists():
            pytest.skip(f"no {MACHINE_LIBC}")
        return MACHINE_LIBC
    return corpus("amd64") / "usr/lib/x86_64-linux-gnu" / name


@lru_cache(maxsize=2)
def _fdes(printer: Printer, tool: str, path: Path) -> tuple[OracleFde, ...]:
    # N: not the separate debug file, whose .eh_frame has no bytes.
    option = "-wNF" if printer == "readelf" else "--eh-frame"
    output = subprocess.run([tool, option, str(path)], capture_output=True, text=True, check=True).stdout
    parse = parse_readelf_frames if printer == "readelf" else parse_llvm_frames
    sections = [s for s in parse(output.splitlines(), "amd64") if s.name == ".eh_frame"]
    assert len(sections) == 1
    return sections[0].fdes


@lru_cache(maxsize=1)
def _converted(path: Path, version: int) -> tuple[Lookup, dict[int, Skip]]:
    """Return the decoded conversion, and what was left out by its address."""
    # Stubs are described by their instructions, of which a reader of CFI knows nothing.
    conversion = convert(load(path), Options(version=version, with_stubs=False))
    left_out = {entry.fde.pc_begin_vaddr: skip for entry, skip in conversion.left_out}
    return Lookup(decode(conversion.data, conversion.section_vaddr)), left_out


def _points(fde: OracleFde, lookup: Lookup) -> Iterator[int]:
    """Every address at which either side may change, within the FDE."""
    points = {fde.pc_begin_vaddr, *(row.pc_vaddr for row in fde.rows)}
    for function in _functions_in(fde, lookup):
        points.update(function.start_vaddr + row.row.start_delta for row in function.rows)
        points.add(function.start_vaddr + function.size)
    yield from sorted(p for p in points if fde.pc_begin_vaddr <= p < fde.pc_end_vaddr)


def _functions_in(fde: OracleFde, lookup: Lookup) -> list[DecodedFunction]:
    first = max(0, bisect_right(lookup.starts, fde.pc_begin_vaddr) - 1)
    return lookup.functions[first : bisect_left(lookup.starts, fde.pc_end_vaddr)]


@pytest.mark.parametrize("printer", ["readelf", "llvm-dwarfdump"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_rows_are_those_of_another_reader(
    library: Path,
    printer: Printer,
    version: int,
    request: pytest.FixtureRequest,
    binutils: Callable[[BinutilsVersion], Binutils],
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
) -> None:
    if printer == "readelf":
        tools = binutils("newest")
        tool, tool_version = tools.tool("readelf"), tools.version
    else:
        tool, tool_version = str(llvm_dwarfdump("newest").path), llvm_dwarfdump("newest").version
    name = request.node.callspec.params["library"]
    known_wrong.expect_failure(request, f"rows-{name}", printer, tool_version)

    fdes = _fdes(printer, tool, library)
    assert len(fdes) >= LIBRARIES[name]
    lookup, left_out = _converted(library, version)
    problems: list[str] = []
    count: Counter[str] = Counter()
    for fde in fdes:
        assert not fde.problem, hex(fde.pc_begin_vaddr)
        if fde.pc_begin_vaddr in left_out:
            count["left out"] += 1
            excused = is_hard_to_say if version == 3 else lambda row: not is_plain(row)
            if not any(excused(row) for row in fde.rows):
                problems.append(f"0x{fde.pc_begin_vaddr:x}: left out ({left_out[fde.pc_begin_vaddr]}): {fde.rows}")
            continue
        count["described"] += 1
        for pc in _points(fde, lookup):
            row, found = row_at(fde.rows, pc), lookup.find(pc)
            if row is None or found is None or found.row is None:
                problems.append(f"0x{pc:x}: {row} against {found}")
                continue
            count["points"] += 1
            problem = difference(row, found.row.row.state, shows_unsaid=printer == "llvm-dwarfdump")
            if problem is not None:
                problems.append(f"0x{pc:x}: {problem}")
    assert problems == []
    # Nothing beyond what the tool shows: as many bytes described as there are in its FDEs.
    described = {(f.pc_begin_vaddr, f.pc_end_vaddr) for f in fdes if f.pc_begin_vaddr not in left_out}
    assert sum(f.size for f in lookup.functions) == sum(end - begin for begin, end in described)
    assert count["left out"] == len(left_out) <= MAX_LEFT_OUT[version]
    assert count["points"] > 2 * count["described"]
