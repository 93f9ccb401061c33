# SPDX-License-Identifier: Apache-2.0
"""The section of an object has the rules of GNU as for the same source, at every PC and in no more rows."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe import Options
from cfi2sframe.api import verify
from tests.support import known_wrong
from tests.support.oracle.gas import assemble, contradictions, functions_of, pair_of, problems_of
from tests.support.oracle.readelf_sframe import check_printed, printed

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[1] / "testdata/src/amd64"
NAMES = sorted(path.name for path in SOURCES.iterdir() if path.suffix in (".s", ".c", ".cc"))
# What each assembler writes. Version 2 of 2.44 has neither PC-relative starts nor rows for "RA undefined".
OPTIONS: dict[BinutilsVersion, Options] = {
    "2.40": Options(version=1),
    "2.44": Options(version=2, errata=0),
    "newest": Options(version=3),
}
# Before 2.46 readelf takes time with the square of a function's rows: 70,000 keep it busy for a minute.
MAX_PRINTED_ROWS = 10_000
# A newer one may describe more.
FEWEST_KEPT = {1: 7, 2: 7, 3: 1}


def _assemble(name: str, tools: Binutils, gcc: Tool, directory: Path) -> Path | None:
    """Assemble a source with SFrame; None where the assembler gives up because of it."""
    source = SOURCES / name
    if source.suffix != ".s":
        build = re.search(r"Build: \S+ (.*)-c", source.read_text())
        assert build is not None
        assembly = directory / (name + ".s")
        subprocess.run([gcc.path, *build[1].split(), "-S", source, "-o", assembly], check=True)
        source = assembly
    return assemble(tools.tool("as"), source, directory / (name + ".o"))


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
    pair = pair_of(path, options)
    assert pair.theirs is None or pair.theirs.header.version == options.version
    assert problems_of(pair) == []


@pytest.mark.parametrize("name", NAMES)
def test_our_reading_of_gas_sections_is_readelfs(
    name: str, gas: tuple[Binutils, Options], gcc: Tool, tmp_path: Path
) -> None:
    tools, options = gas
    path = _assemble(name, tools, gcc, tmp_path)
    if path is None:
        return
    pair = pair_of(path, options)
    if pair.theirs is None or pair.theirs.header.fre_count > MAX_PRINTED_ROWS:
        return
    # Of an object, readelf shows where in its section a function starts.
    starts = [pair.image.place(f.start_vaddr).offset for f in pair.theirs.functions]
    if known_wrong.find("sframe-relocations", "readelf", tools.version):
        starts = [0] * len(starts)
    shown = pair.theirs._replace(starts=tuple(starts))
    is_oldest = known_wrong.find("sframe-fixed-ra", "readelf", tools.version) is not None
    check_printed(printed(tools.tool("readelf"), path), shown, is_oldest=is_oldest)


LISTED = [
    (entry.case.removeprefix("sframe-of-"), gas_version)
    for entry in known_wrong.KNOWN_WRONG
    if entry.tool == "gas" and entry.case.removeprefix("sframe-of-") in NAMES
    for gas_version in OPTIONS
    if any(gas_version == v or (gas_version == "newest" and v > "2.44") for v in entry.versions)
]


@pytest.mark.parametrize(("name", "gas_version"), LISTED)
def test_differences_are_known_errors_of_gas(
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
    pair = pair_of(path, OPTIONS[gas_version])
    assert pair.theirs is not None
    assert not verify(pair.image, pair.theirs).is_clean
    dwarfdump = str(llvm_dwarfdump("newest").path)
    assert contradictions(pair, pair.theirs, dwarfdump)
    assert not contradictions(pair, pair.ours, dwarfdump)


@pytest.mark.sampled
def test_functions_that_gas_drops_are_kept(
    gas: tuple[Binutils, Options], gcc: Tool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Sources that spell .eh_frame out in bytes do not count: the assembler does not know their meaning."""
    tools, options = gas
    kept = []
    for name in NAMES:
        spells_bytes = re.search(r"\.section\s+\.eh_frame", (SOURCES / name).read_text())
        path = None if spells_bytes else _assemble(name, tools, gcc, tmp_path)
        if path is None:
            continue
        pair = pair_of(path, options)
        theirs = {function.start_vaddr for function in functions_of(pair.theirs)}
        if any(function.start_vaddr not in theirs for function in functions_of(pair.ours)):
            kept.append(name)
        if pair.ours is not None:
            assert verify(pair.image, pair.ours).is_clean
    record_property(f"kept where GNU as {tools.version} drops", ", ".join(kept))
    assert len(kept) >= FEWEST_KEPT[options.version], kept
