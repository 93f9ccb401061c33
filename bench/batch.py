#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a file costs in a batch: small objects converted in place, in one process and in two.

batch.py [--count N] [--rounds N] [--json]

Prints milliseconds per file of the whole command (with the start of the interpreter and of the pool), of a second run
that finds all files right, and of that run with a stamp; and milliseconds of CPU of `cfi2sframe.jobs` alone: the work
list, the comparison with the existing section, and the exchange of the file, without loading, converting, embedding and
checking. File system calls count; TMPDIR determines the file system.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from unittest.mock import patch

from cfi2sframe import conversion, emit, jobs
from cfi2sframe.files import descriptors
from cfi2sframe.jobs import job as job_module

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parents[1]
GOLDEN = ROOT / "testdata/golden"
#: Functions of a few kinds: leaves, frames, calls, an array, a switch.
SOURCE = """
extern int use(void *, int);
int leaf_NUMBER(int a, int b) { return a * b + a; }
int frame_NUMBER(int a) { int room[40]; return use(room, a) + use(room, a + 1); }
int loop_NUMBER(int *a, int n) { int sum = 0; for (int i = 0; i < n; i++) sum += use(a + i, i); return sum; }
int choose_NUMBER(int a) { switch (a) { case 1: return use(0, 1); case 2: return use(&a, 2); default: return a; } }
int sized_NUMBER(int n) { char room[n]; return use(room, n); }
"""
KINDS = 8


class Costs(NamedTuple):
    """Milliseconds per file."""

    first: float
    second: float
    stamped: float


def make_objects(folder: Path, count: int) -> int:
    """Fill a folder with objects, compiled where there is a compiler; return the bytes of an average one."""
    compiler = shutil.which("gcc")
    if compiler is None:
        kinds = sorted(GOLDEN.glob("amd64-*.o"))
    else:
        kinds = []
        for number in range(KINDS):
            text = "".join(SOURCE.replace("NUMBER", f"{number}_{part}") for part in range(number % 4 + 1))
            source, made = folder / "source.c", folder / f"kind{number}"
            source.write_text(text)
            subprocess.run([compiler, "-O2", "-c", source, "-o", made], check=True)
            source.unlink()
            kinds.append(made)
    for number in range(count):
        shutil.copyfile(kinds[number % len(kinds)], folder / f"{number:05}.o")
    for kind in kinds:
        if kind.parent == folder:
            kind.unlink()
    return sum(path.stat().st_size for path in folder.glob("*.o")) // count


def command(folder: Path, *words: str) -> float:
    """Convert a folder in place; return the seconds."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "cfi2sframe", "--in-place", "-r", "--objects", str(folder), *words],
        check=True,
        env=environment,
        stderr=subprocess.DEVNULL,
    )
    return time.perf_counter() - started


def measure_commands(original: Path, folder: Path, count: int, jobs: int) -> Costs:
    """Convert copies of the objects, three times."""
    copy = folder / "copy"
    shutil.copytree(original, copy)
    # A stamp does not record files that have just been changed.
    old_ns = time.time_ns() - 10**10
    for path in copy.iterdir():
        os.utime(path, ns=(old_ns, old_ns))
    words = ["-j", str(jobs)]
    first = command(copy, *words, "--stamp", str(folder / "stamp"))
    stamped = command(copy, *words, "--stamp", str(folder / "stamp"))
    second = command(copy, *words)
    shutil.rmtree(copy)
    return Costs(*(1000 * seconds / count for seconds in (first, second, stamped)))


class _Clock:
    """Measures the time spent in the functions that it wraps."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def wrap(self, function: Callable[..., object]) -> Callable[..., object]:
        """Return the function with the clock running inside."""

        def timed(*arguments: object, **named: object) -> object:
            started = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds += time.process_time() - started

        return timed


@contextlib.contextmanager
def _without_the_rest(clock: _Clock) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for module, name in (
            *((conversion, "convert_image"), (emit, "emit"), (emit, "check")),
            *((descriptors, "read_open"), (job_module, "image_of")),
        ):
            stack.enter_context(patch.object(module, name, clock.wrap(getattr(module, name))))
        yield


def measure_layer(original: Path, folder: Path, count: int) -> tuple[float, float]:
    """Return the milliseconds of CPU per file of the batch layer in this process: of a first run and a second one."""
    copy = folder / "copy"
    shutil.copytree(original, copy)
    costs = []
    gc.disable()
    for _ in range(2):
        clock = _Clock()
        with _without_the_rest(clock):
            started = time.process_time()
            outcomes = list(jobs.run(jobs.work_list([str(copy)], jobs.Settings(takes_objects=True), recurse=True)))
            total = time.process_time() - started
        if any(outcome.status == "failed" for outcome in outcomes):
            sys.exit("batch: a conversion failed")
        costs.append(1000 * (total - clock.seconds) / count)
    gc.enable()
    shutil.rmtree(copy)
    return costs[0], costs[1]


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="objects (default 1000)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many runs counts (default 3)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, original = Path(name), Path(name) / "original"
        original.mkdir()
        size = make_objects(original, arguments.count)
        by_jobs = {}
        for jobs in (1, 2):
            runs = [measure_commands(original, folder, arguments.count, jobs) for _ in range(arguments.rounds)]
            by_jobs[jobs] = Costs(*(min(column) for column in zip(*runs, strict=True)))
        layers = [measure_layer(original, folder, arguments.count) for _ in range(arguments.rounds)]
        layer = tuple(min(column) for column in zip(*layers, strict=True))
    if arguments.json:
        data = {f"j{jobs}": costs._asdict() for jobs, costs in by_jobs.items()}
        print(json.dumps({"count": arguments.count, "size": size, **data, "layer": layer}, indent=2))
        return 0
    print(f"{arguments.count:,} objects of {size:,} bytes on average, ms per file")
    for jobs, costs in by_jobs.items():
        print(f"  -j{jobs}   first {costs.first:6.3f}   again {costs.second:6.3f}   with a stamp {costs.stamped:6.3f}")
    print(f"  batch layer alone (CPU)   first {layer[0]:6.3f}   again {layer[1]:6.3f}   (goal 0.3)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
