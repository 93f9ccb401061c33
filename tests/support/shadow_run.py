# SPDX-License-Identifier: Apache-2.0
"""Step programs by the tracer of `shadow/`, whose frames come from execution, and compare them with SFrame rows."""

from __future__ import annotations

import json
import os
import subprocess
from bisect import bisect_right
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import convert, load
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.errors import UnfitError
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage

SUPPORT: Final = Path(__file__).resolve().parent
SHADOW: Final = SUPPORT / "shadow"
_SOURCES: Final = (
    *(SHADOW / f"shadow{part}.c" for part in ("", "_start", "_stack", "_process", "_job")),
    *(SUPPORT / "consumer" / f"sframe_{part}.c" for part in ("section", "walk")),
)
#: Exit statuses of the tracer: the program does what is not followed; there is no result.
REFUSED: Final = 3
BROKEN: Final = 4
TIMEOUT_SECONDS: Final = 3600
#: Of code without CFI amid code that has some: shorter than this are padding, PLTs and start code.
LEAST_SIZE: Final = 64
_PAGE_SIZE: Final = 4096


class Ranges(NamedTuple):
    """Ascending ranges of addresses `[start, end)`, virtual addresses of a file."""

    pairs: tuple[tuple[int, int], ...]

    def hold(self, vaddr: int) -> bool:
        """Whether an address lies in one of them."""
        place = bisect_right(self.pairs, vaddr, key=lambda pair: pair[0]) - 1
        return place >= 0 and vaddr < self.pairs[place][1]


class Subject(NamedTuple):
    """A file that is loaded while a program runs, with the section to compare with."""

    path: Path
    section: bytes
    section_vaddr: int
    ranges: Ranges


class Place(NamedTuple):
    """What was met at an address of a file."""

    path: str
    vaddr: int
    steps: int
    without_row: int
    unknown: int
    differing: int


class Example(NamedTuple):
    """The first step at an address whose row does not say what execution showed; values are CFA, RA, FP."""

    path: str
    vaddr: int
    ending: str
    sp: int
    fp: int
    want: tuple[int, int, int]
    got: tuple[int, int, int]


class Report(NamedTuple):
    """What a run showed. `sums` has the fields of `struct shadow_sums`."""

    status: int
    sums: dict[str, int]
    places: tuple[Place, ...]
    examples: tuple[Example, ...]


class RefusedError(Exception):
    """The program does what the tracer does not follow."""


class FunctionNames:
    """The functions of a file by address: those of its symbols that start at or before it."""

    def __init__(self, image: ElfImage) -> None:
        self._names = {
            symbol.vaddr: symbol.name
            for section in image.sections
            if section.name in (".dynsym", ".symtab")
            for symbol in image.symbols(section)
            if symbol.name and symbol.vaddr is not None and image.may_execute(symbol.vaddr)
        }
        self._starts = sorted(self._names)

    def of(self, vaddr: int) -> str:
        """Return the name of the last function that starts at or before an address; without one, the address."""
        place = bisect_right(self._starts, vaddr) - 1
        return self._names[self._starts[place]] if place >= 0 else hex(vaddr)


def build_tracer(folder: Path) -> Path:
    """Compile the tracer."""
    target = folder / "shadow"
    words: list[str | Path] = [
        "cc",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Werror",
        f"-I{SUPPORT / 'consumer'}",
        "-o",
        target,
        *_SOURCES,
    ]
    subprocess.run(words, check=True)
    return target


def with_cfi(image: ElfImage) -> Ranges:
    """Return the addresses that the file's CFI describes."""
    try:
        entries = read_programs(image, find_cfi(image)).entries
    except UnfitError:
        return Ranges(())
    pairs = sorted((e.fde.pc_begin_vaddr, e.fde.pc_begin_vaddr + e.fde.pc_range) for e in entries)
    return Ranges(tuple(_joined(pair for pair in pairs if image.holds_code(*pair))))


