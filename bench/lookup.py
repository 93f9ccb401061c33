#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a look-up, in nanoseconds, in sections of every level and in DWARF's tables.

lookup.py [--rounds N] [--addresses N] [FILE...]

A C program (`lookup.c`; AMD64, glibc) loads each library and looks return addresses up in it, of calls of functions
drawn at random: in sections of version 3, those of GNU's layout (every FDE has rows of its own) and of each level, by
the reader of `lookup_sframe.c`; and in `.eh_frame`, by libgcc's `_Unwind_Find_FDE` and then the instructions up to the
address, run by `lookup_dwarf.c`. First all answers are compared. Then 1,024 addresses are looked up in 64 passes, each
in another order, way by way. The table has the medians of the rounds, and of their ratios. Without files: the largest
libLLVM of this machine, libc.so.6, libcrypto.so.3.
"""

from __future__ import annotations

import argparse
import platform
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

import capstone

from cfi2sframe import convert, load
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from cfi2sframe.errors import Cfi2SFrameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.sframe.model import Section

HERE: Final = Path(__file__).resolve().parent
SOURCES: Final = tuple(HERE / name for name in ("lookup.c", "lookup_sframe.c", "lookup_dwarf.c"))
COMPILE: Final = ("-O2", "-std=c11", "-Wall", "-Wextra", "-shared-libgcc")
LIBRARIES: Final = Path("/usr/lib/x86_64-linux-gnu")
SEED: Final = 20
#: The sections, by their names in the C program and in the table.
LAYOUTS: Final = {
    "gnu": ("GNU's layout", Options(level=0)),
    "O1": ("-O1", Options(level=1)),
    "O2": ("-O2", Options(level=2)),
}
#: The way that needs no section.
DWARF: Final = {"dwarf": "DWARF (libgcc)"}


class BenchError(Exception):
    """A file cannot be measured; the message says why."""


class Prices(NamedTuple):
    """A section's size in bytes, and the mean number of rows that a reader walks for the addresses looked up."""

    size: int
    mean_rows: float


class Prepared(NamedTuple):
    """The inputs of the C program for a file: what to load, the addresses, and words for each section."""

    module: Path
    addresses: Path
    sections: tuple[str, ...]
    prices: dict[str, Prices]

    def command(self, program: Path, rounds: int) -> list[str]:
        """Return the command of the C program; with 0 rounds it prints all answers."""
        return [str(program), str(self.module), str(self.addresses), str(rounds), *self.sections]


class Measured(NamedTuple):
    """What was measured of a file.

    `times` has the nanoseconds of each way, a number for each round. All answers for `address_count` addresses were
    equal, those of DWARF for `compared_count` of them; the others have expressions.
    """

    name: str
    times: dict[str, list[float]]
    prices: dict[str, Prices]
    address_count: int
    compared_count: int


def unsupported() -> str | None:
    """Return why nothing can be measured on this machine, or None."""
    if platform.machine() != "x86_64" or platform.libc_ver()[0] != "glibc":
        return "the benchmark of look-ups is for AMD64 with glibc"
    if shutil.which("cc") is None:
        return "the benchmark of look-ups needs a C compiler, cc"
    return None


def chosen_files() -> Iterator[Path]:
    """Yield the files to measure by default, those that are there."""
    candidates = {*LIBRARIES.glob("libLLVM*.so*"), *Path("/usr/lib").glob("llvm*/lib/libLLVM*.so*")}
    libraries = sorted({path.resolve() for path in candidates})
    yield from sorted(libraries, key=lambda path: path.stat().st_size)[-1:]
    yield from (path for path in (LIBRARIES / "libc.so.6", LIBRARIES / "libcrypto.so.3") if path.exists())


# Inputs


def build(folder: Path) -> Path:
    """Compile the C program into a folder. Raises `CalledProcessError`."""
    program = folder / "lookup"
    subprocess.run(["cc", *COMPILE, "-o", str(program), *map(str, SOURCES)], check=True)
    return program


def return_addresses(conversion: Conversion, section: Section, wanted: int) -> list[int]:
    """Return the addresses after the calls of functions drawn at random, those that FDE and section have rows for."""
    chance = random.Random(SEED)  # noqa: S311 - no secret
    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    entries = conversion.cfi.entries
    found: list[int] = []
    for number in chance.sample(range(len(entries)), len(entries)):
        fde = entries[number].fde
        end_vaddr = fde.pc_begin_vaddr + fde.pc_range
        code = conversion.image.bytes_at(fde.pc_begin_vaddr, fde.pc_range) or b""
        for vaddr, size, name, _ in disassembler.disasm_lite(code, fde.pc_begin_vaddr):
            # After its last call, a function may end.
            if name == "call" and vaddr + size < end_vaddr and row_number(section, vaddr + size):
                found.append(vaddr + size)
        if len(found) >= wanted:
            break
    chance.shuffle(found)
    return found[:wanted]


