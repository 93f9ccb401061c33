#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the files of many producers of machine code, before and after a change, for docs/lab/producers.md.

producers.py measure [--commit COMMIT | --resume] [--producer NAME]... [--arch ARCH]... [--jobs N] -o FILE [FOLDER]
producers.py table [--before FILE] [--write PAGE] FILE
producers.py odd FILE

`measure` converts every ELF file under FOLDER (default: what `make producers` fetches) to versions 3 and 2 by the
command line of these sources, or of COMMIT's, and writes a record for each as a line of JSON. What these sources make
is verified, and of a few files of each producer and architecture, GNU readelf prints the rows too (`make oracles`). A
FILE of a COMMIT that is there already is continued, since a commit does not change; one of these sources is with
--resume. `table` prints the sums as Markdown, or writes them between the markers of PAGE. `odd` lists what was
refused, differs, should never be printed, or takes long; its exit status is 1 when anything differs or is printed
that should not be.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from commits import ROOT, check_out
from producer_runs import VERSIONS, File, Record, measure
from producer_tables import Measurement, page_lines

from cfi2sframe import load
from cfi2sframe.api import decode_existing
from cfi2sframe.errors import Cfi2SFrameError
from tests.support.oracle.compare import normal_rows, printed_rows
from tests.support.oracle.frames import OracleOutputError
from tests.support.oracle.readelf_sframe import parse_readelf_sframe
from tests.support.oracle.tools import ToolMissingError, find_binutils, find_s390x_binutils

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from producer_runs import Comparison

LIST: Final = ROOT / "tools" / "producers.list"
FOLDER: Final = ROOT / "build" / "producers"
ELF_MAGIC: Final = b"\x7fELF"
#: Of each producer and architecture, readelf is asked about this many files, the largest below a size in bytes.
SAMPLE_COUNT: Final = 2
SAMPLE_MAX_SIZE: Final = 4 << 20
MARKERS: Final = ("<!-- made by `make producers-table` -->", "<!-- end -->")
_SLOWEST_COUNT: Final = 12


class Package(NamedTuple):
    """A line of the list. `name` is that of the folder; `arches` is empty where it may have any."""

    producer: str
    suite: str
    name: str
    arches: tuple[str, ...]


def read_list(text: str) -> Iterator[Package]:
    """Yield the packages of the list; its first lines tell the format."""
    producer = ""
    for line in text.splitlines():
        if line.startswith("["):
            producer = line.strip("[] ")
        elif line and not line.startswith("#"):
            suite, name, *more = line.split()
            arches = () if not more or more[0] == "any" else tuple(more[0].split(","))
            yield Package(producer, suite, name.removeprefix("@"), arches)


