#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what `--from code` makes of files whose code has no CFI, for docs/lab/code-without-cfi.md.

code_figures.py measure [--jobs N] [--resume] -o FILE PATH...
code_figures.py table [--least BYTES] [--write PAGE] FILE
code_figures.py names [--reason TEXT] PATH...

`measure` converts every ELF file under the paths without the option and with it, each in a process of its own, derives
once more and compares what was made at every PC, asks the readers of version 3 whether they would take it, and writes a
record for each file as a line of JSON. With --resume it goes on with a FILE. `table` prints the tables as Markdown, or
writes them between the markers of PAGE. `names` prints each stretch of code without rows, its function and the reason.

CPU seconds are those of a process, on a machine that others may use: before and after each conversion a loop of known
work is timed. The tables have the seconds that a conversion takes while the loop takes what it took at its quickest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from bisect import bisect_right
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from code_runs import Run, read

from cfi2sframe import Options, convert, load
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.files import Source, find_sources
from cfi2sframe.render.markdown import markdown_table
from cfi2sframe.report.from_code import underivable
from cfi2sframe.report.size.tables import Column, Table
from cfi2sframe.report.without_cfi import symbols_within

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SCRIPT: Final = Path(__file__).resolve().parent / "code_runs.py"
MARKERS: Final = ("<!-- made by `make code-figures` -->", "<!-- end -->")
#: Bytes of code without CFI from which a file has a row of its own.
LEAST: Final = 10_000
_MEGABYTE: Final = 1_000_000


class File(NamedTuple):
    """What was measured of a file: the run without the option, and the one with it."""

    path: str
    without: Run
    with_code: Run

    @property
    def size(self) -> int:
        """The bytes of code without CFI."""
        run = self.with_code
        return run.described_size + sum(size for size, _ in run.reasons.values())

    @property
    def name(self) -> str:
        """The name of the file."""
        return os.path.basename(self.path)


# Measuring


def measure(path: str) -> str:
    """Return the record of a file as a line of JSON."""
    runs = {}
    for mode in ("without", "with"):
        command = [sys.executable, str(SCRIPT), mode, path]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = done.stderr.strip().splitlines()
            runs[mode] = Run(error=f"status {done.returncode}: {lines[-1] if lines else ''}")._asdict()
        else:
            runs[mode] = json.loads(done.stdout)
    return json.dumps({"path": path, **runs})


def files_under(paths: Iterable[str]) -> Iterator[str]:
    """Yield the ELF files under some paths, the largest first; names of a file found before are left out."""
    found = [item for item in find_sources(paths) if isinstance(item, Source) and item.kind == "elf"]
    for source in sorted(found, key=lambda source: -source.size):
        yield source.path


def measure_all(paths: Iterable[str], out: str, jobs: int, *, resume: bool) -> None:
    """Measure files that a result does not have yet, and add them to it."""
    known = {file.path for file in read_results(out)} if resume and os.path.exists(out) else set()
    wanted = [path for path in files_under(paths) if path not in known]
    with open(out, "a" if resume else "w", encoding="utf-8") as written, ThreadPoolExecutor(jobs) as pool:
        for line in pool.map(measure, wanted):
            written.write(f"{line}\n")
            written.flush()


def read_results(path: str) -> list[File]:
    """Return the records of a result."""
    files = []
    for line in Path(path).read_text(encoding="utf-8").splitlines():
        data = json.loads(line)
        runs = [read(json.dumps(data[mode])) for mode in ("without", "with")]
        files.append(File(data["path"], runs[0], runs[1]))
    return files


# Tables


def tables_of(files: list[File], least: int) -> Iterator[str]:
    """Yield the lines of the tables."""
    converted = [file for file in files if not file.with_code.error]
    loops = [run.loop_seconds for file in converted for run in (file.without, file.with_code) if run.loop_seconds]
    quickest = min(loops, default=1.0)
    for arch in sorted({file.with_code.arch for file in converted}):
        chosen = [file for file in converted if file.with_code.arch == arch]
        large = sorted((file for file in chosen if file.size >= least), key=lambda file: (-file.size, file.path))
        others = [file for file in chosen if 0 < file.size < least]
        yield f"### {arch}"
        yield ""
        yield from markdown_table(_coverage(large, others))
        yield ""
        yield f"What has no rows, in bytes ({arch}):"
        yield ""
        yield from markdown_table(_reasons(large, others))
        yield ""
        yield f"Cost ({arch}):"
        yield ""
        yield from markdown_table(_cost(large, quickest))
        yield ""
    yield from _checks(files, converted, max(loops, default=1.0) / quickest)


def _coverage(large: list[File], others: list[File]) -> Table:
    rows = [(file.name, *_counts([file])) for file in large]
    if others:
        rows.append((f"{len(others):,} other files", *_counts(others)))
    names = ("code without CFI", "described", "share", "functions", ".sframe before", "after")
    columns = (Column("", "text"), *(Column(name, "percent" if name == "share" else "number") for name in names))
    return Table("", columns, tuple(rows), ("all", *_counts(large + others)))


def _counts(files: list[File]) -> tuple[int | float | None, ...]:
    size, described = sum(file.size for file in files), sum(file.with_code.described_size for file in files)
    return (
        size,
        described,
        100 * described / size if size else None,
        sum(file.with_code.functions for file in files),
        sum(file.without.section_size for file in files),
        sum(file.with_code.section_size for file in files),
    )


