# SPDX-License-Identifier: Apache-2.0
"""GNU readelf of the matching version accepts every section that is made, and prints the rows that `dump` prints."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from cfi2sframe.errors import InputError
from tests.support import known_wrong
from tests.support.oracle.readelf_sframe import check_printed, printed, wrapped

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

pytestmark = pytest.mark.oracle

SOURCES = Path(__file__).resolve().parents[2] / "testdata/src/amd64"
# readelf takes time with the square of a function's rows: the 70,000 of this one keep it busy for half a minute.
SLOW = {"too-many-rows.s"}
# Of the others, nothing can be said, or they have no CFI.
FEWEST_SECTIONS = 50


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


def check_file(path: Path, reader: tuple[Binutils, Options], directory: Path) -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows."""
    tools, options = reader
    conversion = convert(load(path), **options._asdict())
    if not conversion.data:
        return 0
    vaddr = conversion.section_vaddr
    copy = wrapped(tools.tool("objcopy"), path, conversion.data, vaddr, directory)
    is_oldest = known_wrong.find("sframe-fixed-ra", "readelf", tools.version) is not None
    check_printed(printed(tools.tool("readelf"), copy), decode(conversion.data, vaddr), is_oldest=is_oldest)
    return conversion.rows.row_count


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
    copy = wrapped(tools.tool("objcopy"), made, data[:2] + b"\x09" + data[3:], 0, tmp_path)
    with pytest.raises(AssertionError):
        printed(tools.tool("readelf"), copy)
