#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how large sections are: as ratios to `.eh_frame` + `.eh_frame_hdr`, beside GNU's layout, version 3.

sizes.py [--level N]... [--jobs N] ROOT...

A ROOT is a file or a folder, and a line of the table. `cfi2sframe size` does the work: a file that it cannot use is no
part of the sums.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[1]


def total(root: str, level: str, jobs: int) -> dict[str, Any]:
    """Return the sums of all files below a root; of none, nothing."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "cfi2sframe",
        "size",
        f"-O{level}",
        "-j",
        str(jobs),
        "--format",
        "json",
        root,
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    # Exit status 3: some file cannot be used, or there is none.
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    if done.returncode not in (0, 3):
        sys.exit(f"sizes: exit status {done.returncode}: {' '.join(command)}")
    found: dict[str, Any] = json.loads(done.stdout)["totals"][0] if done.stdout else {}
    return found


def row_of(root: str, levels: list[str], jobs: int) -> str:
    """Measure what is below a root; return its row of the table, in Markdown."""
    every = [total(root, level, jobs) for level in levels]
    first = every[0]
    if not first:
        return f"| {root} | 0 |"
    cfi_size = first["cfi_size"] + first["eh_frame_hdr_size"]
    ratios = " | ".join(
        f"{size / cfi_size:.3f}" for size in (first["gnu_size"], *(one["sframe_size"] for one in every))
    )
    return f"| {root} | {first['file_count']:,} | {first['function_count']:,} | {cfi_size:,} | {ratios} |"


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", metavar="ROOT", nargs="+")
    parser.add_argument("--level", action="append", help="as -O of the command line (default: 0, 1, 2)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    arguments = parser.parse_args()
    levels = arguments.level or ["0", "1", "2"]
    print(f"| files | count | functions | CFI, bytes | GNU | {' | '.join(f'-O{level}' for level in levels)} |")
    print(f"|---|{'---:|' * (4 + len(levels))}", flush=True)
    for root in arguments.roots:
        print(row_of(root, levels, arguments.jobs), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