def _reasons(large: list[File], others: list[File]) -> Table:
    totals = _sum_of_reasons(large + others)
    reasons = [reason for reason, _ in totals.most_common()]
    lines = [(file.name, [file]) for file in large if file.with_code.reasons]
    if others:
        lines.append((f"{len(others):,} other files", others))
    sums = [(name, _sum_of_reasons(files)) for name, files in lines]
    rows = [(name, *(found[reason] or None for reason in reasons)) for name, found in sums]
    columns = (Column("", "text"), *map(Column, reasons))
    return Table("", columns, tuple(rows), ("all", *(totals[reason] for reason in reasons)))


def _sum_of_reasons(files: Iterable[File]) -> Counter[str]:
    found = Counter[str]()
    for file in files:
        for reason, (size, _) in file.with_code.reasons.items():
            found[reason] += size
    return found


def _cost(large: list[File], quickest: float) -> Table:
    rows = []
    for file in large:
        before, after = (run.cpu_seconds * quickest / (run.loop_seconds or quickest) for run in file[1:])
        run = file.with_code
        derive = run.derive_seconds * quickest / run.loop_seconds
        memory = max(0, run.grown_size - file.without.grown_size) / file.size
        has_cfi = not file.without.error
        seconds = f"{derive / file.size * _MEGABYTE:.2f}"
        rows.append((file.name, seconds, f"{before:.2f}" if has_cfi else "", f"{after:.2f}", f"{memory:.0f}"))
    names = ("analysis, s for a MB", "conversion without, s", "with, s", "memory, bytes for a byte")
    return Table("", (Column("", "text"), *map(Column, names)), tuple(rows))


def _checks(files: list[File], converted: list[File], slowest: float) -> Iterator[str]:
    differing = [file for file in converted if file.with_code.differences]
    refused = [file for file in converted if set(file.with_code.refusals) - set(file.without.refusals)]
    unread = [file for file in converted if any("instructions" in text for text in file.with_code.unread)]
    yield (
        f"- {len(converted):,} of {len(files):,} files have CFI, or code with rows; "
        f"{sum(bool(file.size) for file in converted):,} have code without CFI"
    )
    points = sum(file.with_code.point_count for file in converted)
    yield f"- compared at {points:,} addresses, {len(differing):,} files with differences"
    yield f"- {len(refused):,} files that a reader of version 3 would take only without the option"
    yield f"- {len(unread):,} files whose code was not analysed"
    yield f"- the loop of known work took up to {slowest:.1f} times its quickest"
    for file in (*differing, *refused, *unread):
        run = file.with_code
        yield f"  - {file.name}: {'; '.join((*run.differences, *run.refusals, *run.unread))}"
    for error, count in Counter(file.with_code.error for file in files if file.with_code.error).most_common():
        yield f"  - {count:,} files: {error}"


def write_page(page: Path, lines: Iterable[str]) -> None:
    """Write lines between the markers of a page."""
    text = page.read_text(encoding="utf-8")
    before, _, rest = text.partition(MARKERS[0])
    _, _, after = rest.partition(MARKERS[1])
    if not rest:
        sys.exit(f"code_figures: {page} has no marker {MARKERS[0]}")
    middle = "\n".join(lines)
    page.write_text(f"{before}{MARKERS[0]}\n\n{middle}\n\n{MARKERS[1]}{after}", encoding="utf-8")


# Names


def names_in(path: str, wanted: str) -> Iterator[str]:
    """Yield the stretches of a file's code without rows, the largest first."""
    conversion = convert(load(path), Options(source="code"))
    image = conversion.image
    symbols = symbols_within(image, [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges])
    found = []
    for item in underivable(conversion):
        reason = item.reason.value if item.reason else ""
        if wanted not in reason:
            continue
        index = bisect_right(symbols.starts, item.start_vaddr) - 1
        is_inside = index >= 0 and item.start_vaddr < symbols.starts[index] + max(1, symbols.sizes[index])
        name = symbols.names[index] if is_inside else ""
        found.append((item.end_vaddr - item.start_vaddr, item.start_vaddr, name, reason, item.detail))
    for size, vaddr, name, reason, detail in sorted(found, reverse=True):
        yield "\t".join((os.path.basename(path), f"0x{vaddr:x}", f"{size}", name, reason, detail)).rstrip()


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    measuring = verbs.add_parser("measure")
    measuring.add_argument(
        "--jobs", type=int, default=1, help="files at one time (default: 1, for the time that it takes)"
    )
    measuring.add_argument("--resume", action="store_true", help="leave out what FILE has already")
    measuring.add_argument("-o", metavar="FILE", dest="out", required=True, help="where records go")
    measuring.add_argument("paths", metavar="PATH", nargs="+", help="a folder, or a file")
    table = verbs.add_parser("table")
    table.add_argument("--least", type=int, default=LEAST, help=f"bytes for a row of its own (default: {LEAST:,})")
    table.add_argument("--write", metavar="PAGE", type=Path, help="write between the markers of a page")
    table.add_argument("file", metavar="FILE")
    names = verbs.add_parser("names")
    names.add_argument("--reason", metavar="TEXT", default="", help="only reasons with this text")
    names.add_argument("paths", metavar="PATH", nargs="+", help="a folder, or a file")
    arguments = parser.parse_args()
    if arguments.verb == "measure":
        measure_all(arguments.paths, arguments.out, arguments.jobs, resume=arguments.resume)
    elif arguments.verb == "names":
        for path in files_under(arguments.paths):
            try:
                print(*names_in(path, arguments.reason), sep="\n")
            except Cfi2SFrameError as error:
                print(f"{path}: {error}", file=sys.stderr)
    else:
        files = read_results(arguments.file)
        lines = tables_of(files, arguments.least)
        if arguments.write:
            write_page(arguments.write, lines)
        else:
            print(*lines, sep="\n")
        return 1 if any(file.with_code.differences for file in files) else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
