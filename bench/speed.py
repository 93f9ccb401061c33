#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what sections cost: to assembler and linker, by size of file, and in a tree of programs.

speed.py [--rounds N] [--binutils FOLDER] [--functions N] [--before PYTHON] [--source FILE.c] [FILE...]

- Share (with `--source`, as sqlite3.c): of CPU seconds to compile and link one large file of C as a library.
- Build: what `as --gsframe` and ld's merge add to the build of a library of generated C, to what cfi2sframe takes for
  the linked library, placed and verified, with stubs; and what `cfi2sframe-as` adds to the build of its objects.
- Files (default: some of this machine): raw with -O1 and -O2, and placed and verified; with `--before`, the ratio to
  the release that is installed for another interpreter.
- Tree: copies of programs of /usr/bin, converted in place by one process and by two.
- Again: the first run and the second, which changes nothing, also with `--check`, over two large files, over a root of
  programs and libraries, and by the trigger of dpkg there.

Seconds are of CPU, user and system, except in the tree. Ways alternate, A B A B: load of other programs slows all of
them. Figures are medians over the rounds, ratios those of each round, but for `--before` those of minima, which other
programs disturb least. Python's .pyc files are warm.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Final, NamedTuple

from cfi2sframe import convert

ROOT: Final = Path(__file__).resolve().parents[1]
OURS: Final = [sys.executable, "-P", "-m", "cfi2sframe"]
#: As the script of that name does it.
_WRAPPER: Final = "import sys; sys.argv[0] = 'cfi2sframe-as'; from cfi2sframe.cli.wrapper import run; sys.exit(run())"
AS_WRAPPER: Final = [sys.executable, "-P", "-c", _WRAPPER]
COMPILE: Final = ["cc", "-O2", "-S", "-fPIC", "-fvisibility=hidden", "-fasynchronous-unwind-tables"]
FUNCTIONS_PER_OBJECT: Final = 40
#: The wrapper takes several times as long as the assembler, and the same for each object.
WRAPPED_OBJECTS: Final = 50
TREE_FILES: Final = 600
#: As many as a small system has.
ROOT_FILES: Final = 800
TRIGGER: Final = ROOT / "contrib/dpkg/cfi2sframe-trigger"
WAYS: Final = (("-O1", "-o", "out.sframe"), ("-O2", "-o", "out.sframe"), ("-O2", "--replace", "-o", "out"))
#: From 1,500 FDEs to 160,000, of Debian 12; those that are there.
FILES: Final = (
    "lib/x86_64-linux-gnu/libkrb5.so.3",
    "bin/git",
    "lib/x86_64-linux-gnu/libcrypto.so.3",
    "lib/x86_64-linux-gnu/libgtk-3.so.0",
    "bin/gdb",
    "lib/x86_64-linux-gnu/libclang-14.so.14.0.6",
    "lib/x86_64-linux-gnu/libLLVM-15.so.1",
    "lib/x86_64-linux-gnu/librustc_driver-*.so",
)
#: What functions consist of: calls, returns before the end, loops, frames of constant and of variable size.
STATEMENTS: Final = (
    "c += {f}(a, c);",
    "if (c < {n}) return b;",
    "if (a > {n}) c -= {f}(b, {g}(c, a)); else c ^= strlen((char *)b);",
    "for (long i = 0; i < b; i++) c += {g}(i, c * {n});",
    "{{ char line[{n} % 300 + 16]; memset(line, (int)c, sizeof line); c += {g}(line[a & 15], (long)line); }}",
    "if (a == {n}) {{ char line[(a & 255) + 1]; memset(line, 0, sizeof line); c += {f}((long)line, b); }}",
)


class Cost(NamedTuple):
    """What a command took: seconds of CPU, seconds on the clock, and its peak memory in KiB."""

    cpu: float
    elapsed: float
    peak: int


