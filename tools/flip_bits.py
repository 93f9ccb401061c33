#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Flip bits in files that have got a section, one at a time, and count what the check after placing finds.

flip_bits.py [--flips N] [--files N] [--seed N] [FILE_OR_FOLDER]...

Each file gets a section of random bytes, in memory. A flip may be missed only where no header, no section and
no segment has the byte: in padding of the file, and in the record for removal. Exit status 1 when any other is missed.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cfi2sframe.elf.headers import parse_headers
from cfi2sframe.elf.ranges import Span, touches, united
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.insert import inserted
from cfi2sframe.placing.linked import plan_embedding, self_check

if TYPE_CHECKING:
    from collections.abc import Iterator

ELF_MAGIC: Final = b"\x7fELF"
#: Every flip reads the whole file again.
MAX_SIZE: Final = 1 << 20
SECTION_SIZES: Final = (96, 5000)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inputs", metavar="FILE_OR_FOLDER", nargs="*", type=Path, default=[Path("/usr/bin")])
    parser.add_argument("--flips", type=int, default=10_000, metavar="N", help="flips in all (default: 10000)")
    parser.add_argument("--files", type=int, default=200, metavar="N", help="files at most (default: 200)")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    chance = random.Random(arguments.seed)  # noqa: S311 - no secret
    paths = list(candidates(arguments.inputs))
    chance.shuffle(paths)
    paths = list(islice(filter(is_placed, paths), arguments.files))
    if not paths:
        parser.error("no file that a section can be put into")
    counts: Counter[str] = Counter()
    for number, path in enumerate(paths):
        share = arguments.flips * (number + 1) // len(paths) - arguments.flips * number // len(paths)
        flip(path, share, chance, counts)
    missed = counts["missed"]
    total, found, free = counts.total(), counts["found"], counts["free"]
    print(f"{len(paths)} files, {total} flips: {found} found, {free} in free bytes, {missed} missed")
    return 1 if missed else 0


def candidates(inputs: list[Path]) -> Iterator[Path]:
    """Yield the ELF files of a size that can be checked often, in the order of their names."""
    for one in inputs:
        for path in sorted(one.rglob("*")) if one.is_dir() else [one]:
            if path.is_file() and not path.is_symlink() and path.stat().st_size <= MAX_SIZE:
                with path.open("rb") as file:
                    if file.read(4) == ELF_MAGIC:
                        yield path


def is_placed(path: Path) -> bool:
    """Whether a section can be put into a file."""
    try:
        plan_embedding(path.read_bytes(), SECTION_SIZES[0])
    except EmbedError:
        return False
    return True


def flip(path: Path, count: int, chance: random.Random, counts: Counter[str]) -> None:
    """Flip bits of one file, half of them in its first or last 4 KiB, where the headers are."""
    data = path.read_bytes()
    size = chance.choice(SECTION_SIZES)
    section = bytes(chance.randrange(256) for _ in range(size))
    try:
        plan = plan_embedding(data, size)
    except EmbedError:
        plan, section = plan_embedding(data, SECTION_SIZES[0]), section[: SECTION_SIZES[0]]
    good = b"".join(inserted(plan, section))
    self_check(data, good, plan, section)
    held = held_spans(good)
    for _ in range(count):
        places = chance.choice([range(len(good)), range(len(good)), range(4096), range(len(good) - 4096, len(good))])
        place = min(max(chance.choice(places), 0), len(good) - 1)
        damaged = bytearray(good)
        damaged[place] ^= 1 << chance.randrange(8)
        try:
            self_check(data, bytes(damaged), plan, section)
        except EmbedError:
            counts["found"] += 1
            continue
        is_held = touches(held, Span(place, place + 1))
        counts["missed" if is_held else "free"] += 1
        if is_held:
            print(f"{path}: missed at file offset 0x{place:x}")


def held_spans(data: bytes) -> list[Span]:
    """Return what headers, sections and segments have of a file."""
    file, headers = open_linked(data), parse_headers(data)
    tables = [Span(0, file.header.program_headers_offset), Span(64, file.table_end), file.section_table]
    sections = [section.file_span for section in headers.sections if section.is_stored]
    return united([*tables, *sections, *(segment.file_span for segment in headers.segments)])


if __name__ == "__main__":
    sys.exit(main())
