# SPDX-License-Identifier: Apache-2.0
"""Archives that ask for much: each costs what its bytes on the disk allow, and no more, whatever it has in it.

Each is made when its test runs. What single files ask for is in `test_guard`, `test_cost` and `test_limits`.
"""

import os
from collections.abc import Callable, Iterable
from itertools import accumulate, cycle
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.constants.elf import ELF_MAGIC
from tests.support.files import (
    ARCHIVE,
    THIN,
    endless_name,
    headers_over_words,
    member,
    named,
    object_with_function,
    sparse,
    zeros_packed,
)
from tests.support.jobs import OBJECT, object_of
from tests.support.process import run_within_bound

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

VERBS: Final = (("coverage",), ("size",), ("verify", "--would-be"), ("audit",), ("dump",))
COUNT: Final = 5_000
PAGE_SIZE: Final = 4096
#: What a terminal or a report would act on, and what is no text at all, in the bytes of a name.
EVIL: Final = "\x1b]0;owned\x07\x1b[2J<b>,=1+1\u202e".encode() + b"\xff\xfe"


# Archives that have their members


def archive(*members: bytes) -> bytes:
    return ARCHIVE + b"".join(members)


def with_names(table: bytes, *places: int, content: bytes = ELF_MAGIC) -> bytes:
    """An archive whose members have their names at these places of a table."""
    return archive(member(b"//", table), *(member(b"/%d" % place, content) for place in places))


def bsd(name: bytes, content: bytes, size: int | None = None) -> bytes:
    return member(b"#1/%d" % (len(name) if size is None else size), name + content)


WHOLE: Final[dict[str, Callable[[], bytes]]] = {
    "one name for all": lambda: with_names(b"A" * 300_000, *range(COUNT)),
    "one name of bytes that are no text": lambda: with_names(b"\xff" * 300_000, *range(COUNT)),
    "one name that a terminal acts on": lambda: with_names(EVIL * 9_000, *range(COUNT)),
    "names that overlap": lambda: with_names(b"a/\n" * 100_000, *range(0, 3 * COUNT, 3)),
    "names after the table": lambda: with_names(b"a/\n", *range(10**14, 10**14 + COUNT)),
    "names of nothing": lambda: with_names(b"\n" * COUNT, *range(COUNT)),
    "a table for each member": lambda: archive(*(member(b"//", b"A" * 90) + member(b"/0", ELF_MAGIC),) * COUNT),
    "a name without a table": lambda: archive(*(member(b"/%d" % n, ELF_MAGIC) for n in range(COUNT))),
    "BSD: the member is its name": lambda: archive(*(bsd(b"n" * 4_000, b"") for _ in range(500))),
    "BSD: one name of half a megabyte": lambda: archive(bsd(b"n" * 500_000, OBJECT)),
    "BSD: the name exceeds the member": lambda: archive(*(bsd(b"name", ELF_MAGIC, 10**12),) * COUNT),
    "BSD: names that are no text": lambda: archive(*(bsd(EVIL, ELF_MAGIC),) * COUNT),
    "members without a byte": lambda: archive(*(member(b"a/"),) * 2 * COUNT),
    "members of one byte": lambda: archive(*(member(b"a/", b"\x7f"),) * COUNT),
    "members that only begin as ELF files": lambda: archive(*(member(b"a/", ELF_MAGIC),) * 2 * COUNT),
    "members of a header": lambda: archive(*(member(b"a/", OBJECT[:64]),) * COUNT),
    "members without section headers": lambda: archive(*(member(b"a/", OBJECT[:-64]),) * 500),
    "equal members": lambda: archive(*(member(b"a/", OBJECT),) * 500),
    "archives in an archive": lambda: archive(*(member(b"a/", archive(member(b"b/", ELF_MAGIC))),) * COUNT),
    "an archive in an archive, a thousand deep": lambda: nested(1_000),
    "members of zeros, packed": lambda: archive(*(member(b"a/", zeros_packed(1 << 24)),) * 9),
    "a member of more zeros than memory, packed": lambda: archive(member(b"a/", zeros_packed(1 << 30))),
    "relocations over the same words": lambda: archive(*(member(b"a/", headers_over_words(4)),) * 30),
    "symbols over the same words": lambda: archive(*(member(b"a/", headers_over_words(2)),) * 30),
    "notes over the same words": lambda: archive(*(member(b"a/", headers_over_words(7)),) * 30),
    "groups over the same words": lambda: archive(*(member(b"a/", headers_over_words(17)),) * 30),
    "names without end": lambda: archive(
        *(member(b"a/", object_with_function(endless_name(n))) for n in range(300)),
    ),
    "long names of functions": lambda: archive(*(member(b"a/", object_with_function("f" * 9_000)),) * 60),
    "one long name of sections": lambda: archive(*(member(b"a/", object_with_function(EVIL.hex() * 99)),) * 60),
    "the end of a member is missing": lambda: archive(*(member(b"a/", OBJECT),) * 99, member(b"a/", OBJECT)[:-9]),
    "a size that exceeds the file": lambda: archive(*(member(b"a/", OBJECT),) * 99, member(b"a/", size=9_999_999_999)),
}


def nested(depth: int) -> bytes:
    data = member(b"o/", OBJECT)
    for _ in range(depth):
        data = member(b"a/", ARCHIVE + data)
    return ARCHIVE + data