def run(command: list[str], folder: Path) -> Cost:
    """Run a command in a folder, without its output. Ends the script when it fails."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPYCACHEPREFIX": str(folder / "cache")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    if command[0] != sys.executable:
        # Another interpreter has its own release.
        environment.pop("PYTHONPATH")
    null = subprocess.DEVNULL
    begin = time.perf_counter()
    process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, cwd=folder, env=environment)
    _, status, usage = os.wait4(process.pid, 0)
    elapsed = time.perf_counter() - begin
    process.returncode = os.waitstatus_to_exitcode(status)
    # Of a tree, a file that cannot be converted gives 1.
    if process.returncode not in (0, 1):
        sys.exit(f"speed: exit status {process.returncode}: {' '.join(command)}")
    return Cost(usage.ru_utime + usage.ru_stime, elapsed, usage.ru_maxrss)


def make_sources(folder: Path, count: int) -> list[str]:
    """Write and compile functions that call one another; return the names of the objects, without suffix."""
    chance = random.Random(16)  # noqa: S311 - no secret
    names = [f"f{number}" for number in range(count)]
    objects = []
    for first in range(0, count, FUNCTIONS_PER_OBJECT):
        lines = ["#include <string.h>"]
        for name in names[first : first + FUNCTIONS_PER_OBJECT]:
            f, g = chance.choices(names, k=2)
            statements = chance.choices(STATEMENTS, k=chance.randrange(1, 4))
            body = " ".join(each.format(f=f, g=g, n=chance.randrange(1 << 20)) for each in statements)
            lines.append(f"long {f}(long, long), {g}(long, long);")
            lines.append(f"long {name}(long a, long b) {{ long c = a; {body} return c; }}")
        objects.append(f"o{first}")
        (folder / f"o{first}.c").write_text("\n".join(lines) + "\n", encoding="utf-8")
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda name: subprocess.run([*COMPILE, f"{name}.c"], cwd=folder, check=True), objects))
    return objects


def measure_build(binutils: Path, count: int, rounds: int) -> None:
    """Print what sections cost assembler and linker, and what the same functions cost us."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        objects = make_sources(folder, count)
        assemble, link = str(binutils / "as"), [str(binutils / "ld"), "-shared"]
        os.environ["CFI2SFRAME_AS"] = assemble

        def added(names: list[str], suffix: str, *command: str) -> float:
            """Return how many more seconds a command takes than the assembler."""
            return sum(
                run([*command, "-o", f"{each}{suffix}", f"{each}.s"], folder).cpu
                - run([assemble, "-o", f"{each}.o", f"{each}.s"], folder).cpu
                for each in names
            )

        def one_round() -> tuple[float, float, float, float]:
            some = objects[:WRAPPED_OBJECTS]
            gnu, wrapped = added(objects, ".sframe.o", assemble, "--gsframe"), added(some, ".ours.o", *AS_WRAPPER)
            merge = run([*link, "-o", "gnu", *[f"{each}.sframe.o" for each in objects]], folder).cpu
            merge -= run([*link, "-o", "plain", *[f"{each}.o" for each in objects]], folder).cpu
            return gnu, merge, run([*OURS, "plain", "--replace", "-o", "out"], folder).cpu, wrapped / len(some)

        gnu, merge, ours, wrapped = zip(*[one_round() for _ in range(rounds + 1)][1:], strict=True)
        ratios = [us / (a + b) for us, a, b in zip(ours, gnu, merge, strict=True)]
        print(f"A library of {count:,} functions in {len(objects)} objects; microseconds for each function:\n")
        print("| `as --gsframe` adds | ld's merge adds | cfi2sframe, placed and verified | ratio | bytes, GNU | ours |")
        print(f"|{'---:|' * 6}")
        figures = " | ".join(f"{1e6 * median(each) / count:.1f}" for each in (gnu, merge, ours))
        sizes = " | ".join(f"{section_size(folder / each):,}" for each in ("gnu", "out"))
        print(f"| {figures} | {median(ratios):.2f} | {sizes} |")
        print(f"\n`cfi2sframe-as` adds {1000 * median(wrapped):.0f} ms to each object.\n", flush=True)


