# SPDX-License-Identifier: Apache-2.0
"""GNU readelf of the matching version accepts every section that is made, and prints the rows that `dump` prints.

Of a foreign byte order, one on a little-endian machine flips rows in place, function by function, and reads only those
whose functions have rows of their own: `-O0`. One that runs on s390x itself (in an emulator) reads every level.
"""

import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.abi import AARCH64_BE, Arch
from cfi2sframe.api import decode
from cfi2sframe.conversion.options import Level, Options
from cfi2sframe.emit import reader_warnings
from cfi2sframe.errors import InputError
from cfi2sframe.sframe.dump import dump_text
from cfi2sframe.sframe.read import DecodedSection
from tests.support.elf.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.needs import need, run
from tests.support.oracle.known_wrong import expect_failure, find
from tests.support.oracle.tools import (
    Binutils,
    BinutilsVersion,
    Target,
    find_binutils,
    find_llvm_readelf,
    find_s390x_binutils,
)

pytestmark = pytest.mark.oracle

SOURCES: Final = Path(__file__).resolve().parents[2] / "testdata/src"
# readelf takes time with the square of a function's rows: the 70,000 of this one keep it busy for half a minute.
SLOW: Final = {"too-many-rows.s"}
#: Of some sources, nothing can be said in some versions, or they have no CFI.
FEWEST_SECTIONS: Final[dict[Target, int]] = {"amd64": 50, "aarch64": 9, "s390x": 9}
#: What may be written, and the release of readelf that reads it.
READERS: Final[dict[str, tuple[BinutilsVersion, Options]]] = {
    "version 3": ("newest", Options(version=3)),
    "version 2 errata 2": ("newest", Options(version=2, errata=2)),
    "version 2 errata 1": ("newest", Options(version=2)),
    "version 2 errata 0": ("2.44", Options(version=2, errata=0)),
    "version 1": ("2.40", Options(version=1)),
}
#: Version 1 of the other ABIs, and 2.44, which has no SFrame for s390x, read nothing here.
CASES: Final[list[tuple[Target, str]]] = [
    *(("amd64", name) for name in READERS),
    *(("aarch64", name) for name in READERS if name != "version 1"),
    *(("s390x", name) for name, (release, _) in READERS.items() if release == "newest"),
]
LIBRARIES: Final[dict[Target, Path]] = {
    "amd64": Path("/lib/x86_64-linux-gnu"),
    "aarch64": Path("/usr/aarch64-linux-gnu/lib"),
    "s390x": Path("/usr/s390x-linux-gnu/lib"),
}


ROW: Final = re.compile(r"    [0-9a-f]{16}  ")
HEADER: Final = ("Version:", "Flags:", "SFRAME_F", "Num F")


def wrapped(objcopy: str, path: Path, data: bytes, vaddr: int, folder: Path) -> Path:
    """Put a section's bytes into a copy of a file, at their address."""
    raw, copy = folder / "raw.sframe", folder / "wrapped"
    raw.write_bytes(data)
    options = ["--remove-section", ".sframe", "--add-section", f".sframe={raw}"]
    options += ["--set-section-flags", ".sframe=alloc,readonly,data"]
    if vaddr:
        options += ["--change-section-address", f".sframe={vaddr:#x}"]
    # It warns that no segment holds the section; to readelf that makes no difference.
    subprocess.run([objcopy, *options, path, copy], capture_output=True, check=True)
    return copy


