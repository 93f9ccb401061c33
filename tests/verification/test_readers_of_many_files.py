# SPDX-License-Identifier: Apache-2.0
"""Every reader takes the functions that -O2 and -Os cut and joined, in 200 real files of three architectures.

Each file is converted for each reader's version, and: the section verifies; the strict reader has nothing against it;
`judge` says that the readers of its version read it; GNU readelf (2.44, the newest, on s390x the newest that runs
there) prints the rows that were decoded; and the rows of the CFI that the naive evaluator reads have the values of
those of the section, at every boundary of either.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import Conversion, convert, load, verify
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from cfi2sframe.errors import Cfi2SFrameError
from tests.support.compare_rows import compare_rows
from tests.support.kernel_reader import SPREAD, code_of, complaints
from tests.support.oracle.readelf_sframe import check_printed, printed, wrapped
from tests.support.oracle.tools import corpus_directory, find_llvm_readelf
from tests.verification.test_readers_of_outputs import readers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Section
    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Target

pytestmark = [pytest.mark.oracle, pytest.mark.corpus, pytest.mark.sampled]

#: Files of each place. Some have no CFI; more than 200 have some.
COUNTS: Final[dict[CorpusArch | Literal["machine"], int]] = {"amd64": 50, "arm64": 60, "s390x": 60, "machine": 60}
CASES: Final = [(place, number) for place, count in COUNTS.items() for number in range(count)]
#: Some of them, for every day: small ones.
QUICK: Final = (("amd64", 13), ("arm64", 4), ("s390x", 4))
MACHINE_FOLDERS: Final = (Path("/usr/bin"), Path("/usr/sbin"), Path("/usr/lib"))
MAX_SIZE: Final = 1 << 20
#: Version and errata, and the readelf that reads it.
VERSIONS: Final[list[tuple[int, int | None, BinutilsVersion]]] = [(2, 0, "2.44"), (2, 1, "newest"), (3, None, "newest")]
NAMES: Final[dict[str, Target]] = {"AMD64": "amd64", "AArch64": "aarch64", "s390x": "s390x"}


def elf_files(folder: Path) -> Iterator[Path]:
    """Yield the ELF files of a folder that have CFI and are not too large, in the order of their names."""
    for path in sorted(folder.rglob("*")):
        if (
            path.suffix == ".debug"
            or path.is_symlink()
            or not path.is_file()
            or not 4096 < path.stat().st_size < MAX_SIZE
        ):
            continue
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                yield path


@cache
def files_of(place: CorpusArch | Literal["machine"]) -> tuple[Path, ...]:
    """Return as many files of a place as are tested, at equal distances."""
    folders = MACHINE_FOLDERS if place == "machine" else (corpus_directory(place),)
    # Modules that convert between character sets are many, small, and alike.
    found = [path for folder in folders for path in elf_files(folder) if path.parent.name != "gconv"]
    count = COUNTS[place]
    return tuple(found[len(found) * number // count] for number in range(count) if len(found) >= count)


class Readers(NamedTuple):
    """The programs that read sections."""

    binutils: Callable[[BinutilsVersion], Binutils]
    s390x_readelf: str
    llvm_readelf: str

    def readelf(self, image: ElfImage, version: BinutilsVersion) -> str:
        """Return the path of the readelf of an image's byte order."""
        return self.s390x_readelf if image.arch.byte_order == ">" else self.binutils(version).tool("readelf")


@pytest.fixture(scope="module")
def readers(
    binutils: Callable[[BinutilsVersion], Binutils],
    s390x_binutils: Binutils,
) -> Readers:
    return Readers(binutils, s390x_binutils.tool("readelf"), find_llvm_readelf())


def check_strictly(image: ElfImage, conversion: Conversion, section: Section, options: Options) -> None:
    """Verify a section, and hold it against what the strict reader wants."""
    assert verify(image, section, source=options.source).is_clean
    code, vaddr = code_of(image), conversion.section_vaddr
    assert [text for text in complaints(conversion.data, vaddr, code) if text != SPREAD] == []
    readers_of(image, options)


def check_file(path: Path, readers: Readers, folder: Path) -> int:
    """Convert a file for all readers and compare; return the number of sections that were checked."""
    image, count = load(path), 0
    arch = NAMES[image.arch.name]
    for version, errata, release in VERSIONS:
        if errata == 0 and arch == "s390x":
            # Binutils 2.44 have no SFrame for it.
            continue
        options = Options(version, errata, level=2)
        conversion = convert(image, **options._asdict())
        if not conversion.data:
            continue
        section = decode(conversion.data, conversion.section_vaddr)
        check_strictly(image, conversion, section, options)
        objcopy = readers.binutils("newest").tool("objcopy", arch)
        copy = wrapped(objcopy, path, conversion.data, conversion.section_vaddr, folder)
        check_printed(printed(readers.readelf(image, release), copy), section)
        # LLVM does not know the ABI of s390x, and prints its words as they are stored.
        if version == 2 and errata == 1 and arch != "s390x":
            shown = subprocess.run([readers.llvm_readelf, "--sframe", copy], capture_output=True, check=True).stdout
            assert shown.count(b"Frame Row Entry {") == conversion.rows.row_count
        count += 1
    return count


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_every_reader_takes_what_is_cut_and_joined(
    case: tuple[CorpusArch | Literal["machine"], int], readers: Readers, tmp_path: Path
) -> None:
    place, number = case
    files = files_of(place)
    if not files:
        pytest.skip(f"fewer files than {COUNTS[place]}")
    path = files[number]
    try:
        image = load(path)
        if image.is_relocatable or not convert(image).data:
            pytest.skip(f"{path}: an object, or nothing to describe")
    except Cfi2SFrameError as error:
        pytest.skip(f"{path}: {error}")
    assert check_file(path, readers, tmp_path) >= 2
    for version, errata in ((2, 2), (3, None)):
        assert compare_rows(path, Options(version, errata, level=2)).problems == [], version
