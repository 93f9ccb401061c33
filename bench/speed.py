#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what a conversion costs: CPU time as a ratio to `readelf -wF`, which prints the same rows.

speed.py [--rounds N] [FILE...]      default: the largest libLLVM of this machine, gdb, git

Commands alternate, A B A B: load of other programs slows all of them. A ratio is the median over the rounds; the first
round warms caches and does not count.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
#: What is measured, by its heading: the last one writes a whole file, and reads it back.
WAYS: Final = {
    "-O1": ("-O1", "-o", "out.sframe"),
    "-O2": ("-O2", "-o", "out.sframe"),
    "-O2 into the file, verified": ("-O2", "--replace", "-o", "out"),
}


def run(command: list[str], folder: str, environment: dict[str, str]) -> float:
    """Run a command in a folder, without its output; return its seconds of CPU. Ends the script when it fails."""
    null = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd=folder, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    # readelf follows .gnu_debuglink, and exits with 1 if it finds no useful file there.
    if process.returncode not in (0, 1):
        sys.exit(f"speed: exit status {process.returncode}: {' '.join(command)}")
    return usage.ru_utime + usage.ru_stime


def row_of(path: Path, readelf: str, rounds: int) -> str:
    """Measure a file; return its row of the table, in Markdown."""
    path = path.resolve()
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": f"{folder}/cache"}
        ours = [sys.executable, "-P", "-m", "cfi2sframe", str(path)]
        commands = [[readelf, "-wF", str(path)], *([*ours, *words] for words in WAYS.values())]
        seconds = [[run(command, folder, environment) for command in commands] for _ in range(rounds + 1)][1:]
    readelf_seconds, *others = zip(*seconds, strict=True)
    ratios = [median(a / b for a, b in zip(other, readelf_seconds, strict=True)) for other in others]
    return f"| {path.name} | {min(readelf_seconds):.2f} s | {' | '.join(f'{ratio:.2f}' for ratio in ratios)} |"


def chosen_files() -> Iterator[Path]:
    """Yield the files to measure by default, those that are there."""
    libraries = sorted({path.resolve() for path in Path("/usr/lib").glob("*/libLLVM*.so*")}, key=os.path.getsize)
    yield from libraries[-1:]
    candidates = (Path("/usr/bin/gdb"), Path("/usr/bin/git"))
    yield from (path for path in candidates if path.exists())


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command that count (default: 5)")
    arguments = parser.parse_args()
    readelf = shutil.which("readelf")
    if readelf is None:
        sys.exit("speed: no readelf; get it with: apt-get install binutils")
    print(f"| file | `readelf -wF` | {' | '.join(WAYS)} |")
    print(f"|---|{'---:|' * (1 + len(WAYS))}", flush=True)
    for path in arguments.files or chosen_files():
        print(row_of(path, readelf, arguments.rounds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
