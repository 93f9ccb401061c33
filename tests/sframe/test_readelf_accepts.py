# SPDX-License-Identifier: Apache-2.0
"""GNU readelf of the matching version accepts every section that is made, and prints the rows that `dump` prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe import Options, convert, decode, load
from cfi2sframe.errors import InputError
from cfi2sframe.sframe.dump import dump_text
from tests.support import known_wrong
from tests.support.oracle.readelf_sframe import parse_readelf_sframe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[2] / "testdata/src/amd64"
# readelf takes time with the square of a function's rows: the 70,000 of this one keep it busy for half a minute.
SLOW = {"too-many-rows.s"}
# Of the others, nothing can be said, or they have no CFI.
FEWEST_SECTIONS = 50
FILES = ("usr/lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libstdc++.so.6", "usr/bin/bash")

FLAG_NAMES = {"SFRAME_F_FDE_SORTED", "SFRAME_F_FDE_FUNC_START_PCREL"}
ROW = re.compile(r"    [0-9a-f]{16}  ")


class Reader(NamedTuple):
    """A readelf, and the sections that it reads."""

    binutils: BinutilsVersion
    options: Options


READERS = {
    "version 1, 2.40": Reader("2.40", Options(version=1)),
    "version 2 errata 0, 2.44": Reader("2.44", Options(version=2, errata=0)),
    "version 2 errata 1, newest": Reader("newest", Options(version=2)),
    "version 2 errata 2, newest": Reader("newest", Options(version=2, errata=2)),
    "version 3, newest": Reader("newest", Options(version=3)),
}


@pytest.fixture(params=READERS)
def reader(request: pytest.FixtureRequest, binutils: Callable[[BinutilsVersion], Binutils]) -> tuple[Binutils, Options]:
    found = READERS[request.param]
    return binutils(found.binutils), found.options


def _readelf(tools: Binutils, path: Path) -> str:
    """Return what readelf prints of a section that it has nothing to complain about."""
    run = subprocess.run([tools.tool("readelf"), "--sframe", path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert "arning" not in run.stdout
    assert "rror" not in run.stdout
    return run.stdout


def _wrap(tools: Binutils, path: Path, data: bytes, section_vaddr: int, directory: Path) -> Path:
    """Put a section's bytes into a copy of a file, at their address."""
    raw, wrapped = directory / "raw.sframe", directory / "wrapped"
    raw.write_bytes(data)
    options = ["--add-section", f".sframe={raw}", "--set-section-flags", ".sframe=alloc,readonly,data"]
    if section_vaddr:
        options += ["--change-section-address", f".sframe={section_vaddr:#x}"]
    # It warns that no segment holds the section; to readelf that makes no difference.
    subprocess.run([tools.tool("objcopy"), *options, path, wrapped], capture_output=True, check=True)
    return wrapped


def _lines(text: Iterable[str], tools: Binutils) -> list[str]:
    """Return the lines from the function index on, in words that all versions share.

    readelf up to 2.40 prints "u" for an RA at its fixed offset, and the newest "U" for the padding of a flexible row;
    `dump` prints "f" for both. Wide cells touch one another in readelf's output.
    """
    lines = [line.rstrip() for line in text]
    body = lines[lines.index("  Function Index :") :]
    unsaid = "u" if known_wrong.find("sframe-fixed-ra", "readelf", tools.version) else "U"
    normal = []
    for line in body:
        if ROW.match(line):
            cells = line.replace(" ", "")
            normal.append(cells[:-1] + "f" if cells.endswith(unsaid) else cells)
        elif line:
            normal.append(line)
    return normal


def check_file(path: Path, reader: tuple[Binutils, Options], directory: Path) -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows."""
    tools, options = reader
    conversion = convert(load(path), options)
    if not conversion.data:
        return 0
    wrapped = _wrap(tools, path, conversion.data, conversion.section_vaddr, directory)
    output = _readelf(tools, wrapped).splitlines()
    decoded = decode(conversion.data, conversion.section_vaddr)
    assert _lines(output, tools) == _lines(dump_text(decoded), tools)
    printed = parse_readelf_sframe(output)
    expected = parse_readelf_sframe(dump_text(decoded))
    assert printed[:2] == expected[:2]
    assert (printed.fde_count, printed.fre_count) == (expected.fde_count, expected.fre_count)
    assert printed.flags <= FLAG_NAMES
    return printed.fre_count


@pytest.mark.corpus
@pytest.mark.parametrize("name", FILES)
def test_large_files(
    name: str, reader: tuple[Binutils, Options], tmp_path: Path, corpus: Callable[[CorpusArch], Path]
) -> None:
    assert check_file(corpus("amd64") / name, reader, tmp_path) > 10_000


def test_objects(reader: tuple[Binutils, Options], gcc: Tool, tmp_path: Path) -> None:
    """Each source under testdata: an object has several text sections, all of which its raw section puts at 0."""
    count = 0
    for source in sorted(SOURCES.iterdir()):
        if source.name in SLOW:
            continue
        build = re.search(r"Build: \S+ (.*-c)", source.read_text())
        made = tmp_path / (source.name + ".o")
        subprocess.run(
            [gcc.path, *(build[1].split() if build else ["-c"]), source, "-o", made], capture_output=True, check=True
        )
        try:
            count += check_file(made, reader, tmp_path) > 0
        except InputError:
            continue
    assert count >= FEWEST_SECTIONS


def test_a_reader_would_complain(tmp_path: Path, gcc: Tool, binutils: Callable[[BinutilsVersion], Binutils]) -> None:
    """What the other tests rely on: readelf does complain about a damaged section."""
    tools = binutils("newest")
    made = tmp_path / "a.o"
    subprocess.run([gcc.path, "-c", SOURCES / "push-rbp.s", "-o", made], check=True)
    data = convert(load(made)).data
    damaged = data[:2] + b"\x09" + data[3:]
    with pytest.raises((AssertionError, ValueError)):
        parse_readelf_sframe(_readelf(tools, _wrap(tools, made, damaged, 0, tmp_path)).splitlines())
