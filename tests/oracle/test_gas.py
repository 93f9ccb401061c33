# SPDX-License-Identifier: Apache-2.0
"""The section made of an object says what GNU as says of the same source, at every PC and in no more rows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from cfi2sframe import Lookup, Options, convert, decode_existing, decode_raw, load
from cfi2sframe.api import verify
from cfi2sframe.errors import InputError
from cfi2sframe.sframe.model import OUTERMOST
from tests import known_wrong
from tests.oracle.compare import difference, normal_rows, printed_rows, row_at
from tests.oracle.llvm_frames import parse_llvm_frames
from tests.oracle.readelf_frames import parse_readelf_frames
from tests.oracle.readelf_sframe import parse_readelf_sframe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState
    from tests.oracle.tools import Binutils, BinutilsVersion, Tool

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[2] / "testdata/src/amd64"
NAMES = sorted(path.name for path in SOURCES.iterdir() if path.suffix in (".s", ".c", ".cc"))
# What each assembler writes. Version 2 of 2.44 has neither PC-relative starts nor rows for "RA undefined".
OPTIONS: dict[BinutilsVersion, Options] = {
    "2.40": Options(version=1),
    "2.44": Options(version=2, errata=0),
    "newest": Options(version=3),
}
# A fatal error of these assemblers, with a message of their own and no object.
FATAL = "SFrame unsupported offset value"


# Before 2.46 readelf takes time with the square of a function's rows: 70,000 keep it busy for a minute.
MAX_PRINTED_ROWS = 10_000
# The newest may learn to say more.
FEWEST_KEPT = {1: 7, 2: 7, 3: 1}


class Pair(NamedTuple):
    """An object of GNU as, its own SFrame section, and ours; None where there is no section."""

    image: ElfImage
    path: Path
    theirs: DecodedSection | None
    ours: DecodedSection | None


def _assemble(name: str, tools: Binutils, gcc: Tool, directory: Path) -> Path | None:
    """Assemble a source with SFrame; None where the assembler gives up because of it."""
    source = SOURCES / name
    if source.suffix != ".s":
        build = re.search(r"Build: \S+ (.*)-c", source.read_text())
        assert build is not None
        assembly = directory / (name + ".s")
        subprocess.run([gcc.path, *build[1].split(), "-S", source, "-o", assembly], check=True)
        source = assembly
    made = directory / (name + ".o")
    run = subprocess.run(
        [tools.tool("as"), "--gsframe", source, "-o", made], capture_output=True, text=True, check=False
    )
    if run.returncode:
        assert FATAL in run.stderr
        return None
    return made


def _output(*command: str | Path) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _pair(path: Path, options: Options) -> Pair:
    image = load(path)
    theirs = decode_existing(image) if any(s.name == ".sframe" for s in image.sections) else None
    try:
        data = convert(image, options).data
    except InputError:
        data = b""
    ours = decode_raw(image, data, 0, options) if data else None
    return Pair(image, path, theirs, ours)


def _functions(section: DecodedSection | None) -> list[DecodedFunction]:
    return [function for function in section.functions if function.size] if section else []


def _points(function: DecodedFunction, other: Lookup | None) -> Iterator[int]:
    """Every address of a function at which one of two sections may change."""
    starts = {function.start_vaddr + row.row.start_delta for row in function.rows} | {function.start_vaddr}
    end = function.start_vaddr + function.size
    for peer in other.functions if other else ():
        starts |= {peer.start_vaddr + row.row.start_delta for row in peer.rows}
    yield from sorted(start for start in starts if function.start_vaddr <= start < end)


def _state_at(lookup: Lookup, pc: int) -> FrameState | None:
    found = lookup.find(pc)
    if found is None:
        return None
    if not found.function.rows:
        # Version 3: a function without rows is an outermost frame from end to end.
        return OUTERMOST
    return found.row.row.state if found.row else None


@pytest.fixture(params=list(OPTIONS))
def gas(request: pytest.FixtureRequest, binutils: Callable[[BinutilsVersion], Binutils]) -> tuple[Binutils, Options]:
    return binutils(request.param), OPTIONS[request.param]


@pytest.mark.parametrize("name", NAMES)
def test_same_meaning_in_no_more_rows(
    name: str, gas: tuple[Binutils, Options], gcc: Tool, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tools, options = gas
    path = _assemble(name, tools, gcc, tmp_path)
    if path is None:
        return
    known_wrong.expect_failure(request, f"sframe-of-{name}", "gas", tools.version)
    pair = _pair(path, options)
    assert pair.theirs is None or pair.theirs.header.version == options.version
    problems = []
    ours = Lookup(pair.ours) if pair.ours else None
    for function in _functions(pair.theirs):
        assert pair.theirs is not None
        theirs = Lookup(pair.theirs)
        where = pair.image.place(function.start_vaddr)
        if ours is None or ours.find(function.start_vaddr) is None:
            problems.append(f"{where}: gas has it, we have not")
            continue
        for pc in _points(function, ours):
            said, meant = _state_at(theirs, pc), _state_at(ours, pc)
            if said != meant:
                problems.append(f"{where} at {pc - function.start_vaddr}: gas {said}, we {meant}")
        peers = [f for f in ours.functions if 0 <= f.start_vaddr - function.start_vaddr < function.size]
        assert sum(f.size for f in peers) == function.size
        if sum(len(f.rows) for f in peers) > max(1, len(function.rows)):
            problems.append(f"{where}: we have more rows")
    assert problems == []


@pytest.mark.parametrize("name", NAMES)
def test_our_reading_of_gas_sections_is_readelfs(
    name: str, gas: tuple[Binutils, Options], gcc: Tool, tmp_path: Path
) -> None:
    tools, options = gas
    path = _assemble(name, tools, gcc, tmp_path)
    if path is None:
        return
    pair = _pair(path, options)
    if pair.theirs is None or pair.theirs.header.fre_count > MAX_PRINTED_ROWS:
        return
    printed = parse_readelf_sframe(_output(tools.tool("readelf"), "--sframe", path).splitlines())
    assert printed.version == pair.theirs.header.version
    assert printed.flags == ({"SFRAME_F_FDE_FUNC_START_PCREL"} if options.version == 3 else frozenset())
    # Of an object, readelf shows where in its section a function starts.
    starts = [pair.image.place(f.start_vaddr).offset for f in pair.theirs.functions]
    if known_wrong.find("sframe-relocations", "readelf", tools.version):
        starts = [0] * len(starts)
    shown = [f._replace(start_vaddr=start) for f, start in zip(pair.theirs.functions, starts, strict=True)]
    assert [normal_rows(f) for f in printed.functions] == [printed_rows(f, pair.theirs) for f in shown]


LISTED = [
    (entry.case.removeprefix("sframe-of-"), gas_version)
    for entry in known_wrong.KNOWN_WRONG
    if entry.tool == "gas" and entry.case.startswith("sframe-of-")
    for gas_version in OPTIONS
    if any(gas_version == v or (gas_version == "newest" and v > "2.44") for v in entry.versions)
]


@pytest.mark.parametrize(("name", "gas_version"), LISTED)
def test_where_they_differ_gas_is_wrong(
    name: str,
    gas_version: BinutilsVersion,
    gcc: Tool,
    tmp_path: Path,
    binutils: Callable[[BinutilsVersion], Binutils],
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
) -> None:
    """A third party decides: gas's rows contradict a reader of the CFI, ours contradict none."""
    path = _assemble(name, binutils(gas_version), gcc, tmp_path)
    assert path is not None
    pair = _pair(path, OPTIONS[gas_version])
    assert pair.theirs is not None
    assert not verify(pair.image, pair.theirs).is_clean
    readelf = _output(binutils("newest").tool("readelf"), "-wNF", path)
    # It fails on opcodes that it takes for another architecture's, and makes no rows then.
    dwarfdump = [str(llvm_dwarfdump("newest").path), "--eh-frame", str(path)]
    llvm = subprocess.run(dwarfdump, capture_output=True, text=True, check=False).stdout
    gnu_fdes = parse_readelf_frames(readelf.splitlines(), "amd64")[-1].fdes
    llvm_fdes = parse_llvm_frames(llvm.splitlines(), "amd64")[-1].fdes
    assert len(gnu_fdes) == len(llvm_fdes) == 1
    found: dict[str, list[str | None]] = {"theirs": [], "ours": []}
    for side, section in (("theirs", pair.theirs), ("ours", pair.ours)):
        lookup = Lookup(section) if section else None
        for function in _functions(section):
            assert lookup is not None
            for pc in _points(function, None):
                state = _state_at(lookup, pc)
                assert state is not None
                for fdes, shows_unsaid in ((gnu_fdes, False), (llvm_fdes, True)):
                    row = row_at(fdes[0].rows, pair.image.place(pc).offset)
                    found[side].append(row and difference(row, state, shows_unsaid=shows_unsaid))
    assert any(found["theirs"])
    assert not any(found["ours"])


def test_functions_that_gas_drops_are_kept(
    gas: tuple[Binutils, Options], gcc: Tool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Sources that spell .eh_frame out in bytes do not count: the assembler cannot know what they say."""
    tools, options = gas
    kept = []
    for name in NAMES:
        spells_bytes = re.search(r"\.section\s+\.eh_frame", (SOURCES / name).read_text())
        path = None if spells_bytes else _assemble(name, tools, gcc, tmp_path)
        if path is None:
            continue
        pair = _pair(path, options)
        theirs = {function.start_vaddr for function in _functions(pair.theirs)}
        if any(function.start_vaddr not in theirs for function in _functions(pair.ours)):
            kept.append(name)
        if pair.ours is not None:
            assert verify(pair.image, pair.ours).is_clean
    record_property(f"kept where GNU as {tools.version} drops", ", ".join(kept))
    assert len(kept) >= FEWEST_KEPT[options.version], kept
