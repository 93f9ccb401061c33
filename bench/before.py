#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure these sources against those of another commit, both as they are, run alternately.

before.py --before COMMIT [--rounds N] [--large FILE] [--medium FILE]

The files are those of speed.py. Values are CPU time, now to before: the median over the pairs, and the least seconds.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from measuring import ROOT, Figure, compare, environment_for, table_of
from speed import find_files, small_object

if TYPE_CHECKING:
    from collections.abc import Iterator

sys.path.insert(0, str(ROOT / "tools"))
from commits import check_out


def figures(before: Path, folder: Path, large: Path, medium: Path, rounds: int) -> Iterator[Figure]:
    """Yield the CPU time of conversions by these sources relative to those under `before`."""
    environment = environment_for(str(folder / "cache"))
    now, then = (["env", f"PYTHONPATH={root}", sys.executable, "-P", "-m", "cfi2sframe"] for root in (ROOT, before))
    small = small_object(folder)
    raw, embedded = str(folder / "out.sframe"), str(folder / "embedded")
    for name, count, words in (
        (f"{large.name} -O1", rounds, ["-O1", str(large), "-o", raw]),
        (f"{medium.name} -O1", rounds, ["-O1", str(medium), "-o", raw]),
        (f"{medium.name} -O2", rounds, ["-O2", str(medium), "-o", raw]),
        (f"{medium.name}, embedded and verified", rounds, ["--replace", str(medium), "-o", embedded]),
        (f"object of {small.stat().st_size:,} bytes", 4 * rounds, [str(small), "-o", raw]),
    ):
        against = compare([*now, *words], [*then, *words], count, environment)
        yield Figure(f"{name}: CPU now to before", against.ratio("cpu"), "", 1.03, against.detail("cpu"))


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", metavar="COMMIT", required=True, help="the state to compare with")
    parser.add_argument("--rounds", type=int, default=10, help="counted runs of each command (default 10)")
    parser.add_argument("--large", metavar="FILE", type=Path)
    parser.add_argument("--medium", metavar="FILE", type=Path)
    arguments = parser.parse_args()
    large, medium = arguments.large, arguments.medium
    if large is None or medium is None:
        found = find_files()
        large, medium = large or found[0], medium or found[1]
    with tempfile.TemporaryDirectory() as name:
        before = check_out(arguments.before, Path(name) / "before")
        print(table_of(list(figures(before, Path(name), large, medium, arguments.rounds))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
