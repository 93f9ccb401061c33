#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how large sections are at every level, what look-ups cost, and how long they take, over files and trees.

sizes.py [--version {1,2,3}]... [--level {0,1,2,s}]... [--jobs N] [--sample N] [--max-file-size MB]
         [--worst N] [--json] ROOT...

A ratio is the section's size to `.eh_frame` + `.eh_frame_hdr` (where there is none, to the CFI there is). Rows are
those that a reader walks for a look-up, on average over all bytes of code, and at most. Time is CPU time of reading
and converting, without embedding. A file with several hard links counts once; symbolic links are not followed; objects
are always at level 0, and are left out. `--max-file-size`: larger files are converted at levels 0 and 1 only.
`--sample`: files spread evenly over the list, so that about N are measured.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe import Options, load
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.files import Source, find_sources
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.report.size.sources import split_found
from cfi2sframe.sframe.constants import FDE_ATTRIBUTE_SIZE, FDE_SIZE, HEADER_SIZE, SFRAME_VERSION_3
from cfi2sframe.sframe.lookup_cost import LookupCost, add_costs

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.conversion import Conversion, Level
    from cfi2sframe.elf.image import ElfImage

#: All levels, in the order in which they are measured.
LEVELS: tuple[Level, ...] = (0, 1, 2, "s")
#: Those that cut and join functions.
SPLITTING: tuple[Level, ...] = (2, "s")
#: Goals of version 3 over all files: the ratio at most, and fewer files that are larger than their CFI.
GOAL_TOTAL: dict[Level, float] = {2: 0.52, "s": 0.47}
GOAL_LARGER: dict[Level, int] = {2: 150}


class Made(NamedTuple):
    """A section of one version and level: its size and what it is made of, in bytes, and the seconds it took.

    `lookup_cost` is what readers pay for its look-ups.
    """

    version: int
    level: Level
    size: int
    function_count: int
    stub_count: int
    list_count: int
    list_size: int
    seconds: float
    lookup_cost: LookupCost


class FileSizes(NamedTuple):
    """A file, its FDEs, the bytes of its CFI with the search table, and its sections."""

    path: str
    fde_count: int
    cfi_size: int
    hdr_size: int
    sections: tuple[Made, ...]

    @property
    def whole_size(self) -> int:
        """`.eh_frame` + `.eh_frame_hdr`, in bytes."""
        return self.cfi_size + self.hdr_size

    def section(self, version: int, level: Level) -> Made | None:
        """The section of a version and level, if it was made."""
        return next((made for made in self.sections if (made.version, made.level) == (version, level)), None)


# Finding


