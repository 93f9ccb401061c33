#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step programs of AArch64 and s390x under qemu, and hold the rows of code without CFI to what execution shows.

    tools/step_emulated.py [--directory build/step] [--only GROUP]... [--calls 2]

DIRECTORY is what tools/fetch-step made. Some calls of each function are stepped, a thousand instructions a second
(tests/support/shadow_emulated.py). Printed are, for each run, the steps in code without CFI, those whose row is right,
wrong or missing, and the addresses that ran. The exit status is 1 when a row is wrong. What cannot be had is named and
skipped.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from step_programs import Kit, MissingError, build_musl

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import Options, load  # noqa: E402  # the checkout that this script lies in
from tests.support.remote_gdb import RemoteGdb  # noqa: E402
from tests.support.shadow_emulated import EmulatedShadow, entries_of  # noqa: E402
from tests.support.shadow_run import FunctionNames, subject_of  # noqa: E402
from tests.support.targets import TARGETS, Target  # noqa: E402
from tests.support.trace.emulated import emulated  # noqa: E402

#: Tests of dav1d's assembly that take a moment where breakpoints are looked for at every jump.
DAV1D_TESTS: Final = tuple(
    f"{name}_{depth}bpc"
    for depth in (8, 16)
    for name in ("cdef", "filmgrain", "ipred", "loopfilter", "looprestoration")
)
_MOST_STEPS: Final = 200_000
_CROSS_FILE: Final = """[binaries]
c = '{triplet}-gcc'
ar = '{triplet}-ar'
strip = '{triplet}-strip'
[properties]
needs_exe_wrapper = true
[built-in options]
c_link_args = ['-static']
[host_machine]
system = 'linux'
cpu_family = '{name}'
cpu = '{name}'
endian = 'little'
"""


class Run(NamedTuple):
    """A static program to be stepped."""

    name: str
    target: Target
    words: tuple[str | Path, ...]


def musl(kit: Kit) -> list[Run]:
    """Programs of musl, without signals and threads."""
    runs = []
    for target in TARGETS:
        root = kit.folder / target.corpus
        program = build_musl(kit, f"{target.triplet}-gcc", root, target.name, kit.folder / f"musl-{target.name}")
        runs.append(Run(f"musl for {target.name}", target, (program, "calm")))
    return runs


def dav1d(kit: Kit) -> list[Run]:
    """dav1d's test of its assembly for AArch64."""
    target, folder = TARGETS[0], kit.folder / "dav1d-aarch64"
    program = folder / "tests" / "checkasm"
    if not program.exists():
        cross = kit.folder / "cross-aarch64"
        cross.write_text(_CROSS_FILE.format(triplet=target.triplet, name=target.name))
        options = ("--buildtype=release", "--cross-file", cross, "-Denable_tools=false", "-Ddefault_library=static")
        kit.build("meson", "setup", *options, folder, kit.source("dav1d"))
        kit.build("ninja", "-C", folder, "tests/checkasm")
    return [Run(f"dav1d checkasm {test}", target, (program, "1", f"--test={test}")) for test in DAV1D_TESTS]


GROUPS: Final[dict[str, Callable[[Kit], list[Run]]]] = {"musl": musl, "dav1d-checkasm": dav1d}


def main() -> int:
    """Step through all programs, or those of some groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "step")
    parser.add_argument(
        "--only", action="append", choices=sorted(GROUPS), help="this group of programs; more than once"
    )
    parser.add_argument("--calls", type=int, default=2, help="of each function, so many calls (2)")
    words = parser.parse_args()
    kit = Kit(words.directory.resolve())
    wrong_count, run_count = 0, 0
    skipped = []
    for group in words.only or GROUPS:
        try:
            runs = GROUPS[group](kit)
        except MissingError as error:
            skipped.append(f"{group}: {error}")
            continue
        for run in runs:
            wrong_count += account(run, kit, words.calls)
            run_count += 1
    for line in skipped:
        print(f"skipped: {line}")
    return 1 if wrong_count or not run_count else 0


def account(run: Run, kit: Kit, calls: int) -> int:
    """Step a program and print what it showed; return the number of steps whose row is wrong."""
    program = Path(run.words[0])
    image = load(str(program))
    subject = subject_of(program, Options(source="code"), least_size=1)
    with emulated(run.target, program, kit.folder, *map(str, run.words[1:])) as emulator:
        gdb = RemoteGdb(emulator.socket, run.target.name)
        shadow = EmulatedShadow(gdb, image, subject)
        shadow.run(entries_of(image), calls, _MOST_STEPS)
        gdb.close()
    sums, names = shadow.sums, FunctionNames(image)
    print(
        f"{run.name}: {sums['calls']:,} calls, {sums['steps']:,} steps: {sums['equal']:,} right, "
        f"{sums['differing']:,} wrong, {sums['without_row']:,} without a row; {len(shadow.places):,} places, of which "
        f"{len(shadow.without_row):,} have none; {shadow.ending_text}",
        flush=True,
    )
    for difference in shadow.differences.values():
        print(f"  {difference.vaddr:#x} in {names.of(difference.vaddr)}: {difference}")
    return sums["differing"]


if __name__ == "__main__":
    sys.exit(main())