def without_cfi(image: ElfImage, least_size: int = 1) -> Ranges:
    """Return the ranges of at least so many bytes of executable sections that no CFI describes.

    Padding between functions is among them, so short ones are everywhere: they make the tracer step all code, which
    takes long unless all of it is of interest.
    """
    gaps = []
    for code in image.code_ranges:
        at = code.start_vaddr
        for start, end in with_cfi(image).pairs:
            if end <= at or start >= code.end_vaddr:
                continue
            if start > at:
                gaps.append((at, start))
            at = max(at, end)
        if at < code.end_vaddr:
            gaps.append((at, code.end_vaddr))
    return Ranges(tuple((start, end) for start, end in _joined(sorted(gaps)) if end - start >= least_size))


def _joined(pairs: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in pairs:
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        elif start < end:
            joined.append((start, end))
    return joined


def subject_of(path: Path, options: Options, *, covered: bool = False, least_size: int = LEAST_SIZE) -> Subject:
    """Convert a file in memory; compared are the addresses without CFI, or those with it where `covered` is true.

    Where pages are watched (`least_size` > 1), the start code that shares a page with a PLT is left out: the tracer
    would stop at each call of a library's function.
    """
    image = load(str(path.resolve()))
    conversion = convert(image, options)
    ranges = with_cfi(image) if covered else without_cfi(image, least_size)
    if not covered and least_size > 1:
        ranges = Ranges(tuple(pair for pair in ranges.pairs if not _is_beside_plt(image, *pair)))
    return Subject(path.resolve(), conversion.data, conversion.section_vaddr, ranges)


def _is_beside_plt(image: ElfImage, start: int, end: int) -> bool:
    plts = [(s.vaddr, s.vaddr + s.size) for s in image.sections if s.name in (".plt", ".plt.got", ".plt.sec")]
    first, last = start - start % _PAGE_SIZE, end + -end % _PAGE_SIZE
    return end - start < _PAGE_SIZE and any(first < plt_end and plt_start < last for plt_start, plt_end in plts)


def write_job(job: Path, subjects: Sequence[Subject]) -> None:
    """Write what the tracer has to know of some files, and their sections beside it."""
    lines = []
    for number, subject in enumerate(subjects):
        section = job.with_name(f"{job.name}-{number}")
        section.write_bytes(subject.section)
        lines.append(f"module {subject.path} {section} {subject.section_vaddr:x}")
        lines += [f"range {start:x} {end:x}" for start, end in subject.ranges.pairs]
    job.write_text("\n".join(lines) + "\n")


def run_environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a program that is run with some more variables."""
    return {**os.environ, **variables}


def step(
    tracer: Path,
    folder: Path,
    subjects: Sequence[Subject],
    words: Sequence[str | Path],
    *,
    limits: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Report:
    """Run a program under the tracer, with its options `limits`. Raises `RefusedError` for what it does not follow."""
    job, report = folder / "job", folder / "report"
    write_job(job, subjects)
    report.unlink(missing_ok=True)
    done = subprocess.run(
        [tracer, *limits, job, report, *words],
        check=False,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=run_environment(variables or {}),
        timeout=timeout_seconds,
    )
    if not report.exists():
        message = done.stderr.strip()[-2000:]
        raise RefusedError(message) if done.returncode == REFUSED else RuntimeError(message or f"{done.returncode}")
    return _read(report)


def _read(path: Path) -> Report:
    status, sums = 0, {}
    places, examples = [], []
    for line in path.read_text().splitlines():
        record = json.loads(line)
        kind = record.pop("record")
        if kind == "summary":
            status = record.pop("status")
            sums = record
        elif kind == "pc":
            places.append(Place(**record))
        else:
            want, got = tuple(record.pop("want")), tuple(record.pop("got"))
            examples.append(Example(want=want, got=got, **record))
    return Report(status, sums, tuple(places), tuple(examples))
