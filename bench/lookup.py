#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the time of a look-up, in nanoseconds, in sections of every level and in DWARF's tables.

lookup.py [--version {2,3}] [--rounds N] [--batches N] [--addresses N] [FILE...]

A C program (`lookup.c`; AMD64, glibc) loads each file and looks return addresses up in it, drawn at random from those
of all calls: in sections of GNU's layout (every FDE has rows of its own and ends where its code ends) and of each
level, by the reader of `lookup_sframe.c`; and in `.eh_frame`, by libgcc's `_Unwind_Find_FDE` and then the instructions
up to the address, run by `lookup_dwarf.c`. First all answers are compared. Cold: look-ups in batches of 16, after a
walk over twice the bytes of the largest cache. Warm: 1,024 addresses in 64 passes, each in another order. A round has
the medians of its batches, in which all ways alternate, and of its passes, way by way; the table has the medians of the
rounds, and of their ratios. Without files: the
largest libLLVM of this machine, libc.so.6, git.

Files of other ABIs are not loaded, and DWARF's tables not used. Their sections are written in this machine's byte order
and as its ABI, which changes neither sizes nor what a reader walks.

glibc loads no programs into other programs. A position-independent program is copied, without the mark that says so
and without constructors: its code and its CFI stay the same bytes.
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
from bisect import bisect_right
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import Options, load
from cfi2sframe.arch import AMD64
from cfi2sframe.conversion import convert_image
from cfi2sframe.elf import constants as e
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.report.calls import CallFinder
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.conversion import Conversion

HERE: Final = Path(__file__).resolve().parent
SOURCES: Final = tuple(HERE / name for name in ("lookup.c", "lookup_sframe.c", "lookup_dwarf.c"))
COMPILE: Final = ("-O2", "-std=c11", "-Wall", "-Wextra", "-shared-libgcc")
LIBRARIES: Final = Path("/usr/lib/x86_64-linux-gnu")
SEED: Final = 20
#: The sections, by their names in the C program and in the table.
LAYOUTS: Final = {
    "gnu": ("GNU's layout", Options(level=0, with_padding=False)),
    "O1": ("-O1", Options(level=1)),
    "O2": ("-O2", Options(level=2)),
}
#: The ways that need no section: libgcc's part alone, and all of it.
DWARF: Final = {"find-fde": "of which `_Unwind_Find_FDE`", "dwarf": "DWARF (libgcc)"}

#: Of the dynamic section: an object's constructors, and a flag's word with the bit that makes dlopen() refuse a file.
DT_NULL, DT_INIT, DT_FINI, DT_DEBUG = 0, 12, 13, 21
DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ, DT_FLAGS_1 = 27, 28, 0x6FFFFFFB
DF_1_PIE: Final = 0x08000000
_DYNAMIC: Final = struct.Struct("<QQ")


class BenchError(Exception):
    """A file cannot be measured; the message says why."""


class Time(NamedTuple):
    """Nanoseconds for a look-up, in one round."""

    cold: float
    warm: float


class Prices(NamedTuple):
    """A section's size in bytes, and the mean number of rows that a reader walks for the addresses looked up."""

    size: int
    mean_rows: float


class Prepared(NamedTuple):
    """The inputs of the C program for a file, in a folder: what to load, the addresses, and words for each section.

    `module` is None for a file of another ABI.
    """

    module: Path | None
    addresses: Path
    sections: tuple[str, ...]
    prices: dict[str, Prices]

    def command(self, program: Path, rounds: int, batches: int) -> list[str]:
        """Return the command of the C program; with 0 rounds it prints all answers."""
        return [str(program), str(self.module or "-"), str(self.addresses), str(rounds), str(batches), *self.sections]


class Measured(NamedTuple):
    """What was measured of a file.

    `times` has the rounds of each way to look up. All answers for `address_count` addresses were equal, those of DWARF
    for `compared_count` of them; the others have expressions. `evicting_size` is what a cold look-up follows, in bytes.
    """

    name: str
    times: dict[str, list[Time]]
    prices: dict[str, Prices]
    address_count: int
    compared_count: int
    evicting_size: int


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
    yield from (path for path in (LIBRARIES / "libc.so.6", Path("/usr/bin/git")) if path.exists())


