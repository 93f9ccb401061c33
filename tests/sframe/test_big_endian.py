# SPDX-License-Identifier: Apache-2.0
"""GNU readelf reads big-endian sections, and prints the rows that `dump` prints.

One that runs on s390x itself (in an emulator) reads sections of every level. One on a little-endian machine flips rows
in place, function by function, and reads only those whose functions have rows of their own: `-O0`.
"""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_BE, S390X
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from tests.support.known_wrong import expect_failure
from tests.support.needs import run
from tests.support.oracle.readelf_sframe import check_printed, printed, wrapped
from tests.support.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.targets import AARCH64, S390, Target

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.abi import Arch
    from cfi2sframe.conversion import Level
    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle

#: What may be written, and the release of readelf that reads it; 2.44 refuses s390x.
VERSIONS: Final[dict[str, tuple[BinutilsVersion, Options]]] = {
    "3": ("newest", Options(version=3)),
    "2 errata 2": ("newest", Options(version=2, errata=2)),
    "2 errata 1": ("newest", Options(version=2)),
    "2 errata 0": ("2.44", Options(version=2, errata=0)),
}
#: What the newest readelf reads.
NEWEST: Final = [name for name, (release, _) in VERSIONS.items() if release == "newest"]
SHARING: Final[tuple[Level, ...]] = (1, 2)
ARCHES: Final = [AARCH64_BE, S390X]


def _check(path: Path, options: Options, tools: Binutils, target: Target, folder: Path, readelf: str = "") -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows.

    `tools` put the section into the file; it is read by their readelf, or by the one of this path.
    """
    conversion = convert(load(str(path)), **options._asdict())
    if not conversion.data:
        return 0
    assert conversion.data[:2] == struct.pack(">H", 0xDEE2)
    copy = wrapped(tools.tool("objcopy", target.name), path, conversion.data, conversion.section_vaddr, folder)
    lines = printed(readelf or tools.tool("readelf", target.name), copy)
    check_printed(lines, decode(conversion.data, conversion.section_vaddr))
    return conversion.rows.row_count


def _library(arch: Arch, folder: Path) -> Path:
    """Write a linked file of twenty functions with equal rows."""
    path = folder / "library.so"
    path.write_bytes(linked_file(arch, [push_fp(arch, TEXT_VADDR + 64 * n) for n in range(20)]))
    return path


@pytest.fixture(params=VERSIONS)
def reader(request: pytest.FixtureRequest, binutils: Callable[[BinutilsVersion], Binutils]) -> tuple[Binutils, Options]:
    """A readelf of a little-endian machine, and what it reads."""
    if sys.byteorder != "little":
        pytest.skip("this machine is big-endian itself")
    release, options = VERSIONS[request.param]
    return binutils(release), options._replace(level=0)


@pytest.mark.parametrize("target", [AARCH64, S390], ids=lambda target: target.name)
def test_sources(
    target: Target,
    reader: tuple[Binutils, Options],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
) -> None:
    """Objects share nothing, whatever the level."""
    tools, options = reader
    if target is S390 and options.errata == 0:
        pytest.skip("binutils 2.44 has no SFrame for s390x")
    counts = {}
    for name in target.sources:
        made = tmp_path / (name + ".o")
        flag = ["-mbig-endian"] if target is AARCH64 else []
        run(binutils("newest").tool("as", target.name), *flag, target.source(name), "-o", made)
        counts[name] = _check(made, options._replace(level=None), tools, target, tmp_path)
    # Version 2 with errata 2 cannot express six of either, and one more before that.
    assert sum(count > 0 for count in counts.values()) >= len(counts) - 7, counts


def test_a_linked_big_endian_aarch64_file(reader: tuple[Binutils, Options], tmp_path: Path) -> None:
    tools, options = reader
    assert _check(_library(AARCH64_BE, tmp_path), options, tools, AARCH64, tmp_path) == 60


def test_a_foreign_readelf_gives_up_on_shared_rows(
    reader: tuple[Binutils, Options], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It is all that is wrong with the file: the test before this one and the next ones differ in nothing else."""
    tools, options = reader
    expect_failure(request, "sframe-shared-rows-of-the-other-byte-order", "readelf", tools.version)
    assert _check(_library(AARCH64_BE, tmp_path), options._replace(level=1), tools, AARCH64, tmp_path) == 60


# A readelf of the section's own byte order


@pytest.mark.parametrize("level", SHARING)
@pytest.mark.parametrize("version", NEWEST)
@pytest.mark.parametrize("target", [AARCH64, S390], ids=lambda target: target.name)
def test_a_native_readelf_takes_small_files(
    target: Target,
    version: str,
    level: Level,
    s390x_binutils: Binutils,
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
) -> None:
    """Sections of both big-endian ABIs: the byte order is what matters."""
    path = _library(AARCH64_BE if target is AARCH64 else S390X, tmp_path)
    options = VERSIONS[version][1]._replace(level=level)
    assert _check(path, options, binutils("newest"), target, tmp_path, s390x_binutils.tool("readelf")) > 0


# What is shared


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_rows_are_shared_unless_each_function_shall_have_its_own(arch: Arch, tmp_path: Path) -> None:
    image = load(str(_library(arch, tmp_path)))
    apart, shared = convert(image, level=0), convert(image, level=1)
    assert len(shared.data) < len(apart.data)
    assert len(set(apart.rows.offsets)) == 20
    assert len(set(shared.rows.offsets)) == 1
    assert len(convert(image).data) <= len(shared.data)