def elf_files(roots: Iterable[str], sample: int | None) -> list[Source]:
    """Return the ELF files under the roots, largest first."""
    sources, failures = split_found(find_sources(roots))
    for failure in failures:
        sys.stderr.write(f"sizes: {failure.name}: {failure.reason}\n")
    found = [source for source in sources if source.kind == "elf"]
    found.sort(key=lambda source: (-source.size, source.path))
    step = max(1, len(found) // sample) if sample else 1
    return found[step // 2 :: step]


# One file


def measure(path: str, versions: tuple[int, ...], levels: tuple[Level, ...]) -> FileSizes | None:
    """Return a file's sizes; None when it is an object, has no CFI, or cannot be read."""
    sections = []
    last: Conversion | None = None
    for version in versions:
        for level in levels:
            last = None
            gc.collect()
            begin = time.process_time()
            try:
                image: ElfImage = load(path)
                if image.is_relocatable:
                    return None
                last = convert_image(image, Options(version=version, level=level))
            except Cfi2SFrameError:
                return None
            sections.append(_made(last, version, level, time.process_time() - begin))
    if last is None or not last.data:
        return None
    cfi_size = sum(len(section.data) for section in last.cfi.sections)
    hdr_size = sum(section.size for section in last.image.sections_named(".eh_frame_hdr"))
    return FileSizes(path, len(last.cfi.entries), cfi_size, hdr_size, tuple(sections))


def _made(conversion: Conversion, version: int, level: Level, seconds: float) -> Made:
    plan = conversion.plan
    return Made(
        version,
        level,
        size=len(conversion.data),
        function_count=len(plan.sizes),
        stub_count=conversion.function_entries.count(None),
        list_count=len(plan.bodies),
        list_size=plan.fre_size,
        seconds=seconds,
        lookup_cost=conversion.lookup_cost,
    )


class Task(NamedTuple):
    """A file to measure, in which versions, and at which levels."""

    source: Source
    versions: tuple[int, ...]
    levels: tuple[Level, ...]


def measure_task(task: Task) -> FileSizes | None:
    """Measure one file; this is what a process of the pool does."""
    return measure(task.source.path, task.versions, task.levels)


def size_of(task: Task) -> int:
    """Return the bytes of a task's file."""
    return task.source.size


def measure_all(tasks: list[Task], jobs: int) -> Iterator[FileSizes]:
    """Yield the files' sizes in the order in which they are ready."""
    with results_of(measure_task, tasks, size_of, count=jobs) as results:
        for number, result in results:
            if isinstance(result, Lost):
                sys.stderr.write(f"sizes: {tasks[number].source.path}: {result.reason}\n")
            elif result is not None:
                yield result


# Showing


def why(file: FileSizes, made: Made) -> str:
    """Return the parts of a section, in bytes."""
    attributes = FDE_ATTRIBUTE_SIZE * made.list_count if made.version >= SFRAME_VERSION_3 else 0
    parts = [f"header {HEADER_SIZE}", f"records {FDE_SIZE[made.version] * made.function_count}"]
    if attributes:
        parts.append(f"attributes {attributes}")
    parts.append(f"rows {made.list_size - attributes}")
    return (
        f"{' + '.join(parts)} = {made.size}, to {file.cfi_size} + {file.hdr_size}; "
        f"{file.fde_count} FDEs, {made.function_count} functions ({made.stub_count} of stubs), "
        f"{made.list_count} row lists"
    )


class Summary(NamedTuple):
    """All files at one version and level: bytes, seconds, and the files that outgrow their CFI, worst first.

    `slower_count` is the number of files in which a look-up walks more rows, on average, than at level 1.
    """

    version: int
    level: Level
    file_count: int
    whole_size: int
    size: int
    seconds: float
    larger_count: int
    lookup_cost: LookupCost
    slower_count: int
    worst: tuple[tuple[float, str, str], ...]

    @property
    def ratio(self) -> float:
        """All sections to all CFI."""
        return self.size / max(self.whole_size, 1)


def summarize(files: list[FileSizes], version: int, level: Level, worst_count: int) -> Summary:
    """Add the files up."""
    pairs = [(file, made) for file in files if (made := file.section(version, level)) is not None]
    ranked = sorted(pairs, key=lambda pair: (-pair[1].size / max(pair[0].whole_size, 1), pair[0].path))
    return Summary(
        version,
        level,
        len(pairs),
        sum(file.whole_size for file, _ in pairs),
        sum(made.size for _, made in pairs),
        sum(made.seconds for _, made in pairs),
        sum(made.size > file.whole_size for file, made in pairs),
        add_costs(made.lookup_cost for _, made in pairs),
        sum(_is_slower(file, made) for file, made in pairs),
        tuple((made.size / max(file.whole_size, 1), file.path, why(file, made)) for file, made in ranked[:worst_count]),
    )


def _is_slower(file: FileSizes, made: Made) -> bool:
    """Whether a look-up walks more rows on average than at level 1."""
    shared = file.section(made.version, 1)
    return shared is not None and made.lookup_cost.mean_rows > shared.lookup_cost.mean_rows


def verdicts(summaries: list[Summary]) -> Iterator[str]:
    """Yield each goal of version 3 with what was measured, and how much longer -O2 takes than -O1."""
    for summary in summaries:
        if summary.version != SFRAME_VERSION_3:
            continue
        if summary.level in GOAL_TOTAL:
            goal = GOAL_TOTAL[summary.level]
            yield f"-O{summary.level} total {summary.ratio:.4f}, goal {goal}: {_verdict(is_met=summary.ratio <= goal)}"
        if summary.level in GOAL_LARGER:
            count, most = summary.larger_count, GOAL_LARGER[summary.level]
            verdict = _verdict(is_met=count < most)
            yield f"-O{summary.level} files larger than their CFI: {count}, goal fewer than {most}: {verdict}"
    for one, other in pairwise(summaries):
        if one.version == other.version and (one.level, other.level) == (1, 2) and one.seconds:
            means = one.lookup_cost.mean_rows, other.lookup_cost.mean_rows
            yield (
                f"-O2 rows walked, version {one.version}: {means[1]:.2f}, goal at most {means[0]:.2f} as at -O1: "
                f"{_verdict(is_met=means[1] <= means[0])}; more in {other.slower_count} of {other.file_count} files"
            )
            yield f"-O2 to -O1, version {one.version}, time of the conversion: {other.seconds / one.seconds:.2f}"


def _verdict(*, is_met: bool) -> str:
    return "met" if is_met else "MISSED"


def lines_of(summaries: list[Summary], worst_level: Level) -> Iterator[str]:
    """Yield the report's lines."""
    yield "version  level   files     CFI bytes  .sframe bytes   ratio  larger   rows  at most  slower  seconds"
    for s in summaries:
        yield (
            f"{s.version:7}  {s.level:5}  {s.file_count:6,}  {s.whole_size:12,}  {s.size:13,}  {s.ratio:6.4f}"
            f"  {s.larger_count:6}  {s.lookup_cost.mean_rows:5.2f}  {s.lookup_cost.max_rows:7,}  {s.slower_count:6}"
            f"  {s.seconds:7.1f}"
        )
    yield from verdicts(summaries)
    for s in summaries:
        if s.level == worst_level and s.worst:
            yield f"worst of version {s.version} at -O{s.level}:"
            yield from (f"  {ratio:.3f}  {path}\n         {reason}" for ratio, path, reason in s.worst)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", metavar="ROOT", nargs="+", help="a folder, or a file")
    parser.add_argument("--version", type=int, choices=(1, 2, 3), action="append", help="default: 3")
    parser.add_argument("--level", choices=tuple(map(str, LEVELS)), action="append", help="default: all")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--sample", type=int, metavar="N", help="measure about N files")
    parser.add_argument("--max-file-size", type=int, default=40, metavar="MB", help="default: 40")
    parser.add_argument("--worst", type=int, default=20, metavar="N", help="files to name (default: 20)")
    parser.add_argument("--json", action="store_true", help="files and all, as JSON")
    arguments = parser.parse_args()
    versions = tuple(sorted(set(arguments.version or (3,))))
    levels = tuple(level for level in LEVELS if not arguments.level or str(level) in arguments.level)
    sources = elf_files(arguments.roots, arguments.sample)
    max_size = arguments.max_file_size << 20
    low = tuple(level for level in levels if level not in SPLITTING)
    tasks = [Task(source, versions, levels if source.size <= max_size else low) for source in sources]
    large = [task.source.path for task in tasks if task.levels != levels]
    files = list(measure_all(tasks, arguments.jobs))
    summaries = [summarize(files, version, level, arguments.worst) for version in versions for level in levels]
    if arguments.json:
        data = {"summaries": [s._asdict() for s in summaries], "files": [f._asdict() for f in files], "large": large}
        print(json.dumps(data, indent=1))
        return 0
    for line in lines_of(summaries, levels[-1]):
        print(line)
    if large:
        print(f"not at -O2 and -Os, larger than {arguments.max_file_size} MB: {' '.join(large)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
