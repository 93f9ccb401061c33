#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure what conversion costs, against other readers of the same CFI and against GNU as writing SFrame itself.

speed.py [--rounds N] [--readelf PROGRAM] [--python PROGRAM] [--large FILE] [--medium FILE] [--json]

Commands alternate, so that a busy machine slows both; a ratio is the median over the pairs. --large defaults to the
file under /usr with the most FDEs, --medium to the one with the most below 25,000. Peak memory is the largest resident
set. --python measures the package that is installed for that interpreter instead of these sources, and compares both.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from measuring import ROOT, Figure, compare, environment_for, own_peak_size, run, table_of
from synthetic import make_library

from cfi2sframe import load
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.files import Source, find_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

#: It compiles to an object of 4 to 5 KB; without a compiler, a smaller one from the repository is used.
SMALL_SOURCE = ROOT / "testdata/src/amd64/exceptions.cc"
SMALL_OBJECT = ROOT / "testdata/golden/amd64-several-cies.o"
FEWEST_FDES = 20_000
MOST_MEDIUM_FDES = 25_000
#: How many of the largest files are searched: an .eh_frame_hdr is never larger than its file.
SEARCHED_FILES = 60
SYNTHETIC_COUNTS = (1_000, 10_000, 100_000, 1_000_000)
#: FDEs of a file that loads what a conversion needs; few, so that it allocates little.
WARMING_COUNT = 500
MIB = 1 << 20

#: Prints the CPU seconds of the second file's conversion, with all modules loaded and little memory used before.
SECOND_FILE = """
import gc, sys, time, cfi2sframe
gc.disable()
options = cfi2sframe.Options(level=1)
cfi2sframe.convert(cfi2sframe.load(sys.argv[1]), options)
begin = time.process_time()
cfi2sframe.convert(cfi2sframe.load(sys.argv[2]), options)
print(time.process_time() - begin)
"""

#: Decodes all tables with pyelftools.
PYELFTOOLS = """
import sys
from elftools.elf.elffile import ELFFile
with open(sys.argv[1], "rb") as file:
    for entry in ELFFile(file).get_dwarf_info(relocate_dwarf_sections=False).EH_CFI_entries():
        if hasattr(entry, "get_decoded"):
            entry.get_decoded()
"""

FUNCTION = """
int kept_NUMBER(int *, int);
int leaf_NUMBER(int a, int b) { return a * b + NUMBER; }
int frame_NUMBER(int a) { int room[40]; return kept_NUMBER(room, a) + kept_NUMBER(room, a + 1); }
int loop_NUMBER(int *a, int n) { int s = 0; for (int i = 0; i < n; i++) s += kept_NUMBER(a + i, s); return s; }
int sized_NUMBER(int n) { int room[n]; return kept_NUMBER(room, n); }
"""
FUNCTION_COUNT = 2_000


class Setting(NamedTuple):
    """Where and how the commands run."""

    folder: Path
    rounds: int
    readelf: str
    python: str
    environment: dict[str, str]

    @property
    def convert(self) -> list[str]:
        """The command without its arguments."""
        return [self.python, "-P", "-m", "cfi2sframe"]

    @property
    def output(self) -> str:
        """Where raw sections are written."""
        return str(self.folder / "out.sframe")


# Files to measure


def fde_count(path: Path) -> int:
    """Return the number of FDEs in the search table; 0 without one, or if the file cannot be loaded."""
    try:
        image = load(str(path))
    except Cfi2SFrameError:
        return 0
    table = next(image.sections_named(".eh_frame_hdr"), None)
    has_cfi = next(image.sections_named(".eh_frame"), None) is not None
    return (table.size - 12) // 8 if table is not None and has_cfi else 0


def find_files() -> tuple[Path, Path]:
    """Return the files under /usr with the most FDEs, of all and of the medium ones; end the script without any."""
    found = find_sources(["/usr/lib", "/usr/bin", "/usr/local/lib"])
    files = sorted((item for item in found if isinstance(item, Source)), key=lambda source: -source.size)
    counts = {Path(source.path): fde_count(Path(source.path)) for source in files[:SEARCHED_FILES]}
    large = max(counts, key=counts.__getitem__, default=None)
    if large is None or counts[large] < FEWEST_FDES:
        sys.exit(f"speed: no file under /usr has {FEWEST_FDES:,} FDEs; name one with --large")
    return large, max((path for path in counts if counts[path] <= MOST_MEDIUM_FDES), key=counts.__getitem__)


