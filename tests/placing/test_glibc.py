# SPDX-License-Identifier: Apache-2.0
"""The backtrace() of a glibc that reads SFrame finds, by the sections made here, the frames that DWARF finds.

The programs of tests/support/consumer/places run under the glibc of `make glibc`. They, their libraries, its libraries
and its ld.so are converted to version 2, at each level that shares rows, without further options. In the libgcc_s.so.1
that backtrace() falls back to, _Unwind_Backtrace is overwritten and finds no frame: whatever is answered comes from
SFrame rows.
"""

import re
import shutil
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from tests.support.consumer.places import IN_C, IN_CPP, build, program_of
from tests.support.consumer.walk import libraries_of
from tests.support.needs import need
from tests.support.oracle.known_wrong import expect_failure
from tests.support.placing.embedded import emitted

pytestmark = [pytest.mark.oracle, pytest.mark.slow, pytest.mark.sampled]

ROOT = Path(__file__).resolve().parents[2]
GLIBC = ROOT / "build/glibc"
LIBGCC: Final = "libgcc_s.so.1"
#: The same library for the judgement, under a name of the same length.
LIBGCC_OF_THE_JUDGE: Final = "libgcc_r.so.1"
#: return _URC_END_OF_STACK.
FINDS_NOTHING: Final = {AMD64: bytes.fromhex("b805000000c3"), AARCH64_LE: bytes.fromhex("a0008052c0035fd6")}
SAME = re.compile(r"same (\d+)")
NONE = re.compile(r"none of (\d+)")


class World(NamedTuple):
    """A folder with programs, and lib/ with all that they load."""

    folder: Path
    glibc: str

    def answer(self, place: str) -> str:
        """Run the program that has a place, and return what it says of its stack there."""
        (loader,) = (self.folder / "lib").glob("ld-linux*.so.*")
        command: list[str | Path] = [
            loader,
            "--library-path",
            self.folder / "lib",
            self.folder / program_of(place),
            place,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        name, _, answer = str(done.stdout).strip().partition(": ")
        assert name == place
        return answer


def glibc_folder() -> Path:
    """Return the folder that `make glibc` fills, or skip."""
    if not (GLIBC / "version").exists():
        pytest.skip("no glibc that reads SFrame: make glibc, which takes 15 minutes")
    return GLIBC


def without_backtrace(data: bytes) -> bytes:
    """Return a libgcc_s whose _Unwind_Backtrace finds no frame."""
    image = load(data)
    symbols = (symbol for table in image.symbol_tables for symbol in image.symbols(table))
    vaddr = next(symbol.vaddr for symbol in symbols if symbol.name == "_Unwind_Backtrace" and symbol.vaddr)
    section = image.section_at(vaddr)
    assert section
    offset, code = vaddr - section.vaddr + section.file_offset, FINDS_NOTHING[image.arch]
    return data[:offset] + code + data[offset + len(code) :]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    """Nothing of it converted: the libraries of glibc have sections of version 3, the others have none."""
    glibc = glibc_folder()
    need("ldd")
    folder = tmp_path_factory.mktemp("built")
    lib = folder / "lib"
    shutil.copytree(glibc / "lib", lib)
    build(folder, "compare_glibc.c")
    for name, path in libraries_of(folder / "places_cc").items():
        if not (lib / name).exists() and not name.startswith("ld"):
            shutil.copy(path, lib / name)
    libgcc = (lib / LIBGCC).read_bytes()
    (lib / LIBGCC).write_bytes(without_backtrace(libgcc))
    (lib / LIBGCC_OF_THE_JUDGE).write_bytes(libgcc.replace(LIBGCC.encode(), LIBGCC_OF_THE_JUDGE.encode()))
    return World(folder, (glibc / "version").read_text().strip())


@pytest.fixture(scope="module", params=[1, 2])
def converted(request: pytest.FixtureRequest, built: World, tmp_path_factory: pytest.TempPathFactory) -> World:
    """A copy with every file converted, at a level."""
    folder, options = tmp_path_factory.mktemp("converted"), Options(version=2, level=request.param)
    shutil.copytree(built.folder, folder, dirs_exist_ok=True)
    for path in (folder / "places", folder / "places_cc", *(folder / "lib").iterdir()):
        if path.name != LIBGCC_OF_THE_JUDGE:
            path.write_bytes(emitted(convert_image(load(path.read_bytes()), options)))
    return World(folder, built.glibc)


@pytest.mark.parametrize("place", IN_C + IN_CPP)
def test_backtrace_finds_the_frames_that_dwarf_finds(
    place: str, converted: World, request: pytest.FixtureRequest
) -> None:
    expect_failure(request, f"backtrace-{place}", "glibc", converted.glibc)
    answer = converted.answer(place)
    match = SAME.fullmatch(answer)
    assert match, answer
    # At least `here`, its caller, and what calls that.
    assert int(match[1]) >= (200 if place == "deep" else 3)


@pytest.mark.parametrize("place", ["deep", "signal", "thread", "unwinding"])
def test_without_sections_nothing_is_found(place: str, built: World) -> None:
    """The other tests can fail: there is no way around the rows."""
    assert NONE.fullmatch(built.answer(place))