def row_number(section: Section, vaddr: int) -> int:
    """Return how many rows a reader walks for an address; 0 if the section has none for it."""
    found = section.find(vaddr)
    return 0 if found is None or found.row is None else found.function.rows.index(found.row) + 1


def prepare(path: Path, folder: Path, address_count: int) -> Prepared:
    """Write the inputs of the C program for a file into a folder. Raises `Cfi2SFrameError` and `BenchError`."""
    sections: list[str] = []
    chosen: list[int] = []
    prices = {}
    for name, (_, options) in LAYOUTS.items():
        conversion = convert(load(str(path)), **options._asdict())
        section = decode(conversion.data, conversion.section_vaddr)
        chosen = chosen or return_addresses(conversion, section, address_count)
        if not chosen:
            raise BenchError("no call is in a function of the section")
        (folder / name).write_bytes(conversion.data)
        sections += [name, hex(conversion.section_vaddr), str(folder / name)]
        row_count = sum(row_number(section, vaddr) for vaddr in chosen)
        prices[name] = Prices(len(conversion.data), row_count / len(chosen))
    (folder / "addresses").write_bytes(struct.pack(f"<{len(chosen)}Q", *chosen))
    return Prepared(path.resolve(), folder / "addresses", tuple(sections), prices)


# Results


def measure(program: Path, path: Path, address_count: int, rounds: int) -> Measured:
    """Measure a file. Raises `Cfi2SFrameError`, `BenchError`, and `CalledProcessError` where two answers differ."""
    with tempfile.TemporaryDirectory(prefix="lookup-") as name:
        prepared = prepare(path, Path(name), address_count)
        result = subprocess.run(prepared.command(program, rounds), check=True, capture_output=True, text=True)
    times: dict[str, list[float]] = {way: [] for way in (*LAYOUTS, *DWARF)}
    counts = [0, 0]
    for line in result.stdout.splitlines():
        kind, *words = line.split()
        if kind == "time":
            times[words[0]].append(float(words[1]))
        elif kind == "checked":
            counts = [int(word) for word in words]
    return Measured(path.name, times, prepared.prices, *counts)


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of two ways, round by round."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def lines_of(measured: Measured) -> Iterator[str]:
    """Yield a file's rows of the table, in Markdown."""
    for way, name in {**{way: name for way, (name, _) in LAYOUTS.items()}, **DWARF}.items():
        ours = measured.times[way]
        prices = measured.prices.get(way)
        about = "|" if prices is None else f"{prices.size:,} | {prices.mean_rows:.1f}"
        ratios = f"{ratio(ours, measured.times['gnu']):.2f} | {ratio(ours, measured.times['dwarf']):.2f}"
        yield f"| {measured.name} | {name} | {about} | {median(ours):.0f} | {ratios} |"


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=25, help="of all ways (default: 25)")
    parser.add_argument("--addresses", type=int, default=20_000, help="the most of a file (default: 20,000)")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.addresses) < 1:
        parser.error("--rounds and --addresses need a number from 1")
    reason = unsupported()
    if reason is not None:
        sys.stderr.write(f"lookup: {reason}\n")
        return 1
    print("| file | way | bytes | rows | ns | to GNU | to DWARF |")
    print(f"|---|---|{'---:|' * 5}", flush=True)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lookup-") as name:
        program = build(Path(name))
        for path in arguments.files or chosen_files():
            try:
                measured = measure(program, path, arguments.addresses, arguments.rounds)
            except (Cfi2SFrameError, BenchError) as error:
                sys.stderr.write(f"lookup: {path}: {error}\n")
                continue
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"lookup: {path}: {error.stdout}{error.stderr}")
                return 1
            print("\n".join(lines_of(measured)), flush=True)
            notes.append(
                f"{measured.name}: equal answers for {measured.address_count:,} addresses, DWARF's compared for "
                f"{measured.compared_count:,}"
            )
    print("", *notes, sep="\n")
    return 0 if notes else 1


if __name__ == "__main__":
    sys.exit(main())
