# SPDX-License-Identifier: Apache-2.0
"""Run two commands alternately, and compare their costs."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

Field = Literal["wall", "cpu"]
ROOT = Path(__file__).resolve().parents[1]


class Cost(NamedTuple):
    """The cost of a run: seconds of wall clock, seconds of CPU, bytes of memory (the largest resident set)."""

    wall: float
    cpu: float
    peak_size: int

    def of(self, field: Field) -> float:
        """Return the seconds of either clock."""
        return self.wall if field == "wall" else self.cpu


class Figure(NamedTuple):
    """A measured number with its goal, if it has one; `detail` has the numbers that it was computed from."""

    name: str
    value: float
    unit: str
    goal: float | None
    detail: str

    @property
    def verdict(self) -> str:
        """Whether the number meets its goal, as a word."""
        if self.goal is None:
            return ""
        return "met" if self.value <= self.goal else "MISSED"


class Comparison(NamedTuple):
    """Runs of two commands, pair by pair."""

    ours: tuple[Cost, ...]
    theirs: tuple[Cost, ...]

    def ratio(self, field: Field) -> float:
        """Return the median of ours / theirs over the pairs."""
        pairs = zip(self.ours, self.theirs, strict=True)
        return median(a.of(field) / max(b.of(field), 1e-9) for a, b in pairs)

    def least(self, field: Field) -> float:
        """Return the least of ours / the least of theirs, which other load on the machine affects least."""
        return min(cost.of(field) for cost in self.ours) / max(min(cost.of(field) for cost in self.theirs), 1e-9)

    def detail(self, field: Field) -> str:
        """Return the least seconds of either side, and the ratio of the two."""
        ours, theirs = (min(cost.of(field) for cost in side) for side in (self.ours, self.theirs))
        return f"{ours:.3f} s : {theirs:.3f} s at their least = {self.least(field):.2f}"

    @property
    def peak_size(self) -> int:
        """The most memory that a run of ours used, in bytes."""
        return max(cost.peak_size for cost in self.ours)


def environment_for(cache: str) -> dict[str, str]:
    """Return the environment of all runs: this project on the path, with cached bytecode as when installed."""
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
    # readelf follows .gnu_debuglink, and exits with 1 if it finds no useful file there.
    if process.returncode not in (0, 1):
        sys.exit(f"bench: exit status {process.returncode}: {' '.join(command)}")
    return Cost(wall, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)


def compare(ours: list[str], theirs: list[str], rounds: int, environment: dict[str, str]) -> Comparison:
    """Run both commands alternately (A B A B ...), so that a busy machine slows both.

    The first round only warms caches.
    """
    pairs = [(run(ours, environment), run(theirs, environment)) for _ in range(rounds + 1)][1:]
    return Comparison(tuple(a for a, _ in pairs), tuple(b for _, b in pairs))


def own_peak_size() -> int:
    """Return this process's peak memory in bytes: a child starts with it, and cannot be seen to use less."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def table_of(figures: list[Figure]) -> str:
    """Return figures as a table."""
    rows = [
        (f.name, f"{f.value:.2f}{f.unit}", "" if f.goal is None else f"{f.goal:g}{f.unit}", f.verdict, f.detail)
        for f in figures
    ]
    rows.insert(0, ("what", "value", "goal", "", "made of"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = []
    for name, value, goal, verdict, detail in rows:
        cells = (name.ljust(widths[0]), value.rjust(widths[1]), goal.rjust(widths[2]), verdict.ljust(widths[3]), detail)
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)