def printed(readelf: str, path: Path) -> list[str]:
    """Return the lines that a readelf or objdump prints of a section that it has nothing to complain about."""
    done = subprocess.run([readelf, "--sframe", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:500]
    assert not re.search("arning|rror", done.stdout), done.stdout[:500]
    return done.stdout.splitlines()


def in_words_of_dump(lines: Iterable[str], *, fixed_ra: bool = True, is_oldest: bool = False) -> list[str]:
    """Return the lines of a section's meaning with readelf's words for one thing made the dump's.

    An RA that no data word gives is "U" in a flexible row (a padding word): at its fixed offset, where the ABI has one,
    or else not saved. Before 2.41 (`is_oldest`), it is "u" in any row. Wide cells touch one another.
    """
    unsaid, word = ("u" if is_oldest else "U"), ("f" if fixed_ra else "u")
    kept: list[str] = []
    for line in map(str.rstrip, lines):
        if ROW.match(line):
            kept.append(re.sub(rf"{unsaid}(?=(\[s\])?$)", word, line.replace(" ", "").replace("+-", "-")))
        elif line.startswith("    func idx") or line.lstrip().startswith(HEADER) or "STARTPC" in line:
            kept.append(line.strip())
    return kept


def check_printed(lines: Iterable[str], section: DecodedSection, *, is_oldest: bool = False) -> None:
    """Compare what a readelf has printed with what `dump` prints of the same section."""
    fixed_ra = section.arch.fixed_ra_offset != 0
    shown = in_words_of_dump(lines, fixed_ra=fixed_ra, is_oldest=is_oldest)
    assert shown == in_words_of_dump(dump_text(section), fixed_ra=fixed_ra)
    assert len(shown) > len(section.functions)


def check_readelf(
    path: Path, options: Options, tools: Binutils, folder: Path, *, target: Target = "amd64", readelf: str = ""
) -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows.

    The readelf is that of `tools`, unless the path of another one is given.
    """
    conversion = convert(load(path), **options._asdict())
    if not conversion.data:
        return 0
    vaddr = conversion.section_vaddr
    copy = wrapped(tools.tool("objcopy", target), path, conversion.data, vaddr, folder)
    lines = printed(readelf or tools.tool("readelf", target), copy)
    is_oldest = find("sframe-fixed-ra", "readelf", tools.version) is not None
    check_printed(lines, decode(conversion.data, vaddr), is_oldest=is_oldest)
    return conversion.rows.row_count


@pytest.mark.sampled
@pytest.mark.parametrize(("target", "reader"), CASES)
def test_objects(target: Target, reader: str, tmp_path: Path) -> None:
    """Each source under testdata, big-endian for AArch64.

    An object has several text sections, all of which its raw section puts at 0; objects share nothing.
    """
    release, options = READERS[reader]
    count = 0
    for source in sorted(SOURCES.joinpath(target).iterdir()):
        build = re.search(r"Build: \S+ (.*-c)", source.read_text())
        made = tmp_path / (source.name + ".o")
        if target == "amd64":
            run(need("gcc"), *(build[1].split() if build else ["-c"]), source, "-o", made)
        else:
            flags = ["-mbig-endian"] if target == "aarch64" else []
            run(find_binutils("newest").tool("as", target), *flags, source, "-o", made)
        try:
            if source.name not in SLOW:
                count += check_readelf(made, options, find_binutils(release), tmp_path, target=target) > 0
        except InputError:
            continue
    assert count >= FEWEST_SECTIONS[target]


def test_a_reader_would_complain(tmp_path: Path) -> None:
    """What the other tests rely on: readelf does complain about a damaged section."""
    tools, path = find_binutils("newest"), _library(AARCH64_BE, tmp_path)
    data = convert(load(path)).data
    copy = wrapped(tools.tool("objcopy", "aarch64"), path, data[:2] + b"\x09" + data[3:], 0, tmp_path)
    with pytest.raises(AssertionError):
        printed(tools.tool("readelf"), copy)


def _library(arch: Arch, folder: Path) -> Path:
    """Write a linked file of twenty functions with equal rows."""
    path = folder / "library.so"
    path.write_bytes(linked_file(arch, [push_fp(arch, TEXT_VADDR + 64 * n) for n in range(20)]))
    return path


@pytest.mark.skipif(sys.byteorder != "little", reason="this machine is big-endian itself")
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", [name for name in READERS if name != "version 1"])
def test_a_foreign_readelf_gives_up_on_shared_rows_only(
    name: str, level: Level, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    release, options = READERS[name]
    if level:
        expect_failure(request, "sframe-shared-rows-of-the-other-byte-order", "readelf", find_binutils(release).version)
    path, options = _library(AARCH64_BE, tmp_path), options._replace(level=level)
    assert check_readelf(path, options, find_binutils(release), tmp_path, target="aarch64") == 60


@pytest.mark.sampled
@pytest.mark.parametrize("name", ["libgcc_s.so.1", "libm.so.6", "libstdc++.so.6"])
@pytest.mark.parametrize(("target", "reader"), CASES)
def test_functions_of_libraries_are_cut_and_joined(target: Target, reader: str, name: str, tmp_path: Path) -> None:
    """The default level; PLT stubs, too. LLVM does not know the ABI of s390x."""
    path, (release, options) = LIBRARIES[target] / name, READERS[reader]
    if not path.exists():
        pytest.skip(f"no {path}")
    readelf = find_s390x_binutils().tool("readelf") if target == "s390x" else ""
    count = check_readelf(path, options, find_binutils(release), tmp_path, target=target, readelf=readelf)
    image = load(path)
    conversion = convert(image, **options._asdict())
    found = verify(conversion)
    assert (found.is_clean, found.notes) == (True, ())
    assert [text for text in reader_warnings(conversion) if "executable segments" not in text] == []
    if reader == "version 2 errata 1" and target != "s390x":
        words: list[str | Path] = [find_llvm_readelf(), "--sframe", tmp_path / "wrapped"]
        shown = subprocess.run(words, capture_output=True, check=True).stdout
        assert shown.count(b"Frame Row Entry {") == count
