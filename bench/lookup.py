#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a look-up, in nanoseconds, in sections of version 3: of GNU's layout, and of each level.

lookup.py [--rounds N] [FILE...]

In GNU's layout every FDE has rows of its own. Return addresses, of calls in functions drawn at random, are looked up by
the reader of docs/writing-a-reader.md in a C program (`lookup.c`; files of AMD64); all sections must give the same
rows. The table has the medians of the rounds, and of their ratios. Without files: the largest libLLVM of this machine,
libc.so.6, libcrypto.so.3.
"""

from __future__ import annotations

import argparse
import random
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import mean, median
from typing import TYPE_CHECKING, Final

import capstone

from cfi2sframe import convert, decode

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.conversion.convert import Conversion
    from cfi2sframe.sframe.model import Section

HERE: Final = Path(__file__).resolve().parent
COMPILE: Final = ("cc", "-O2", "-Wall", "-Wextra", "-Wno-sign-compare")
LIBRARIES: Final = Path("/usr/lib/x86_64-linux-gnu")
LAYOUTS: Final = ("GNU's layout", "-O1", "-O2")
#: Addresses that a profile of one program meets again and again.
BATCH_SIZE: Final = 1024


def chosen_files() -> Iterator[Path]:
    """Yield the files to measure by default, those that are there."""
    yield from sorted(LIBRARIES.glob("libLLVM*.so*"), key=lambda path: path.stat().st_size)[-1:]
    yield from (path for path in (LIBRARIES / "libc.so.6", LIBRARIES / "libcrypto.so.3") if path.exists())


def row_number(section: Section, vaddr: int) -> int:
    """Return how many rows a reader walks for an address; 0 if the section has none for it."""
    found = section.find(vaddr)
    return 0 if found is None or found.row is None else found.function.rows.index(found.row) + 1


def return_addresses(conversion: Conversion, section: Section) -> list[int]:
    """Return addresses after calls of functions drawn at random, those that the section has rows for."""
    chance = random.Random(20)  # noqa: S311 - no secret
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    found: list[int] = []
    for function in chance.sample(section.functions, len(section.functions)):
        code = conversion.image.bytes_at(function.start_vaddr, function.size) or b""
        for vaddr, size, name, _ in disassembler.disasm_lite(code, function.start_vaddr):
            # After its last call, a function may end.
            if name == "call" and vaddr + size < function.end_vaddr and row_number(section, vaddr + size):
                found.append(vaddr + size)
        if len(found) >= BATCH_SIZE:
            break
    return found[:BATCH_SIZE]


def lines_of(program: Path, path: Path, rounds: int) -> Iterator[str]:
    """Measure a file; yield its rows of the table, in Markdown. Raises `CalledProcessError` where rows differ."""
    conversions = [convert(path, level=level) for level in (0, 1, 2)]
    sections = [decode(each.data, each.section_vaddr) for each in conversions]
    vaddrs = return_addresses(conversions[0], sections[0])
    with tempfile.TemporaryDirectory() as name:
        addresses = Path(name, "addresses")
        addresses.write_bytes(struct.pack(f"<{len(vaddrs)}Q", *vaddrs))
        command = [str(program), str(addresses), str(rounds)]
        for number, conversion in enumerate(conversions):
            Path(name, str(number)).write_bytes(conversion.data)
            command += [str(conversion.section_vaddr), f"{name}/{number}"]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    ways = list(zip(*(map(float, line.split()) for line in output.splitlines()), strict=True))
    for layout, conversion, section, times in zip(LAYOUTS, conversions, sections, ways, strict=True):
        rows = mean(row_number(section, vaddr) for vaddr in vaddrs)
        ratio = median(ours / gnu for ours, gnu in zip(times, ways[0], strict=True))
        yield f"| {path.name} | {layout} | {len(conversion.data):,} | {rows:.1f} | {median(times):.0f} | {ratio:.2f} |"


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=25, help="of all ways (default: 25)")
    arguments = parser.parse_args()
    print("| file | way | bytes | rows | ns | to GNU |")
    print(f"|---|---|{'---:|' * 4}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        program = Path(name, "lookup")
        subprocess.run([*COMPILE, "-o", program, HERE / "lookup.c"], check=True)
        for path in arguments.files or chosen_files():
            print("\n".join(lines_of(program, path, arguments.rounds)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
