# SPDX-License-Identifier: Apache-2.0
"""Damaged programs that still run: they run after conversion and after removal, or are refused."""

from __future__ import annotations

import random
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.elf.constants import SHT_NOTE
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE
from cfi2sframe.emit import check, check_removal, emit, remove
from cfi2sframe.errors import Cfi2SFrameError
from tests.support.embedded import run, write
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.fuzz

SOURCE: Final = """\
#include <string.h>
#include <unistd.h>
__attribute__((noinline)) static unsigned twice(unsigned n) { return n > 1 ? n + twice(n / 2) : n; }
int main(int count, char **words) {
    char text[16] = "sum ";
    text[4] = 'a' + twice(count * 40) % 26;
    text[5] = 10;
    return write(1, text, strlen(text)) != 6 || words[count];
}
"""
KINDS: Final = {
    "pie": (),
    "nopie": ("-no-pie",),
    "noseparate": ("-Wl,-z,noseparate-code",),
    "hash": ("-Wl,-z,noseparate-code,--hash-style=both",),
    "stripped": ("-Wl,-z,noseparate-code", "-s"),
    "end": ("-Wl,-z,noseparate-code,--build-id=none", "-no-pie", "-static", "-s"),
}
#: Bytes that a change may write: limits, small numbers, and types that sections and segments have.
VALUES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 0x10, 0x18, 0x40, 0x7F, 0x80, 0xF4, 0xFF)


class Counts(NamedTuple):
    """How many damaged programs ran, and how many of these were rewritten rather than refused."""

    ran: int
    rewritten: int


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Small programs of several layouts."""
    need("gcc")
    folder = tmp_path_factory.mktemp("programs")
    (folder / "sum.c").write_text(SOURCE)
    for kind, flags in KINDS.items():
        done = run("gcc", "-O1", "-o", folder / kind, folder / "sum.c", *flags)
        assert done.status == 0, done.errors
    return {kind: (folder / kind).read_bytes() for kind in KINDS}


def converted(data: bytes, _kind: str) -> bytes:
    emitted = emit(convert(load(data)))
    out = b"".join(emitted.chunks)
    check(emitted, load(out))
    return out


def removed(data: bytes, _kind: str) -> bytes:
    image = load(data)
    out = b"".join(remove(image))
    check_removal(image, load(out))
    return out


def outcome(path: Path, data: bytes) -> tuple[int, bytes] | None:
    write(path, data)
    try:
        done = subprocess.run([str(path)], capture_output=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.returncode, done.stdout


def damaged(good: bytes, chance: random.Random) -> bytes:
    """Return a program with one to three bytes changed, most often in headers or in what loaders read."""
    image = load(good)
    start = image.header.section_headers_offset
    notes = [range(s.file_offset, s.file_offset + s.size) for s in image.sections if s.type == SHT_NOTE]
    headers = range(64, 64 + PROGRAM_HEADER_SIZE * len(image.segments))
    zones = [*notes, headers, range(16, headers.stop + 0x200), range(start, len(good)), range(len(good))]
    data = bytearray(good)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        place = chance.choice(chance.choice(zones))
        data[place] = chance.choice(
            (chance.choice(VALUES), chance.randrange(256), data[place] ^ 1 << chance.randrange(8))
        )
    return bytes(data)


def attack(
    tmp_path: Path, programs: dict[str, bytes], rewrite: Callable[[bytes, str], bytes], count: int, seed: str
) -> Counts:
    """Rewrite damaged programs that run; whatever is not refused has to run as before."""
    ran = rewritten = 0
    for kind, good in programs.items():
        chance = random.Random(f"{seed} {kind}")  # noqa: S311 - the same numbers in each run
        wanted = outcome(tmp_path / "good", good)
        assert wanted == (0, b"sum a\n"), wanted
        for number in range(count // len(programs)):
            data = damaged(good, chance)
            if outcome(tmp_path / "before", data) != wanted:
                continue
            ran += 1
            try:
                out = rewrite(data, kind)
            except Cfi2SFrameError:
                continue
            rewritten += 1
            found = outcome(tmp_path / "after", out)
            if found != wanted and not all(outcome(tmp_path / "before", data) == wanted for _ in range(20)):
                # Whether the damaged program itself runs depends on where the kernel puts it.
                continue
            if found != wanted:
                write(tmp_path / f"breaks-{kind}-{number}", data)
            assert found == wanted, f"{tmp_path}/breaks-{kind}-{number}: {found}"
    return Counts(ran, rewritten)


COUNTS: Final = (pytest.param(300, id="300"), pytest.param(6000, id="6000", marks=pytest.mark.slow))


@pytest.mark.parametrize("count", COUNTS)
def test_removal(tmp_path: Path, programs: dict[str, bytes], count: int) -> None:
    files = {kind: converted(data, kind) for kind, data in programs.items()}
    counts = attack(tmp_path, files, removed, count, "removal")
    assert counts.ran > count // 4
    assert counts.rewritten > counts.ran // 3


@pytest.mark.parametrize("count", COUNTS)
def test_conversion(tmp_path: Path, programs: dict[str, bytes], count: int) -> None:
    counts = attack(tmp_path, programs, converted, count, "conversion")
    assert counts.ran > count // 4
    assert counts.rewritten > counts.ran // 3