def find_files(folder: Path, packages: Iterable[Package], arches: Iterable[str]) -> Iterator[File]:
    """Yield the ELF files of packages, each inode once."""
    seen: set[tuple[int, int]] = set()
    wanted = tuple(packages)
    for arch in arches:
        for package in wanted:
            root = folder / arch / package.name
            if package.arches and arch not in package.arches:
                continue
            for path in sorted(root.rglob("*")):
                if path.is_symlink() or not path.is_file():
                    continue
                status = path.stat()
                with path.open("rb") as file:
                    is_elf = file.read(len(ELF_MAGIC)) == ELF_MAGIC
                if is_elf and (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    name = str(path.relative_to(root))
                    yield File(package.producer, arch, package.name, name, str(path), status.st_size)


def sample_of(files: Iterable[File]) -> set[File]:
    """Return the files that readelf is asked about."""
    counts: Counter[tuple[str, str]] = Counter()
    chosen = set()
    for file in sorted(files, key=lambda file: (-file.size, file.key)):
        if file.size <= SAMPLE_MAX_SIZE and counts[file.producer, file.arch] < SAMPLE_COUNT:
            counts[file.producer, file.arch] += 1
            chosen.add(file)
    return chosen


def find_readelf(arch: str) -> str:
    """Return the newest GNU readelf, for s390x one that runs there: others misread shared rows; empty without one."""
    try:
        return (find_s390x_binutils() if arch == "s390x" else find_binutils("newest")).tool("readelf")
    except ToolMissingError as error:
        print(f"producers: {error}", file=sys.stderr)
        return ""


def compare_with_readelf(path: str, readelf: str) -> Comparison:
    """Return how many rows of a file's section GNU readelf prints as `dump` does, and how it does not."""
    done = subprocess.run([readelf, "--sframe", path], capture_output=True, text=True, check=False)
    complaints = [line for line in (done.stdout + done.stderr).splitlines() if "arning" in line or "rror" in line]
    if done.returncode or complaints:
        return 0, (complaints or [f"readelf: exit status {done.returncode}"])[0]
    try:
        section = decode_existing(load(path))
        printed = parse_readelf_sframe(done.stdout.splitlines())
    except (Cfi2SFrameError, OracleOutputError) as error:
        return 0, str(error)
    has_fixed_ra = bool(section.header.fixed_ra_offset)
    theirs = [normal_rows(function, fixed_ra=has_fixed_ra) for function in printed.functions]
    ours = [printed_rows(function, section) for function in section.functions]
    if theirs != ours:
        index = next((i for i, pair in enumerate(zip(theirs, ours, strict=False)) if pair[0] != pair[1]), -1)
        return 0, f"readelf prints another function {index} of {len(ours)}"
    return sum(len(rows) for _, _, rows in ours), ""


# Measuring


def records_of(path: Path) -> list[Record]:
    """Read the records of a measurement."""
    with path.open(encoding="utf-8") as file:
        found = [Record(**json.loads(line)) for line in file]
    return [record._replace(differences=tuple(record.differences), odd=tuple(record.odd)) for record in found]


def measure_files(files: list[File], package: Path, jobs: int, out: Path, *, checks: bool) -> None:
    """Measure files, the largest first; each record is written when it is there. `checks`: what is made is verified."""
    known = {(record.key, record.version) for record in records_of(out)} if out.exists() else set()
    tasks = [
        (file, version)
        for file in sorted(files, key=lambda file: (-file.size, file.key))
        for version in VERSIONS
        if (file.key, version) not in known
    ]
    compare: dict[File, Callable[[str], Comparison]] = {}
    if checks:
        readelf = {arch: find_readelf(arch) for arch in sorted({file.arch for file in files})}
        sample = [file for file in sample_of(files) if readelf[file.arch]]
        compare = {file: partial(compare_with_readelf, readelf=readelf[file.arch]) for file in sample}
    begin = time.monotonic()
    with (
        out.open("a", encoding="utf-8") as target,
        tempfile.TemporaryDirectory(dir=out.parent) as work,
        ThreadPoolExecutor(jobs) as workers,
    ):
        run = partial(measure, package=package, work=Path(work), verifies=checks)
        futures = [workers.submit(run, file, version, compare=compare.get(file)) for file, version in tasks]
        for number, future in enumerate(as_completed(futures), 1):
            target.write(json.dumps(future.result()._asdict()) + "\n")
            target.flush()
            if number % 100 == 0 or number == len(tasks):
                print(f"{number:,} of {len(tasks):,}, {time.monotonic() - begin:.0f} s", file=sys.stderr)


def run_measure(arguments: argparse.Namespace) -> int:
    """Measure; return the exit status."""
    packages = list(read_list(LIST.read_text(encoding="utf-8")))
    if arguments.producer:
        packages = [package for package in packages if package.producer in arguments.producer]
    arches = arguments.arch or sorted(path.name for path in arguments.folder.iterdir() if path.is_dir())
    files = list(find_files(arguments.folder.resolve(), packages, arches))
    if not files:
        print("producers: no files are here; fetch them with: make producers", file=sys.stderr)
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    if arguments.commit is None:
        if not arguments.resume:
            arguments.output.unlink(missing_ok=True)
        measure_files(files, ROOT, arguments.jobs, arguments.output, checks=True)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        package = check_out(arguments.commit, Path(folder))
        measure_files(files, package, arguments.jobs, arguments.output, checks=False)
    return 0


# Showing


def read_measurement(path: Path) -> Measurement:
    """Read a measurement, with the producers in the order of the list."""
    order = list(dict.fromkeys(package.producer for package in read_list(LIST.read_text(encoding="utf-8"))))
    return Measurement(tuple(order), tuple(records_of(path)))


def run_table(arguments: argparse.Namespace) -> int:
    """Print the tables, or write them to a page; return the exit status."""
    after = read_measurement(arguments.records)
    before = after if arguments.before is None else read_measurement(arguments.before)
    # The list may have changed in between, or a measurement may have been interrupted.
    before, after = before.limited_to(after.keys), after.limited_to(before.keys)
    text = "\n".join(page_lines(before, after)) + "\n"
    if arguments.write is None:
        sys.stdout.write(text)
        return 0
    page = arguments.write.read_text(encoding="utf-8")
    head, found, rest = page.partition(MARKERS[0])
    _, found_end, tail = rest.partition(MARKERS[1])
    if not (found and found_end):
        print(f"producers: {arguments.write} has no markers", file=sys.stderr)
        return 1
    arguments.write.write_text(f"{head}{MARKERS[0]}\n\n{text}\n{MARKERS[1]}{tail}", encoding="utf-8")
    return 0


def run_odd(arguments: argparse.Namespace) -> int:
    """List what a reader should look at; return 1 where something is wrong."""
    records = records_of(arguments.records)
    for record in sorted(records, key=lambda record: (record.error, record.key)):
        if record.error:
            print(f"not rewritten: {record.key} ({record.version}): {record.error}")
    wrong = 0
    for record in records:
        lines = [*record.differences, *record.odd, *([record.readelf_problem] if record.readelf_problem else [])]
        wrong += bool(lines)
        for line in lines:
            print(f"WRONG: {record.key} ({record.version}): {line}")
    for record in sorted(records, key=lambda record: -record.cpu_seconds)[:_SLOWEST_COUNT]:
        print(f"slow: {record.key} ({record.version}): {record.cpu_seconds:.1f} s, {record.peak_size >> 20:,} MiB")
    # Python itself takes 30 MB.
    for record in sorted(records, key=lambda record: -(record.peak_size - (30 << 20)) / record.size)[:_SLOWEST_COUNT]:
        size = f"{record.peak_size >> 20:,} MiB for {record.size / (1 << 20):,.1f}"
        print(f"large: {record.key} ({record.version}): {size}, {record.cpu_seconds:.1f} s")
    return 1 if wrong else 0


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("measure")
    verb.add_argument("folder", metavar="FOLDER", nargs="?", type=Path, default=FOLDER)
    state = verb.add_mutually_exclusive_group()
    state.add_argument("--commit", help="the sources to measure (default: these)")
    state.add_argument("--resume", action="store_true", help="keep the records that are there; nothing has changed")
    verb.add_argument("--producer", action="append", metavar="NAME")
    verb.add_argument("--arch", action="append", metavar="ARCH")
    verb.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    verb.add_argument("-o", "--output", metavar="FILE", type=Path, required=True)
    verb.set_defaults(run=run_measure)
    verb = verbs.add_parser("table")
    verb.add_argument("records", metavar="FILE", type=Path)
    verb.add_argument("--before", metavar="FILE", type=Path)
    verb.add_argument("--write", metavar="PAGE", type=Path)
    verb.set_defaults(run=run_table)
    verb = verbs.add_parser("odd")
    verb.add_argument("records", metavar="FILE", type=Path)
    verb.set_defaults(run=run_odd)
    arguments = parser.parse_args()
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main())
