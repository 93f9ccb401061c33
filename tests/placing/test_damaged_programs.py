# SPDX-License-Identifier: Apache-2.0
"""Damaged programs that still run: they run after conversion and after removal, or are refused."""

import random
import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import SHT_NOTE
from cfi2sframe.elf.headers import PROGRAM_HEADER_SIZE
from cfi2sframe.errors import Cfi2SFrameError
from tests.support.placing.embedded import compiled, converted, take_out, write

pytestmark = pytest.mark.fuzz

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


def outcome(path: Path, data: bytes, seconds: int = 5) -> tuple[int, bytes] | None:
    """Return status and output of a program; None where it does not start, or runs on for so many seconds."""
    write(path, data)
    try:
        done = subprocess.run([path], stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False)
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


@pytest.mark.parametrize("count", [100, pytest.param(6000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_removal", [False, True])
def test_whatever_is_not_refused_runs_as_before(tmp_path: Path, count: int, *, is_removal: bool) -> None:
    ran = rewritten = 0
    for kind, flags in KINDS.items():
        good = compiled("sum.c", *flags).read_bytes()
        good, rewrite = (converted(good), take_out) if is_removal else (good, converted)
        chance = random.Random(f"{is_removal} {kind}")  # noqa: S311 - the same numbers in each run
        wanted = outcome(tmp_path / "good", good)
        assert wanted == (0, b"sum a\n"), wanted
        for number in range(count // len(KINDS)):
            data = damaged(good, chance)
            if outcome(tmp_path / "before", data) != wanted:
                continue
            ran += 1
            try:
                out = rewrite(data)
            except Cfi2SFrameError:
                continue
            rewritten += 1
            # A busy machine is no fault of the program.
            found = outcome(tmp_path / "after", out, 60)
            # Whether the damaged program itself runs may depend on where the kernel puts it.
            if found != wanted and all(outcome(tmp_path / "before", data) == wanted for _ in range(20)):
                path = write(tmp_path / f"breaks-{kind}-{number}", data)
                pytest.fail(f"{path}: {found}")
    assert ran > count // 4
    assert rewritten > ran // 3