def section_size(path: Path) -> int:
    """Return the size of a file's section, by what its headers say."""
    lines = subprocess.run(["readelf", "-SW", path], check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
    return next(int(line.split("]", 1)[1].split()[4], 16) for line in lines if " .sframe " in line)


def measure_share(source: Path, rounds: int) -> None:
    """Print what a section costs, as a share of what compiler and linker take for the library of one source."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build = ["cc", "-O2", "-fPIC", "-shared", "-o", "library", str(source)]
        convert_it = [*OURS, "library", "--replace", "-o", "out"]
        costs = [(run(build, folder).cpu, run(convert_it, folder).cpu) for _ in range(rounds)]
        built, made = map(min, zip(*costs, strict=True))
        share = f"a section {made:.2f}, {100 * made / built:.1f} % of it"
        print(f"{source.name}: compiler and linker take {built:.1f} s, {share} (minima).\n", flush=True)


def measure_files(paths: list[Path], rounds: int, before: str | None) -> None:
    """Print a row for each file; `before` is an interpreter that has an older release."""
    print(
        "| file | FDEs | .eh_frame, MB | -O1 | -O2 | placed, verified: microseconds an FDE | s a MB | KiB an FDE |",
        end="",
    )
    print(" to before |" if before else "")
    print(f"|---|{'---:|' * (8 if before else 7)}", flush=True)
    ways = [[*OURS, *way] for way in WAYS] + ([[before, *OURS[1:], *WAYS[-1]]] if before else [])
    with tempfile.TemporaryDirectory() as name:
        for path in paths:
            cfi = convert(path, level=0).cfi
            count, size = len(cfi.entries), sum(section.size for section in cfi.sections) / 1e6
            runs = [[run([*way, str(path)], Path(name)) for way in ways] for _ in range(rounds + 1)][1:]
            columns = list(zip(*runs, strict=True))
            figures = " | ".join(
                f"{1e6 * median(cost.cpu for cost in way) / count:.1f}" for way in columns[: len(WAYS)]
            )
            jobs = columns[len(WAYS) - 1]
            per_mb, peak = median(cost.cpu for cost in jobs) / size, max(cost.peak for cost in jobs) / count
            least = [min(cost.cpu for cost in way) for way in columns[len(WAYS) - 1 :]]
            ratio = f" {least[0] / least[1]:.2f} |" if before else ""
            print(
                f"| {path.name} | {count:,} | {size:.2f} | {figures} | {per_mb:.2f} | {peak:.1f} |{ratio}", flush=True
            )


def measure_tree(rounds: int) -> None:
    """Print how many programs a second are converted in place, by one process and by two."""
    programs = [path for path in sorted(Path("/usr/bin").iterdir()) if not path.is_symlink() and is_elf(path)]
    chosen = programs[:: max(1, len(programs) // TREE_FILES)]

    def files_per_second(jobs: int) -> float:
        with tempfile.TemporaryDirectory() as name:
            for path in chosen:
                shutil.copy(path, name)
            return len(chosen) / run([*OURS, "--in-place", "-r", "-j", str(jobs), "."], Path(name)).elapsed

    ways = [[files_per_second(jobs) for jobs in (1, 2)] for _ in range(rounds)]
    one, two = (median(way) for way in zip(*ways, strict=True))
    size = sum(path.stat().st_size for path in chosen) / 1e6
    print(f"\n{len(chosen)} programs of {size:.0f} MB in all: {one:.1f} files a second with -j 1, {two:.1f} with -j 2.")


def measure_again(rounds: int) -> None:
    """Print what a run costs that finds everything up to date."""
    print("\n| again | files | MB | first, s | second, s | `--check`, s |")
    print(f"|---|{'---:|' * 5}", flush=True)
    two = [path.resolve() for each in ("bin/gdb", "lib/*/libcrypto.so.3") for path in Path("/usr").glob(each)]
    system = [path for each in ("bin", "sbin", "lib/*") for path in sorted(Path("/usr").glob(f"{each}/*"))]
    system = [path for path in system if path.is_file() and not path.is_symlink() and is_elf(path)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = folder / "commands/cfi2sframe"
        command.parent.mkdir()
        command.write_text(f'#!/bin/sh\nexec {" ".join(OURS)} "$@"\n', encoding="utf-8")
        command.chmod(0o755)
        os.environ["PATH"] = f"{command.parent}:{os.environ['PATH']}"
        shutil.copytree(TRIGGER / "etc", folder / "root/etc")
        os.environ["DPKG_ROOT"] = str(folder / "root")
        for what, paths in (("two", two), ("root", system[:: max(1, len(system) // ROOT_FILES)])):
            for path in paths:
                place = folder / what / path.relative_to("/").parent
                place.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, place)
            convert_all = [*OURS, "--in-place", "-j1", f"{what}/usr"]
            first = run(convert_all, folder).cpu
            ways = [convert_all, [*OURS, "--check", "-j1", f"{what}/usr"]]
            second, check = (median(run(way, folder).cpu for _ in range(rounds)) for way in ways)
            size = sum(path.stat().st_size for path in paths) / 1e6
            print(f"| {what} | {len(paths)} | {size:.0f} | {first:.2f} | {second:.2f} | {check:.2f} |", flush=True)
        trigger = [str(TRIGGER / "usr/sbin/cfi2sframe-system"), "changed", "/usr/bin"]
        print(f"\nThe trigger for /usr/bin there: {median(run(trigger, folder).cpu for _ in range(rounds)):.2f} s.")


def is_elf(path: Path) -> bool:
    """Whether a file is one of ELF's that can be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each command that count (default: 5)")
    parser.add_argument("--functions", type=int, default=16_000, help="of the generated library (default: 16000)")
    parser.add_argument("--before", metavar="PYTHON", help="an interpreter with an older release, to compare with")
    parser.add_argument(
        "--source", metavar="FILE.c", type=Path, help="a large file of C, to print the share of its build"
    )
    parser.add_argument("--binutils", type=Path, default=ROOT / "build/oracles/sid/bin", help="2.46 or newer")
    arguments = parser.parse_args()
    if not (arguments.binutils / "as").exists():
        sys.exit(f"speed: no assembler in {arguments.binutils}; get it with: make oracles")
    print(f"Python {sys.version.split()[0]} ({os.path.realpath(sys.executable)}), .pyc files warm\n", flush=True)
    if arguments.source is not None:
        measure_share(arguments.source.resolve(), arguments.rounds)
    if not arguments.files:
        measure_build(arguments.binutils.resolve(), arguments.functions, arguments.rounds)
    paths = [path for each in FILES for path in Path("/usr").glob(each)]
    measure_files([path.resolve() for path in arguments.files or paths], arguments.rounds, arguments.before)
    if not arguments.files:
        measure_tree(arguments.rounds)
        measure_again(arguments.rounds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
