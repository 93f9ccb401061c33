# SPDX-License-Identifier: Apache-2.0
"""GNU readelf on a little-endian machine reads big-endian sections, and prints the rows that `dump` prints."""

from __future__ import annotations

import struct
import sys
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, convert, decode, load
from cfi2sframe.arch import AARCH64_BE, S390X
from cfi2sframe.sframe.dump import dump_text
from tests.support.oracle.compare import normal_rows, printed_rows
from tests.support.oracle.readelf_sframe import parse_readelf_sframe
from tests.support.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.targets import AARCH64, S390, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch

pytestmark = pytest.mark.oracle

#: What may be written, and the release of readelf that reads it; 2.44 refuses s390x.
VERSIONS: Final[dict[str, tuple[BinutilsVersion, Options]]] = {
    "3": ("newest", Options(version=3)),
    "2 errata 2": ("newest", Options(version=2, errata=2)),
    "2 errata 1": ("newest", Options(version=2)),
    "2 errata 0": ("2.44", Options(version=2, errata=0)),
}


def _readelf(tools: Binutils, target: Target, path: Path) -> list[str]:
    """Return what readelf prints of a section that it has nothing to complain about."""
    output = run([tools.tool("readelf", target.name), "--sframe", path])
    assert "arning" not in output
    assert "rror" not in output
    return output.splitlines()


def _wrap(tools: Binutils, target: Target, path: Path, data: bytes, vaddr: int, folder: Path) -> Path:
    """Put a section's bytes into a copy of a file, at their address."""
    raw, wrapped = folder / "raw.sframe", folder / "wrapped"
    raw.write_bytes(data)
    options = ["--add-section", f".sframe={raw}", "--set-section-flags", ".sframe=alloc,readonly,data"]
    if vaddr:
        options += ["--change-section-address", f".sframe={vaddr:#x}"]
    run([tools.tool("objcopy", target.name), *options, path, wrapped])
    return wrapped


def _check(path: Path, options: Options, tools: Binutils, target: Target, folder: Path) -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows."""
    conversion = convert(load(str(path)), options)
    if not conversion.data:
        return 0
    assert conversion.data[:2] == struct.pack(">H", 0xDEE2)
    lines = _readelf(tools, target, _wrap(tools, target, path, conversion.data, conversion.section_vaddr, folder))
    decoded = decode(conversion.data, conversion.section_vaddr)
    printed = parse_readelf_sframe(lines)
    normal = [normal_rows(f, fixed_ra=False) for f in printed.functions]
    assert normal == [printed_rows(f, decoded) for f in decoded.functions]
    dumped = parse_readelf_sframe(dump_text(decoded))
    assert (printed.fde_count, printed.fre_count) == (dumped.fde_count, dumped.fre_count)
    assert [f[:7] for f in printed.functions] == [f[:7] for f in dumped.functions]
    return printed.fre_count


@pytest.fixture(params=VERSIONS)
def reader(request: pytest.FixtureRequest, binutils: Callable[[BinutilsVersion], Binutils]) -> tuple[Binutils, Options]:
    if sys.byteorder != "little":
        pytest.skip("this machine is big-endian itself")
    release, options = VERSIONS[request.param]
    return binutils(release), options


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6"])
def test_libraries(
    name: str, reader: tuple[Binutils, Options], corpus: Callable[[CorpusArch], Path], tmp_path: Path
) -> None:
    tools, options = reader
    if options.errata == 0:
        pytest.skip("binutils 2.44 has no SFrame for s390x")
    library = corpus(S390.corpus) / "usr/lib" / S390.triplet / name
    assert _check(library, options, tools, S390, tmp_path) > 10_000


@pytest.mark.parametrize("target", [AARCH64, S390], ids=lambda target: target.name)
def test_sources(
    target: Target,
    reader: tuple[Binutils, Options],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
) -> None:
    tools, options = reader
    if target is S390 and options.errata == 0:
        pytest.skip("binutils 2.44 has no SFrame for s390x")
    counts = {}
    for name in target.sources:
        made = tmp_path / (name + ".o")
        flag = ["-mbig-endian"] if target is AARCH64 else []
        run([binutils("newest").tool("as", target.name), *flag, target.source(name), "-o", made])
        counts[name] = _check(made, options, tools, target, tmp_path)
    # Version 2 with errata 2 cannot express six of either, and one more before that.
    assert sum(count > 0 for count in counts.values()) >= len(counts) - 7, counts


def test_a_linked_big_endian_aarch64_file(reader: tuple[Binutils, Options], tmp_path: Path) -> None:
    tools, options = reader
    path = tmp_path / "library.so"
    functions = [push_fp(AARCH64_BE, TEXT_VADDR + 64 * n) for n in range(20)]
    path.write_bytes(linked_file(AARCH64_BE, functions))
    assert _check(path, options, tools, AARCH64, tmp_path) == 60


@pytest.mark.parametrize("arch", [AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_no_row_is_shared_unless_asked_for(arch: Arch, tmp_path: Path) -> None:
    """Libsframe flips rows in place, function by function: shared rows would come out flipped twice."""
    path = tmp_path / "library.so"
    path.write_bytes(linked_file(arch, [push_fp(arch, TEXT_VADDR + 64 * n) for n in range(20)]))
    image = load(str(path))
    apart, shared = convert(image), convert(image, Options(level=1))
    assert len(shared.data) < len(apart.data)
    assert (apart.shares, shared.shares) == (False, True)
    assert len({f.fre_offset for f in apart.plan.functions}) == 20
    assert len({f.fre_offset for f in shared.plan.functions}) == 1