def small_object(folder: Path) -> Path:
    """Return a small object, compiled into the folder if there is a compiler."""
    compiler = shutil.which("gcc")
    if compiler is None:
        return SMALL_OBJECT
    made = folder / "small.o"
    subprocess.run([compiler, "-O2", "-c", SMALL_SOURCE, "-o", made], check=True)
    return made


# What is measured


def large_figures(setting: Setting, path: Path) -> Iterator[Figure]:
    """Yield what a large library costs: against readelf and llvm-dwarfdump, embedded, and in memory."""
    raw = [*setting.convert, "-O1", str(path), "-o", setting.output]
    name = f"{path.name} ({fde_count(path):,} FDEs)"
    reader = [setting.readelf, "-wF", str(path)]
    against = compare(raw, reader, setting.rounds, setting.environment)
    yield Figure(f"{name}: CPU at -O1 to readelf -wF", against.ratio("cpu"), "", 1.3, against.detail("cpu"))
    yield Figure(f"{name}: wall at -O1 to readelf -wF", against.ratio("wall"), "", 1, against.detail("wall"))
    peak = own_peak_size()
    for level, goal in ((1, 2.5), (2, 4)):
        job = [*setting.convert, f"-O{level}", str(path), "-o", str(setting.folder / "embedded")]
        whole = compare(job, reader, setting.rounds, setting.environment)
        what = f"{name}: embedded and verified at -O{level}, CPU to readelf -wF"
        yield Figure(what, whole.ratio("cpu"), "", goal, whole.detail("cpu"))
        peak = max(peak, whole.peak_size)
    yield Figure(f"{name}: peak memory", peak / MIB, " MiB", 300, f"the file has {path.stat().st_size / MIB:.0f} MiB")
    dumper = shutil.which("llvm-dwarfdump")
    if dumper is not None:
        dumped = compare(raw, [dumper, "--eh-frame", str(path)], 1, setting.environment)
        yield Figure(f"{name}: CPU to llvm-dwarfdump --eh-frame", dumped.ratio("cpu"), "", None, dumped.detail("cpu"))
    embedded = compare(
        [*setting.convert, "-O1", "--no-verify", str(path), "-o", str(setting.folder / "embedded")],
        raw,
        setting.rounds,
        setting.environment,
    )
    extra = min(cost.wall for cost in embedded.ours) - min(cost.wall for cost in embedded.theirs)
    yield Figure(f"{name}: embedding, wall beyond conversion", extra, " s", 0.5, embedded.detail("wall"))


def medium_figures(setting: Setting, path: Path) -> Iterator[Figure]:
    """Yield what a program costs: against readelf and pyelftools, and with its functions split."""
    raw = [*setting.convert, "-O1", str(path), "-o", setting.output]
    name = f"{path.name} ({fde_count(path):,} FDEs)"
    against = compare(raw, [setting.readelf, "-wF", str(path)], setting.rounds, setting.environment)
    yield Figure(f"{name}: CPU to readelf -wF", against.ratio("cpu"), "", None, against.detail("cpu"))
    yield Figure(f"{name}: wall to readelf -wF", against.ratio("wall"), "", None, against.detail("wall"))
    python = compare(raw, [setting.python, "-c", PYELFTOOLS, str(path)], 1, setting.environment)
    yield Figure(f"{name}: CPU to pyelftools", python.ratio("cpu"), "", None, python.detail("cpu"))
    split = compare(
        [*setting.convert, "-O2", str(path), "-o", setting.output], raw, setting.rounds, setting.environment
    )
    yield Figure(f"{name}: CPU of -O2 to -O1", split.ratio("cpu"), "", 5, split.detail("cpu"))


def small_figures(setting: Setting) -> Iterator[Figure]:
    """Yield what a small object costs from start to end."""
    path = small_object(setting.folder)
    ours = [*setting.convert, str(path), "-o", setting.output]
    for program, goal in (("pass", 1.8), ("import argparse", 2.5)):
        against = compare(ours, [setting.python, "-c", program], 4 * setting.rounds, setting.environment)
        name = f"object of {path.stat().st_size:,} bytes: CPU to python -c '{program}'"
        yield Figure(name, against.ratio("cpu"), "", goal, against.detail("cpu"))