def by_turns(names: Iterable[str]) -> list[tuple[str, tuple[str, ...]]]:
    """Give each name one verb."""
    return list(zip(names, cycle(VERBS), strict=False))


def check(path: Path, verb: tuple[str, ...], size: int) -> None:
    """Run a verb, within the bound for so many bytes; its messages stay within a bound, too."""
    done = run_within_bound(*verb, path, input_size=size)
    assert len(done.err) < 400_000, len(done.err)


@pytest.mark.parametrize(("name", "verb"), by_turns(WHOLE))
def test_archives(name: str, verb: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    path.write_bytes(WHOLE[name]())
    check(path, verb, path.stat().st_size)


# Archives with holes


def in_holes(content: bytes, size: int, count: int) -> tuple[dict[int, bytes], int]:
    """Members that begin with this content, and are holes after it."""
    step = 60 + size
    pieces = {8 + n * step: member(b"a/", content, size)[: 60 + len(content)] for n in range(count)}
    return {0: ARCHIVE} | pieces, 8 + count * step


HOLES: Final[dict[str, Callable[[], tuple[dict[int, bytes], int]]]] = {
    "a member with a hole of a gigabyte": lambda: in_holes(OBJECT, 10**9, 1),
    "a member with a hole of eight gigabytes": lambda: in_holes(OBJECT, 8 * 10**9, 1),
    "members with holes of a megabyte": lambda: in_holes(OBJECT, (1 << 20) - 2, 200),
    "members with holes of more": lambda: in_holes(OBJECT, 1 << 24, 200),
    "a member of headers in a hole": lambda: in_holes(headers_over_words(4), 1 << 30, 1),
    "a table of names in a hole": lambda: (
        {0: ARCHIVE + member(b"//", b"", 1 << 30), 68 + (1 << 30): member(b"/0", ELF_MAGIC) * 1_000},
        68 + (1 << 30) + 64 * 1_000,
    ),
    "a hole instead of a member": lambda: ({0: ARCHIVE + member(b"a/", OBJECT)}, 1 << 32),
}


@pytest.mark.parametrize(("name", "verb"), by_turns(HOLES))
def test_archives_with_holes(name: str, verb: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    check(path, verb, sparse(path, *HOLES[name]()))


# Thin archives: what they name is read once, and its bytes count


def thin(*names: bytes) -> bytes:
    places = accumulate((len(name) + 2 for name in names[:-1]), initial=0)
    table = member(b"//", b"".join(name + b"/\n" for name in names))
    return THIN + table + b"".join(named(b"/%d" % place) for place in places)


def of_offsets(folder: Path) -> bytes:
    """A file of starts of ELF files, each named to its end."""
    (folder / "f").write_bytes((OBJECT[:64] + b"`\n" * 30) * COUNT)
    places = (named(b"/0:%d" % (124 * n - 60), 124 * (COUNT - n)) for n in range(1, COUNT))
    return THIN + member(b"//", b"f/\n") + b"".join(places)


def one_file(folder: Path, *names: bytes) -> bytes:
    (folder / "f").write_bytes(object_of(500))
    for name in names:
        os.link(folder / "f", folder / os.fsdecode(name))
    return thin(b"f", *names)


NAMING: Final[dict[str, Callable[[Path], bytes]]] = {
    "a file by forged sizes": lambda folder: one_file(folder) + b"".join(named(b"/0", n) for n in range(COUNT)),
    "a file by many links": lambda folder: one_file(folder, *(b"l%d" % n for n in range(300))),
    "a file by many paths": lambda folder: one_file(folder)[:0] + thin(*(b"./" * n + b"f" for n in range(300))),
    "a file from many places to its end": of_offsets,
    "itself": lambda _: thin(*[b"lib.a"] * COUNT),
    "files that are not there": lambda _: thin(*(b"missing-%d" % n for n in range(COUNT))),
    "paths of many parts": lambda _: THIN + member(b"//", b"../" * 1_300 + b"x/\n") + named(b"/0") * COUNT,
    "paths of many parts that are there": lambda folder: (
        one_file(folder)[:0] + THIN + member(b"//", b"./" * 2_000 + b"f/\n") + named(b"/0") * COUNT
    ),
    "a path that is too long": lambda _: THIN + member(b"//", b"a/" * 99_999) + named(b"/1") * COUNT,
    "devices": lambda _: thin(b"/dev/zero", b"/dev/random", b"/dev/tty", b"/dev/ptmx", b"/dev/stdin"),
    "what the kernel makes": lambda _: thin(
        b"/proc/self/pagemap", b"/proc/self/mem", b"/proc/self/exe", b"/proc/self/maps", b"/proc/kmsg"
    ),
    "directories": lambda _: thin(*[b"/", b".", b"..", b"/usr/lib"] * 500),
}


@pytest.mark.parametrize(("name", "verb"), by_turns(NAMING))
def test_thin_archives(name: str, verb: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    path.write_bytes(NAMING[name](tmp_path))
    interpreter = os.stat("/proc/self/exe").st_size if name == "what the kernel makes" else 0
    # Links are further names of the same bytes.
    sizes = {status.st_ino: status.st_size for status in map(os.stat, tmp_path.iterdir())}
    check(path, verb, sum(sizes.values()) + interpreter)
