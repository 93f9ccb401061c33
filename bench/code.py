#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what `--from code` costs where there is nothing for it to do, and where there is.

code.py [--rounds N] [--covered FILE] [--uncovered FILE]

Commands with the option and without it alternate, and values are ratios of CPU time: the median over the pairs, and the
least seconds. --covered defaults to the file under /usr with the most FDEs, whose code without CFI is what the start
files of C have; --uncovered is a file with much code without CFI, and left out by default.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import Figure, compare, environment_for, table_of
from speed import find_files, small_object

if TYPE_CHECKING:
    from collections.abc import Iterator


def figures(folder: Path, covered: Path, uncovered: Path | None, rounds: int) -> Iterator[Figure]:
    """Yield the CPU time of conversions with the option relative to those without."""
    environment = environment_for(str(folder / "cache"))
    command, out = [sys.executable, "-P", "-m", "cfi2sframe"], str(folder / "out.sframe")
    small = small_object(folder)
    subjects: list[tuple[str, Path, int, float | None]] = [
        (f"{covered.name}, {covered.stat().st_size:,} bytes", covered, rounds, 1.03),
        (f"object of {small.stat().st_size:,} bytes", small, 4 * rounds, 1.03),
    ]
    if uncovered is not None:
        subjects.append((f"{uncovered.name}, {uncovered.stat().st_size:,} bytes", uncovered, rounds, None))
    for name, path, count, goal in subjects:
        words = [str(path), "-o", out]
        against = compare([*command, "--from", "code", *words], [*command, *words], count, environment)
        yield Figure(f"{name}: CPU with the option to without", against.ratio("cpu"), "", goal, against.detail("cpu"))


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each command (default 5)")
    parser.add_argument("--covered", metavar="FILE", type=Path)
    parser.add_argument("--uncovered", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    covered = arguments.covered or find_files()[0]
    with tempfile.TemporaryDirectory() as name:
        print(table_of(list(figures(Path(name), covered, arguments.uncovered, arguments.rounds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