def growth_figures(setting: Setting) -> Iterator[Figure]:
    """Yield how the cost of an FDE grows with their number."""
    library, warming = setting.folder / "synthetic.so", setting.folder / "warming.so"
    command = [setting.python, "-P", "-c", SECOND_FILE, str(warming), str(library)]
    for kind, recurs in (("as in libraries", True), ("no two programs alike", False)):
        make_library(warming, WARMING_COUNT, recurs=recurs)
        costs = {}
        for count in SYNTHETIC_COUNTS:
            make_library(library, count, recurs=recurs)
            rounds = max(2, min(20, 300_000 // count))
            costs[count] = min(_printed_seconds(command, setting) for _ in range(rounds)) / count * 1e6
        library.unlink()
        detail = ", ".join(f"{count:,}: {cost:.1f} us" for count, cost in costs.items())
        spread = max(costs.values()) / min(costs.values())
        yield Figure(f"CPU for an FDE, most to least, 1,000 to 1,000,000, {kind}", spread, "", 1.2, detail)


def _printed_seconds(command: list[str], setting: Setting) -> float:
    return float(subprocess.run(command, env=setting.environment, check=True, capture_output=True, text=True).stdout)


def assembler_figures(setting: Setting) -> Iterator[Figure]:
    """Yield what SFrame sections cost in GNU as, and what it costs to convert its objects."""
    compiler, assembler = shutil.which("gcc"), shutil.which("as")
    if compiler is None or assembler is None:
        return
    source, listing, made = (setting.folder / f"many.{end}" for end in ("c", "s", "o"))
    source.write_text("".join(FUNCTION.replace("NUMBER", str(number)) for number in range(FUNCTION_COUNT)))
    subprocess.run([compiler, "-O2", "-S", source, "-o", listing], check=True)
    plain = [assembler, str(listing), "-o", str(made)]
    try:
        subprocess.run([*plain, "--gsframe"], check=True, stderr=subprocess.DEVNULL)
    except subprocess.CalledProcessError:
        return
    with_section = compare([*plain, "--gsframe"], plain, setting.rounds, setting.environment)
    run(plain, setting.environment)
    ours = compare([*setting.convert, str(made), "-o", setting.output], plain, setting.rounds, setting.environment)
    count = 4 * FUNCTION_COUNT
    yield Figure(
        f"as --gsframe to as, {count:,} functions: CPU", with_section.ratio("cpu"), "", None, with_section.detail("cpu")
    )
    yield Figure(f"cfi2sframe to as, {count:,} functions: CPU", ours.ratio("cpu"), "", None, ours.detail("cpu"))


def installed_figures(setting: Setting, large: Path, medium: Path) -> Iterator[Figure]:
    """Yield the cost of the installed program relative to these sources, which are not compiled."""
    sources = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-P", "-m", "cfi2sframe"]
    small = small_object(setting.folder)
    made = str(setting.folder / "embedded")
    for name, rounds, words in (
        (f"{large.name} -O1", setting.rounds, ["-O1", str(large), "-o", setting.output]),
        (f"{medium.name} -O1", setting.rounds, ["-O1", str(medium), "-o", setting.output]),
        (f"{medium.name} -O2", setting.rounds, ["-O2", str(medium), "-o", setting.output]),
        (f"{medium.name}, embedded and verified", setting.rounds, [str(medium), "-o", made]),
        (f"object of {small.stat().st_size:,} bytes", 4 * setting.rounds, [str(small), "-o", setting.output]),
    ):
        against = compare(["env", *setting.convert, *words], [*sources, *words], rounds, setting.environment)
        yield Figure(f"{name}: CPU of installed to sources", against.ratio("cpu"), "", None, against.detail("cpu"))


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="counted runs of each command (default 5)")
    parser.add_argument("--readelf", default=shutil.which("readelf"), help="default: the one on PATH")
    parser.add_argument("--python", metavar="PROGRAM", help="an interpreter with cfi2sframe installed, to measure that")
    parser.add_argument("--large", metavar="FILE", type=Path)
    parser.add_argument("--medium", metavar="FILE", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.readelf is None:
        sys.exit("speed: no readelf; get it with: apt-get install binutils")
    large, medium = arguments.large, arguments.medium
    if large is None or medium is None:
        found = find_files()
        large, medium = large or found[0], medium or found[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environment = environment_for(str(folder / "cache"))
        if arguments.python is not None:
            del environment["PYTHONPATH"]
        python = arguments.python or sys.executable
        setting = Setting(folder, arguments.rounds, arguments.readelf, python, environment)
        figures = [
            *(installed_figures(setting, large, medium) if arguments.python is not None else ()),
            *large_figures(setting, large),
            *medium_figures(setting, medium),
            *small_figures(setting),
            *growth_figures(setting),
            *assembler_figures(setting),
        ]
    if arguments.json:
        print(json.dumps([{**figure._asdict(), "verdict": figure.verdict} for figure in figures], indent=2))
    else:
        print(table_of(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
