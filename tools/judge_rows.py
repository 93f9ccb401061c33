#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hold rows from instructions to what programs do, and to the CFI of compilers, at any size.

judge_rows.py steps [--limit N] [FILE]                   each line of FILE is a command: a program and its arguments
judge_rows.py hidden [--seed N]... [--all] FILE...       ELF files whose CFI is hidden: halves by seeds, all of it

`steps` hides all CFI, executes each program in an emulator, one instruction at a time, and compares up to N
instructions. Both print a line
for each input, the wrong places below it, and the sums. Exit status 1 when a row is wrong.
"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import load  # noqa: E402
from tests.support.instructions import hidden, stepped  # noqa: E402

#: Wrong places that are shown of a file.
_SHOWN = 20


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    steps = verbs.add_parser("steps")
    steps.add_argument("--limit", type=int, default=100_000, metavar="N")
    steps.add_argument("commands", type=argparse.FileType(), metavar="FILE", nargs="?", default=sys.stdin)
    files = verbs.add_parser("hidden")
    files.add_argument("--seed", type=int, action="append", default=[], metavar="N")
    files.add_argument("--all", action="store_true")
    files.add_argument("files", nargs="+", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    if arguments.verb == "steps":
        return judge_steps(arguments.commands.read().splitlines(), arguments.limit)
    return judge_hidden(arguments.files, [*arguments.seed, *([None] if arguments.all else [])])


def judge_steps(commands: list[str], limit: int) -> int:
    """Execute programs; print what each of their instructions says of its row."""
    sums: dict[str, list[int]] = {}
    for command in commands:
        words = shlex.split(command)
        arch = load(Path(words[0])).arch.name
        found = stepped.step(words, limit=limit)
        print(f"{arch} {found.compared} steps, {found.wrong} wrong, {found.places} addresses: {command}", flush=True)
        for line in found.shown:
            print(f"  {line}")
        for number, value in enumerate((1, *found[:3])):
            sums.setdefault(arch, [0, 0, 0, 0])[number] += value
    for arch, (programs, compared, wrong, places) in sums.items():
        print(f"{arch}: {programs} programs, {compared} steps, {wrong} wrong, {places} addresses")
    return int(any(each[2] for each in sums.values()))


def judge_hidden(files: list[Path], seeds: list[int | None]) -> int:
    """Compare rows from instructions with CFI that is hidden from them."""
    sums = [0, 0, 0, 0]
    for path in files:
        for seed in seeds:
            start = time.process_time()
            found = hidden.compare(load(path), seed)
            spent = time.process_time() - start
            share = 100 * found.derived / max(1, found.hidden)
            print(
                f"{path} {'all' if seed is None else seed}: {found.hidden} bytes hidden, {share:.1f} % described,"
                f" {found.wrong_size} wrong, {found.cfi_wrong_size} wrong by the CFI, {spent:.1f} s",
                flush=True,
            )
            for line in found.wrong[:_SHOWN]:
                print(f"  {line}")
            for number, value in enumerate((found.hidden, found.derived, found.wrong_size, found.cfi_wrong_size)):
                sums[number] += value
    print(f"{len(files)} files: {sums[0]} bytes hidden, {sums[1]} described, {sums[2]} wrong, {sums[3]} by the CFI")
    return int(sums[2] > 0)


if __name__ == "__main__":
    sys.exit(main())
