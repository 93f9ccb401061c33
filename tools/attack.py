#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Attack the program for a stated time: the race of a tree's owner, hostile folders, bombs, and every fuzz target.

attack.py [--minutes N] [--jobs N]

The tests of hostile inputs and surroundings run first, the slow ones too; the rest of the time is shared evenly by the
fuzz targets, which run on all processors. The races need root; otherwise they are skipped. Exit status 1
when anything was found; what the fuzzers find is kept under testdata/fuzz.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.harness import TARGETS  # noqa: E402

#: pytest's selections: every fault, and elsewhere what is marked as hostile; slow tests too.
SELECTIONS: Final = (("tests/faults",), ("-m", "fuzz", "--ignore=tests/faults", "tests"))
#: A fuzzer needs this long to instrument the package before it runs anything.
LEAST_SECONDS: Final = 30


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60, metavar="N", help="how long to go on (default: 60)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    arguments = parser.parse_args()
    end = time.monotonic() + 60 * arguments.minutes
    pytest = [sys.executable, "-m", "pytest", "-q", "-n", str(arguments.jobs)]
    statuses = [subprocess.run([*pytest, *words], cwd=ROOT, check=False).returncode for words in SELECTIONS]
    seconds = max(LEAST_SECONDS, int((end - time.monotonic()) * arguments.jobs / len(TARGETS)))
    print(f"attack: {len(TARGETS)} fuzz targets, {seconds} s each", flush=True)

    def fuzz(name: str) -> bool:
        command = [sys.executable, "tools/fuzz.py", "--seconds", str(seconds), name]
        return subprocess.run(command, cwd=ROOT, check=False).returncode != 0

    with ThreadPoolExecutor(arguments.jobs) as pool:
        has_failed = any([*statuses, *pool.map(fuzz, TARGETS)])
    print("attack: something was found" if has_failed else "attack: nothing was found")
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