# Inputs


def build(folder: Path) -> Path:
    """Compile the C program into a folder. Raises `CalledProcessError`."""
    program = folder / "lookup"
    subprocess.run(["cc", *COMPILE, "-o", str(program), *map(str, SOURCES)], check=True)
    return program


def return_addresses(conversion: Conversion) -> list[int]:
    """Return the addresses after all calls for which a conversion's section has a function."""
    finder = CallFinder(conversion.image.arch, conversion.image.budget, is_linked=True)
    pieces = conversion.code_map.pieces
    found: list[int] = []
    for start, end in zip(pieces.starts, pieces.ends, strict=True):
        code_range = conversion.image.code_range_of(start)
        if code_range is not None:
            code = conversion.image.code_bytes(code_range, start, end)
            found += (ra for ra in finder.return_addresses(code, start) if row_number(conversion, ra))
    return found


def row_number(conversion: Conversion, vaddr: int) -> int:
    """Return how many rows a reader walks for an address, which is in no stub; 0 if the section has no function."""
    section = conversion.section
    index = bisect_right(section.starts, vaddr) - 1
    if index < 0 or vaddr - section.starts[index] >= section.sizes[index]:
        return 0
    return bisect_right(section.bodies[index].starts, vaddr - section.starts[index])


def loadable(path: Path, folder: Path) -> Path:
    """Return a file that dlopen() takes: the file itself, or a copy in a folder. Raises `BenchError`."""
    image = load(str(path))
    data = bytearray(path.read_bytes())
    dynamic = next((p for p in image.segments if p.type == e.PT_DYNAMIC), None)
    if image.header.type != e.ET_DYN or dynamic is None:
        raise BenchError("glibc can load only what is position-independent and dynamic")
    is_program = False
    for offset in range(dynamic.file_offset, dynamic.file_offset + dynamic.file_size, _DYNAMIC.size):
        tag, value = _DYNAMIC.unpack_from(data, offset)
        if tag == DT_NULL:
            break
        if tag == DT_FLAGS_1 and value & DF_1_PIE:
            is_program = True
            value &= ~DF_1_PIE
        elif tag in (DT_INIT, DT_FINI):
            tag, value = DT_DEBUG, 0
        elif tag in (DT_INIT_ARRAYSZ, DT_FINI_ARRAYSZ):
            value = 0
        _DYNAMIC.pack_into(data, offset, tag, value)
    if not is_program:
        return path
    copy = folder / path.name
    copy.write_bytes(data)
    return copy


def prepare(path: Path, folder: Path, version: int, address_count: int) -> Prepared:
    """Write the inputs of the C program for a file into a folder. Raises `Cfi2SFrameError` and `BenchError`."""
    sections: list[str] = []
    chosen: list[int] = []
    prices = {}
    for name, (_, options) in LAYOUTS.items():
        conversion = convert_image(load(str(path)), options._replace(version=version))
        if not sections:
            # Of GNU's layout, which has no rows for return addresses in padding.
            addresses = return_addresses(conversion)
            chosen = random.Random(SEED).sample(addresses, min(address_count, len(addresses)))  # noqa: S311 - no secret
        if not chosen:
            raise BenchError("no call is in a function of the section")
        (folder / name).write_bytes(as_amd64(conversion, options))
        sections += [name, hex(conversion.section_vaddr), str(folder / name)]
        row_count = sum(row_number(conversion, vaddr) for vaddr in chosen)
        prices[name] = Prices(len(conversion.data), row_count / len(chosen))
    (folder / "addresses").write_bytes(struct.pack(f"<{len(chosen)}Q", *chosen))
    module = loadable(path, folder) if conversion.image.arch == AMD64 else None
    return Prepared(module, folder / "addresses", tuple(sections), prices)


def as_amd64(conversion: Conversion, options: Options) -> bytes:
    """Return a section's bytes with the byte order and the ABI that the C program reads."""
    arch = conversion.image.arch._replace(byte_order=AMD64.byte_order, abi_id=AMD64.abi_id)
    plan = plan_section(conversion.section, arch, conversion.section_vaddr, share=options.level != 0)
    return encode_section(plan)


