# SPDX-License-Identifier: Apache-2.0
"""The section of an object has the rules of GNU as for the same source, at every PC and in no more rows."""

import re
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import convert
from cfi2sframe.abi import AARCH64_BE
from cfi2sframe.api import verify
from cfi2sframe.conversion.options import Options
from cfi2sframe.why import Reason
from tests.support.needs import need
from tests.support.oracle import known_wrong
from tests.support.oracle.gas import Pair, assemble, pair_of, problems_of
from tests.support.oracle.targets import TARGETS
from tests.support.oracle.tools import BinutilsVersion, Target, find_binutils

pytestmark = pytest.mark.oracle

SOURCES: Final = Path(__file__).resolve().parents[2] / "testdata/src"
TRIPLETS: Final = {target.name: target.triplet for target in TARGETS}


class Assembler(NamedTuple):
    """An assembler with its options, and what it writes."""

    target: Target
    version: BinutilsVersion
    options: tuple[str, ...]
    said: Options

    @property
    def names(self) -> list[str]:
        """The names of its target's sources."""
        return sorted(path.name for path in (SOURCES / self.target).iterdir() if path.suffix in (".s", ".c", ".cc"))

    def case(self, name: str) -> str:
        """Return what `known_wrong` calls the section of a source."""
        return f"sframe-of-{name}" if self.target == "amd64" else f"sframe-of-{self.target}/{name}"


# Version 2 of 2.44 has neither PC-relative starts nor rows for "RA undefined". It knows no SFrame of s390x.
V1, V2, V3 = Options(version=1), Options(version=2, errata=0), Options(version=3)
BIG_ENDIAN: Final = ("-mbig-endian",)
ASSEMBLERS: Final = {
    "amd64-2.40": Assembler("amd64", "2.40", (), V1),
    "amd64-2.44": Assembler("amd64", "2.44", (), V2),
    "amd64-newest": Assembler("amd64", "newest", (), V3),
    "aarch64-2.40": Assembler("aarch64", "2.40", (), V1),
    "aarch64-2.44": Assembler("aarch64", "2.44", (), V2),
    "aarch64-newest": Assembler("aarch64", "newest", (), V3),
    "aarch64_be-2.40": Assembler("aarch64", "2.40", BIG_ENDIAN, V1),
    "aarch64_be-2.44": Assembler("aarch64", "2.44", BIG_ENDIAN, V2),
    "aarch64_be-newest": Assembler("aarch64", "newest", BIG_ENDIAN, V3),
    "s390x-newest": Assembler("s390x", "newest", (), V3),
}
CASES: Final = [(key, name) for key, assembler in ASSEMBLERS.items() for name in assembler.names]
#: An offset of 0 from the CFA, which some readers take for "not saved": versions 1 and 2 of AArch64 leave it out.
AT_THE_CFA: Final = "signal-frame.s"


def pair_by(assembler: Assembler, name: str, folder: Path) -> Pair | None:
    """Assemble a source with SFrame, and convert it; None where the assembler gives up because of SFrame."""
    source = SOURCES / assembler.target / name
    if source.suffix != ".s":
        build = re.search(r"Build: \S+ (.*)-c", source.read_text())
        assert build is not None
        assembly = folder / (name + ".s")
        subprocess.run([need("gcc"), *build[1].split(), "-S", source, "-o", assembly], check=True)
        source = assembly
    tools = find_binutils(assembler.version)
    if assembler.version == "2.40" and assembler.target != "amd64":
        program = need(f"{TRIPLETS[assembler.target]}-as")
    else:
        program = tools.tool("as", assembler.target)
    path = assemble(program, source, folder / (name + ".o"), *assembler.options)
    return pair_of(path, assembler.said) if path else None


@pytest.mark.parametrize(("key", "name"), CASES)
def test_same_meaning_in_no_more_rows(key: str, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    assembler = ASSEMBLERS[key]
    # Cross tools of the machine are of one release with its own.
    version = find_binutils(assembler.version).version
    known_wrong.expect_failure(request, assembler.case(name), "gas", version)
    pair = pair_by(assembler, name, tmp_path)
    if pair is None:
        return
    if pair.theirs is not None:
        assert pair.theirs.version == assembler.said.version
        assert (pair.image.arch is AARCH64_BE) == (assembler.options == BIG_ENDIAN)
    if name == AT_THE_CFA and assembler.target == "aarch64" and assembler.said.version < 3:
        ((_, why),) = convert(pair.image, **assembler.said._asdict()).skips
        assert (why.reason, why.detail) == (Reason.OFFSET_RANGE, "c+0")
        return
    if pair.ours is not None:
        assert verify(pair.image, pair.ours, source=assembler.said.source).is_clean
    assert problems_of(pair) == []
