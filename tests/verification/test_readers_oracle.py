# SPDX-License-Identifier: Apache-2.0
"""GNU readelf and ld, three releases of each, read the sections that `judge` says they read, and no others."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode, decode_existing, judge
from cfi2sframe.constants.elf import SHT_PROGBITS
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.emit import emit
from cfi2sframe.errors import InputError
from tests.support.needs import need
from tests.support.oracle.tools import Binutils, BinutilsVersion, find_binutils
from tests.support.sframe.raw_sframe import RawFunction, RawSection
from tests.verification.test_readers import FLEXIBLE, linked_image

pytestmark = pytest.mark.oracle

#: The releases of `judge`, and which of the tests' tools stands for each.
RELEASES: Final[dict[str, BinutilsVersion]] = {"2.40": "2.40", "2.44": "2.44", "2.47": "newest"}
#: What GNU ld of each is called.
NAMES: Final = {"2.40": "ld-2.40", "2.44": "ld-2.41", "2.47": "ld"}
SECTIONS: Final = {
    "version 1": RawSection(version=1),
    "version 1, unsorted": RawSection(version=1, flags=0),
    "version 1, frame pointer": RawSection(version=1, flags=3),
    "version 1, relative starts": RawSection(version=1, flags=5),
    "version 1, unknown flag": RawSection(version=1, flags=9),
    "version 2 errata 0": RawSection(version=2, flags=1),
    "version 2, frame pointer": RawSection(version=2, flags=3),
    "version 2 errata 1": RawSection(version=2, flags=5),
    "version 2, unknown flag": RawSection(version=2, flags=0x11),
    "version 3": RawSection(),
    "version 3, frame pointer": RawSection(flags=7),
    "version 3, unknown flag": RawSection(flags=0x15),
    "version 3, flexible rows": RawSection((RawFunction(rows=FLEXIBLE, info2=1),)),
    "version 3, two functions": RawSection((RawFunction(), RawFunction(0x20010))),
    "version 3, shared rows": RawSection((RawFunction(), RawFunction(0x20010, fre_offset=0))),
}


def is_shown(tools: Binutils, path: Path, section: RawSection) -> bool:
    """Whether readelf shows all functions of a section, without a complaint."""
    command = [tools.tool("readelf"), "--sframe=.sframe", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    text = done.stdout + done.stderr
    is_quiet = done.returncode == 0 and "rror" not in text and "arning" not in text
    return is_quiet and text.count("func idx [") == len(section.functions)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("name", SECTIONS)
def test_readelf(name: str, release: str, tmp_path: Path) -> None:
    tools = find_binutils(RELEASES[release])
    section = SECTIONS[name]
    data = section.assemble()
    image = linked_image(abi=section.abi, section=data)
    path = tmp_path / "file"
    path.write_bytes(bytes(image.data[:]))
    verdicts = {v.releases: v for v in judge(image, decode(data, section.vaddr), "libsframe")}
    assert verdicts[release].reads_it == is_shown(tools, path, section), verdicts[release]


SOURCE: Final = """
int g(int);
int f(int x) { return g(x) + 1; }
int h(int x) { volatile int a[20]; a[x] = g(x); return a[1] + 2; }
"""


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("objects")
    (directory / "a.c").write_text(SOURCE)
    (directory / "b.c").write_text("int f(int); int g(int x) { return x * 3; }\nint _start(void) { return f(1); }\n")
    need("gcc")
    for name in ("a", "b"):
        command = ["gcc", "-O1", "-c", "-fno-stack-protector", f"{name}.c", "-o", f"{name}.o"]
        subprocess.run(command, cwd=directory, check=True, capture_output=True)
    return directory


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("section_type", [0x6FFFFFF4, SHT_PROGBITS], ids=["gnu", "progbits"])
@pytest.mark.parametrize("options", [(1, None), (2, 0), (2, 1), (2, 2), (3, None)])
def test_ld(options: tuple[int, int | None], section_type: int, release: str, objects: Path, tmp_path: Path) -> None:
    """What ld takes, it merges: all functions of both objects are in the program's section."""
    tools, expected, reads = find_binutils(RELEASES[release]), 0, set[bool]()
    for name in ("a.o", "b.o"):
        image = load(objects / name)
        emitted = emit(convert_image(image, Options(*options)), section_type=section_type)
        (tmp_path / name).write_bytes(b"".join(bytes(chunk) for chunk in emitted.chunks))
        decoded = decode_existing(load(tmp_path / name))
        expected += len(decoded.functions)
        (found,) = judge(load(tmp_path / name), decoded, NAMES[release], is_in_file=True)
        reads.add(found.reads_it)
    command = [tools.tool("ld"), "-o", "program", "a.o", "b.o"]
    subprocess.run(command, cwd=tmp_path, check=False, capture_output=True, timeout=60)
    merged = 0
    if (tmp_path / "program").exists():
        try:
            merged = len(decode_existing(load(tmp_path / "program")).functions)
        except InputError:
            # Nothing but an empty section.
            merged = 0
    assert reads == {merged == expected}, (merged, expected)


def test_ld_and_shared_rows(objects: Path) -> None:
    """That GNU ld writes past the section's bytes for them is for `tests/placing/test_objects.py` to show."""
    emitted = emit(convert(load(objects / "a.o"), 3))
    data = bytearray(b"".join(bytes(chunk) for chunk in emitted.chunks))
    (section,) = load(bytes(data)).sections_named(".sframe")
    table = section.file_offset + 28
    data[table + 16 + 12 : table + 32] = data[table + 12 : table + 16]
    image = load(bytes(data))
    verdict = judge(image, decode_existing(image), "ld", is_in_file=True)[-1]
    assert [(broken.rule, len(broken.vaddrs)) for broken in verdict.broken] == [("rows of its own", 2)]
