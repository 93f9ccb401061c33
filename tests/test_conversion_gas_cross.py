# SPDX-License-Identifier: Apache-2.0
"""Sections of cross-assembled objects have the cross assemblers' rules, at every PC and in no more rows."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pytest

from cfi2sframe import Options, convert
from cfi2sframe.api import verify
from cfi2sframe.arch import AARCH64_BE
from cfi2sframe.reasons import SkipReason
from tests.support import known_wrong
from tests.support.needs import need
from tests.support.oracle.gas import Pair, assemble, contradictions, functions_of, pair_of, problems_of
from tests.support.targets import AARCH64, S390, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

pytestmark = pytest.mark.oracle


class Assembler(NamedTuple):
    """An assembler with its options, and what it writes."""

    target: Target
    version: BinutilsVersion
    options: tuple[str, ...]
    said: Options

    def path(self, binutils: Callable[[BinutilsVersion], Binutils]) -> tuple[str, str]:
        """Return the program and its version, or skip the test."""
        if self.version == "2.40":
            # Cross tools of the machine; they are of one release with its own.
            return need(f"{self.target.triplet}-as"), binutils("2.40").version
        tools = binutils(self.version)
        return tools.tool("as", self.target.name), tools.version

    def made(self, binutils: Callable[[BinutilsVersion], Binutils], name: str, directory: Path) -> Pair:
        """Assemble one of the target's sources, and convert it."""
        path = assemble(self.path(binutils)[0], self.target.source(name), directory / (name + ".o"), *self.options)
        assert path is not None
        return pair_of(path, self.said)


V1, V2, V3 = Options(version=1), Options(version=2, errata=0), Options(version=3)
ASSEMBLERS: Final = {
    "aarch64-2.40": Assembler(AARCH64, "2.40", (), V1),
    "aarch64-2.44": Assembler(AARCH64, "2.44", (), V2),
    "aarch64-newest": Assembler(AARCH64, "newest", (), V3),
    "aarch64_be-2.40": Assembler(AARCH64, "2.40", ("-mbig-endian",), V1),
    "aarch64_be-2.44": Assembler(AARCH64, "2.44", ("-mbig-endian",), V2),
    "aarch64_be-newest": Assembler(AARCH64, "newest", ("-mbig-endian",), V3),
    "s390x-newest": Assembler(S390, "newest", (), V3),
}
CASES: Final = [(key, name) for key, assembler in ASSEMBLERS.items() for name in assembler.target.sources]
#: An offset of 0 from the CFA, which some readers take for "not saved": versions 1 and 2 leave it out.
AT_THE_CFA: Final = "signal-frame.s"
#: What each assembler leaves out and this project describes; a newer one may describe more.
KEPT: Final = {
    "aarch64-2.40": set[str](),
    "aarch64-2.44": set[str](),
    "aarch64-newest": {"fp-without-ra.s", "cfa-other-register.s", "ra-in-register.s"},
    "s390x-newest": set[str](),
}


@pytest.mark.parametrize(("key", "name"), CASES)
def test_same_meaning_in_no_more_rows(
    key: str,
    name: str,
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    assembler = ASSEMBLERS[key]
    known_wrong.expect_failure(request, f"sframe-of-{assembler.target.name}/{name}", "gas", assembler.path(binutils)[1])
    pair = assembler.made(binutils, name, tmp_path)
    if pair.theirs is not None:
        assert pair.theirs.header.version == assembler.said.version
        assert (pair.image.arch is AARCH64_BE) == ("-mbig-endian" in assembler.options)
    if name == AT_THE_CFA and assembler.target is AARCH64 and assembler.said.version < 3:
        (_, skip), *others = convert(pair.image, assembler.said).left_out
        assert (skip.reason, skip.detail, others) == (SkipReason.OFFSET_RANGE, "*(c)", [])
        return
    if pair.ours is not None:
        assert verify(pair.image, pair.ours, assembler.said).is_clean
    assert problems_of(pair) == []


@pytest.mark.sampled
@pytest.mark.parametrize("key", KEPT)
def test_functions_that_gas_drops_are_kept(
    key: str,
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    record_property: Callable[[str, object], None],
) -> None:
    assembler = ASSEMBLERS[key]
    kept = set()
    for name in assembler.target.sources:
        pair = assembler.made(binutils, name, tmp_path)
        if functions_of(pair.ours) and not functions_of(pair.theirs):
            kept.add(name)
    record_property(f"kept where {key} drops", ", ".join(sorted(kept)))
    assert kept >= KEPT[key]


def test_gas_2_44_has_no_sframe_for_s390x(binutils: Callable[[BinutilsVersion], Binutils], tmp_path: Path) -> None:
    """Why there is no version 2 of s390x to compare with."""
    tool = binutils("2.44").tool("as", "s390x")
    command: list[str | Path] = [tool, "--gsframe", S390.source("leaf.s"), "-o", tmp_path / "a.o"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode
    assert ".sframe not supported for target" in done.stderr


LISTED: Final = [
    (key, name)
    for key, name in CASES
    for entry in known_wrong.KNOWN_WRONG
    if (entry.tool, entry.case) == ("gas", f"sframe-of-{ASSEMBLERS[key].target.name}/{name}")
    if any(v == ASSEMBLERS[key].version or (ASSEMBLERS[key].version == "newest" and v > "2.44") for v in entry.versions)
]


@pytest.mark.parametrize(("key", "name"), LISTED)
def test_differences_are_known_errors_of_gas(
    key: str,
    name: str,
    binutils: Callable[[BinutilsVersion], Binutils],
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    tmp_path: Path,
) -> None:
    """Third parties decide: gas's rows contradict a reader of the CFI, ours contradict none."""
    assembler = ASSEMBLERS[key]
    pair = assembler.made(binutils, name, tmp_path)
    assert not verify(pair.image, pair.theirs).is_clean
    dwarfdump = str(llvm_dwarfdump("newest").path)
    assert contradictions(pair, pair.theirs, dwarfdump)
    assert not contradictions(pair, pair.ours, dwarfdump)
