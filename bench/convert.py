#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure the conversion of a large library against `readelf -wF` of it, and of a small object against argparse.

convert.py [--rounds N] [--readelf PROGRAM] [--json] [FILE]

Runs alternate (A B A B ...), so that a busy machine slows both; the ratios are those of neighbouring runs. Without
FILE: the file under /usr with the most FDEs. Peak memory is the resident set of the process at its largest.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import NamedTuple

from cfi2sframe import load
from cfi2sframe.elf.records import parse_file_header
from cfi2sframe.errors import Cfi2SFrameError

ROOT = Path(__file__).resolve().parents[1]
#: Compiled it is an object of 4 to 5 KB; without a compiler a smaller one that is kept has to do.
SMALL_SOURCE = ROOT / "testdata/src/amd64/exceptions.cc"
SMALL_OBJECT = ROOT / "testdata/golden/amd64-several-cies.o"
FEWEST_FDES = 20_000
#: Files to look into when searching for the largest: an .eh_frame_hdr is never larger than its file.
SEARCHED_FILES = 60
GOAL_LARGE = 3.0
GOAL_SMALL = 2.5


class Cost(NamedTuple):
    """What one run took: seconds of wall clock, seconds of CPU, bytes of memory."""

    wall: float
    cpu: float
    peak_size: int


class Comparison(NamedTuple):
    """Runs of two commands, pair by pair."""

    name: str
    goal: float
    ours: tuple[Cost, ...]
    theirs: tuple[Cost, ...]

    def ratios(self, field: str) -> list[float]:
        """Return ours / theirs, pair by pair."""
        return [getattr(a, field) / max(getattr(b, field), 1e-9) for a, b in zip(self.ours, self.theirs, strict=True)]

    @property
    def is_met(self) -> bool:
        """Whether the goal is met, by the median of the CPU ratios."""
        return median(self.ratios("cpu")) <= self.goal


def environment_for(cache: str) -> dict[str, str]:
    """Return the environment of all runs: this project on the path, and compiled modules, as installed ones have."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    return environment


def run(command: list[str], environment: dict[str, str]) -> Cost:
    """Run a command to its end, without its output. Ends the script when it fails."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    # readelf follows .gnu_debuglink, and ends with 1 when there is nothing useful behind it.
    if process.returncode not in (0, 1):
        sys.exit(f"convert: exit status {process.returncode}: {' '.join(command)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def compare(
    name: str, goal: float, ours: list[str], theirs: list[str], rounds: int, environment: dict[str, str]
) -> Comparison:
    """Run both commands by turns; the first round warms caches and does not count."""
    pairs = [(run(ours, environment), run(theirs, environment)) for _ in range(rounds + 1)][1:]
    return Comparison(name, goal, tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def fde_count(path: Path) -> int:
    """Return the number of FDEs by the search table; 0 where there is none or the file is none of ours."""
    try:
        image = load(str(path))
    except Cfi2SFrameError:
        return 0
    table = next(image.sections_named(".eh_frame_hdr"), None)
    has_cfi = next(image.sections_named(".eh_frame"), None) is not None
    return (table.size - 12) // 8 if table is not None and has_cfi else 0


def find_large_file() -> Path:
    """Return the file under /usr with the most FDEs; ends the script when none has enough."""
    files: list[tuple[int, str]] = []
    for folder in ("/usr/lib", "/usr/bin", "/usr/local/lib"):
        for parent, _, names in os.walk(folder):
            for name in names:
                path = os.path.join(parent, name)
                if not os.path.islink(path) and os.path.isfile(path) and os.path.getsize(path) > 1 << 20:
                    files.append((os.path.getsize(path), path))
    candidates = [Path(path) for _, path in sorted(files, reverse=True) if _is_elf(path)][:SEARCHED_FILES]
    best = max(candidates, key=fde_count, default=None)
    if best is None or fde_count(best) < FEWEST_FDES:
        sys.exit(f"convert: no file under /usr has {FEWEST_FDES:,} FDEs; name one")
    return best


def _is_elf(path: str) -> bool:
    with open(path, "rb") as file:
        try:
            parse_file_header(file.read(64))
        except Cfi2SFrameError:
            return False
    return True


def small_object(folder: str) -> Path:
    """Return a small object, compiled into the folder where there is a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return SMALL_OBJECT
    made = Path(folder) / "small.o"
    subprocess.run([compiler, "-O2", "-c", SMALL_SOURCE, "-o", made], check=True)
    return made


def _peak_text(costs: tuple[Cost, ...]) -> str:
    """Return the peak; a child starts with its parent's memory, so that less than this program's cannot be seen."""
    peak, own = max(cost.peak_size for cost in costs), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return f"peak {'below ' if peak <= own else ''}{max(peak, own) / (1 << 20):.0f} MiB"


def lines_of(comparison: Comparison) -> list[str]:
    """Return a comparison as text: the ratios, and what they are made of."""
    verdict = "met" if comparison.is_met else "MISSED"
    cpu, wall = comparison.ratios("cpu"), comparison.ratios("wall")
    lines = [
        comparison.name,
        f"  CPU ratio    min {min(cpu):5.2f}  median {median(cpu):5.2f}   goal {comparison.goal:g}: {verdict}",
        f"  wall ratio   min {min(wall):5.2f}  median {median(wall):5.2f}",
    ]
    for label, costs in (("ours", comparison.ours), ("theirs", comparison.theirs)):
        lines.append(
            f"  {label:<7} min {min(c.cpu for c in costs):7.3f} s CPU, {min(c.wall for c in costs):7.3f} s wall, "
            f"{_peak_text(costs)}"
        )
    return lines


def data_of(comparison: Comparison) -> dict[str, object]:
    """Return a comparison as JSON-ready data."""
    return {
        "name": comparison.name,
        "goal": comparison.goal,
        "met": comparison.is_met,
        "cpu_ratio": {"min": min(comparison.ratios("cpu")), "median": median(comparison.ratios("cpu"))},
        "wall_ratio": {"min": min(comparison.ratios("wall")), "median": median(comparison.ratios("wall"))},
        "ours": [cost._asdict() for cost in comparison.ours],
        "theirs": [cost._asdict() for cost in comparison.theirs],
    }


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", metavar="FILE", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each command (default 5)")
    parser.add_argument("--readelf", default=shutil.which("readelf"), help="default: the one on PATH")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.readelf is None:
        sys.exit("convert: no readelf; get it with: apt-get install binutils")
    path: Path = arguments.file or find_large_file()
    python = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        output = os.path.join(folder, "out.sframe")
        environment = environment_for(os.path.join(folder, "cache"))
        small_path = small_object(folder)
        convert = [*python, "-m", "cfi2sframe"]
        large = compare(
            f"{path} ({fde_count(path):,} FDEs) against readelf -wF",
            GOAL_LARGE,
            [*convert, str(path), "-o", output],
            [arguments.readelf, "-wF", str(path)],
            arguments.rounds,
            environment,
        )
        small = compare(
            f"{small_path.name} ({small_path.stat().st_size:,} bytes) against python -c 'import argparse'",
            GOAL_SMALL,
            [*convert, str(small_path), "-o", output],
            [*python, "-c", "import argparse"],
            4 * arguments.rounds,
            environment,
        )
    if arguments.json:
        print(json.dumps([data_of(large), data_of(small)], indent=2))
    else:
        print("\n".join([*lines_of(large), "", *lines_of(small)]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
