# SPDX-License-Identifier: Apache-2.0
"""Every reader takes the functions that -O2 cut and joined, in 200 real files of three architectures.

Each file is converted for each reader's version, and: the section verifies; the strict reader and Linux's rules have
nothing against it; `judge` says that the readers of its version read it; GNU readelf (2.44, the newest, on s390x the
newest that runs there) and llvm-readelf print the rows that were decoded; and the rows of the CFI that readelf and
llvm-dwarfdump print are those of the section, at every boundary of either.
"""

from __future__ import annotations

import subprocess
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import Conversion, Options, convert, decode, load, verify
from cfi2sframe.emit import reader_warnings
from cfi2sframe.errors import Cfi2SFrameError
from tests.support.kernel_reader import SPREAD, code_of, complaints
from tests.support.linux_reader import refusal
from tests.support.oracle.compare import normal_rows, printed_rows
from tests.support.oracle.llvm_sframe import in_words_of_llvm, parse_llvm_sframe
from tests.support.oracle.readelf_sframe import parse_readelf_sframe
from tests.support.oracle.rows import Reader, compare_rows
from tests.support.oracle.tools import ToolMissingError, corpus_directory
from tests.verification.test_readers_of_outputs import readers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Literal

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedSection
    from tests.support.oracle.frames import Arch as ArchName
    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = [pytest.mark.oracle, pytest.mark.corpus]

#: Files of each place. Some have no CFI; more than 200 have some.
COUNTS: Final[dict[CorpusArch | Literal["machine"], int]] = {"amd64": 50, "arm64": 60, "s390x": 60, "machine": 60}
CASES: Final = [(place, number) for place, count in COUNTS.items() for number in range(count)]
#: Some of them, for every day: small ones.
QUICK: Final = (("amd64", 13), ("arm64", 4), ("s390x", 4))
MACHINE_FOLDERS: Final = (Path("/usr/bin"), Path("/usr/sbin"), Path("/usr/lib"))
MAX_SIZE: Final = 1 << 20
#: Version and errata, and the readelf that reads it.
VERSIONS: Final[list[tuple[int, int, BinutilsVersion]]] = [(2, 0, "2.44"), (2, 1, "newest"), (3, 1, "newest")]
NAMES: Final[dict[str, ArchName]] = {"AMD64": "amd64", "AArch64": "aarch64", "s390x": "s390x"}


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
    """The programs that read sections, or the CFI."""

    binutils: Callable[[BinutilsVersion], Binutils]
    s390x_readelf: str
    llvm_readelf: str
    dwarfdump: str

    def readelf(self, image: ElfImage, version: BinutilsVersion) -> str:
        """Return the path of the readelf of an image's byte order."""
        return self.s390x_readelf if image.arch.byte_order == ">" else self.binutils(version).tool("readelf")


@pytest.fixture(scope="module")
def readers(
    binutils: Callable[[BinutilsVersion], Binutils],
    s390x_binutils: Binutils,
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
) -> Readers:
    dwarfdump = llvm_dwarfdump("newest").path
    return Readers(binutils, s390x_binutils.tool("readelf"), str(dwarfdump.with_name("llvm-readelf")), str(dwarfdump))


def check_strictly(image: ElfImage, conversion: Conversion, section: DecodedSection, options: Options) -> None:
    """Verify a section, and hold it against what the strict reader and Linux want."""
    assert verify(image, section, options).is_clean
    code, vaddr = code_of(image), conversion.section_vaddr
    assert [text for text in complaints(conversion.data, vaddr, code) if text != SPREAD] == []
    if options.version == 3 and not reader_warnings(conversion):
        assert refusal(conversion.data, vaddr, code, image.arch.abi_id) == ""
    readers_of(image, options)


def check_printed(path: Path, conversion: Conversion, section: DecodedSection, readelf: str, llvm_readelf: str) -> None:
    """Compare a section with what tools print of it, in a copy of its file; llvm-readelf's path may be empty."""
    output = _output_of(readelf, "--sframe", path)
    assert "arning" not in output
    assert "rror" not in output
    printed = parse_readelf_sframe(output.splitlines())
    fixed_ra = section.arch.fixed_ra_offset != 0
    assert [normal_rows(f, fixed_ra=fixed_ra) for f in printed.functions] == [
        printed_rows(f, section) for f in section.functions
    ]
    assert printed.fre_count == conversion.plan.fre_count
    if llvm_readelf:
        found = parse_llvm_sframe(_output_of(llvm_readelf, "--sframe", path).splitlines())
        assert found == tuple(in_words_of_llvm(section))


def _output_of(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stderr)
    return done.stdout


def check_file(path: Path, readers: Readers, folder: Path) -> int:
    """Convert a file for all readers and compare; return the number of sections that were checked."""
    image, count = load(path), 0
    arch = NAMES[image.arch.name]
    wrapped, raw = folder / "wrapped", folder / "raw.sframe"
    for version, errata, release in VERSIONS:
        if errata == 0 and arch == "s390x":
            # Binutils 2.44 have no SFrame for it.
            continue
        options = Options(version, errata, level=2)
        conversion = convert(image, options)
        if not conversion.data:
            continue
        section = decode(conversion.data, conversion.section_vaddr)
        check_strictly(image, conversion, section, options)
        raw.write_bytes(conversion.data)
        _output_of(
            readers.binutils("newest").tool("objcopy", arch),
            *("--remove-section", ".sframe", "--add-section", f".sframe={raw}"),
            *("--set-section-flags", ".sframe=alloc,readonly,data"),
            *("--change-section-address", f".sframe={conversion.section_vaddr:#x}"),
            *(path, wrapped),
        )
        # LLVM does not know the ABI of s390x, and prints its words as they are stored.
        knows_all = version == 2 and errata == 1 and arch != "s390x"
        readelf = readers.readelf(image, release)
        check_printed(wrapped, conversion, section, readelf, readers.llvm_readelf if knows_all else "")
        count += 1
    return count


def check_meaning(path: Path, readers: Readers) -> None:
    """Compare sections with the rows that two readers of the CFI print, at every boundary of either."""
    arch = NAMES[load(path).arch.name]
    readelf = readers.binutils("newest").tool("readelf", arch)
    # The conversion is kept from one reader to the next, and the rows of both readers all the time.
    for version in (2, 3):
        for reader in (Reader("readelf", readelf), Reader("llvm-dwarfdump", readers.dwarfdump)):
            assert compare_rows(reader, path, version, arch, 2).problems == [], (reader.printer, version)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES],
    ids=lambda case: f"{case[0]}-{case[1]}",
)
def test_every_reader_takes_what_is_cut_and_joined(
    case: tuple[CorpusArch | Literal["machine"], int], readers: Readers, tmp_path: Path
) -> None:
    place, number = case
    try:
        files = files_of(place)
    except ToolMissingError as error:
        pytest.skip(str(error))
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
    check_meaning(path, readers)