# Results


def measure(program: Path, path: Path, version: int, address_count: int, rounds: int, batches: int) -> Measured:
    """Measure a file. Raises `Cfi2SFrameError`, `BenchError`, and `CalledProcessError` where two answers differ."""
    with tempfile.TemporaryDirectory(prefix="lookup-") as name:
        prepared = prepare(path, Path(name), version, address_count)
        command = prepared.command(program, rounds, batches)
        result = subprocess.run(command, check=True, capture_output=True, text=True)
    return parse(path.name, prepared.prices, result.stdout)


def parse(name: str, prices: dict[str, Prices], output: str) -> Measured:
    """Return what the C program printed as a record."""
    times: dict[str, list[Time]] = {way: [] for way in (*LAYOUTS, *DWARF)}
    numbers: dict[str, list[int]] = {}
    for line in output.splitlines():
        kind, *words = line.split()
        if kind == "time":
            times[words[0]].append(Time(float(words[2]), float(words[3])))
        elif kind in ("checked", "evicting"):
            numbers[kind] = [int(word) for word in words]
    return Measured(name, times, prices, *numbers["checked"], *numbers["evicting"])


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Return the median of the ratios of two ways, round by round."""
    return median(a / b for a, b in zip(ours, theirs, strict=True))


def lines_of(measured: Measured) -> Iterator[str]:
    """Yield a file's rows of the table, in Markdown."""
    for way, name in {**{way: name for way, (name, _) in LAYOUTS.items()}, **DWARF}.items():
        if not measured.times[way]:
            continue
        cells = []
        for field in range(len(Time._fields)):
            ours, gnu, dwarf = ([each[field] for each in measured.times[key]] for key in (way, "gnu", "dwarf"))
            to_dwarf = f"{ratio(ours, dwarf):.2f}" if dwarf else ""
            cells += [f"{median(ours):.0f}", f"{ratio(ours, gnu):.2f}", to_dwarf]
        prices = measured.prices.get(way)
        about = "|" if prices is None else f"{prices.size:,} | {prices.mean_rows:.1f}"
        yield f"| {measured.name} | {name} | {about} | {' | '.join(cells)} |"


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--version", type=int, choices=(2, 3), default=3, help="of SFrame (default: 3)")
    parser.add_argument("--rounds", type=int, default=25, help="of all ways (default: 25)")
    parser.add_argument("--batches", type=int, default=20, help="of 16 cold look-ups, in a round (default: 20)")
    parser.add_argument("--addresses", type=int, default=20_000, help="the most of a file (default: 20,000)")
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.batches, arguments.addresses) < 1:
        parser.error("--rounds, --batches and --addresses need a number from 1")
    reason = unsupported()
    if reason is not None:
        sys.stderr.write(f"lookup: {reason}\n")
        return 1
    print("| file | way | bytes | rows | cold, ns | to GNU | to DWARF | warm, ns | to GNU | to DWARF |")
    print(f"|---|---|{'---:|' * 8}", flush=True)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="lookup-") as name:
        program = build(Path(name))
        for path in arguments.files or chosen_files():
            try:
                measured = measure(
                    program, path, arguments.version, arguments.addresses, arguments.rounds, arguments.batches
                )
            except (Cfi2SFrameError, BenchError) as error:
                sys.stderr.write(f"lookup: {path}: {error}\n")
                continue
            except subprocess.CalledProcessError as error:
                sys.stderr.write(f"lookup: {path}: {error.stdout}{error.stderr}")
                return 1
            print("\n".join(lines_of(measured)), flush=True)
            notes.append(
                f"{measured.name}: equal answers for {measured.address_count:,} addresses, DWARF's compared for "
                f"{measured.compared_count:,}; {measured.evicting_size / (1 << 20):.0f} MiB before each cold batch"
            )
    print("", *notes, sep="\n")
    return 0 if notes else 1


if __name__ == "__main__":
    sys.exit(main())
