#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert and verify every ELF file under some folders, in each SFrame version, and add up what happened.

corpus.py [--version {1,2,3}]... [--level {0,1,2}] [--jobs N] [--json | --markdown] ROOT...

A file with several hard links counts once; symbolic links in folders are not followed. The bytes that `cfi2sframe
convert` would write are verified; those of linked files are also read by a strict reader, as a kernel's would be. Exit
status 1 when verification finds a difference, the strict reader complains, an exception that is not the package's own
is raised, or a process dies.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import re
import sys
import time
import traceback
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi2sframe import Options, decode_raw, load
from cfi2sframe.api import verify
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError, InputError, RequestError
from cfi2sframe.files import Source, find_sources
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.report.coverage import account
from cfi2sframe.report.size.sources import split_found

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from tests.support.kernel_reader import SPREAD, code_of
from tests.support.kernel_reader import complaints as strict_complaints

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.conversion import Level
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.report.coverage import Coverage

_VERSIONS = (1, 2, 3)
_LEVELS: dict[str, Level] = {"0": 0, "1": 1, "2": 2}
_MAX_SHOWN = 40
_NUMBER = re.compile(r"0x[0-9a-f]+|\b\d+\b")


class VersionResult(NamedTuple):
    """The result of one file in one version: counts by name, differences as text, or why there is no section."""

    version: int
    counts: dict[str, int]
    reasons: dict[str, int]
    dropped: dict[str, int]
    differences: tuple[str, ...]
    refusal: str = ""


class FileResult(NamedTuple):
    """The result of one file. `unusable` is the package's message, `crash` a traceback; both are empty on success."""

    path: str
    results: tuple[VersionResult, ...]
    unusable: str = ""
    crash: str = ""


class Totals(NamedTuple):
    """The sum over all files of one version."""

    counts: Counter[str]
    reasons: Counter[str]
    dropped: Counter[str]
    refusals: Counter[str]


class Report(NamedTuple):
    """The sum over all files."""

    file_count: int
    with_cfi_count: int
    unusable: Counter[str]
    totals: dict[int, Totals]
    differences: tuple[str, ...]
    crashes: tuple[str, ...]
    damaged: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing differs and nothing crashed."""
        return not self.differences and not self.crashes


# Finding


def find_elf_files(roots: Iterable[str]) -> list[Source]:
    """Return the ELF files under the roots, sorted by path; name on standard error what cannot be read."""
    sources, failures = split_found(find_sources(roots))
    for failure in failures:
        sys.stderr.write(f"corpus: {failure.name}: {failure.reason}\n")
    return sorted((source for source in sources if source.kind == "elf"), key=lambda source: source.path)


# One file


def convert_file(source: Source, versions: tuple[int, ...], level: Level | None) -> FileResult:
    """Convert one file in all versions, at one level (None: the default's), and verify what was made."""
    try:
        return _convert_file(source, versions, level)
    finally:
        # The pool's processes collect nothing by themselves, and the next file has limits of its own.
        gc.collect()


def _convert_file(source: Source, versions: tuple[int, ...], level: Level | None) -> FileResult:
    path = source.path
    results = []
    try:
        image = load(path)
        for version in versions:
            try:
                results.append(_convert_version(image, Options(version=version, level=level)))
            except RequestError as error:
                results.append(VersionResult(version, {}, {}, {}, (), _NUMBER.sub("N", str(error))))
    except InputError as error:
        return FileResult(path, (), unusable=_kind_of(error))
    except Cfi2SFrameError as error:
        return FileResult(path, (), crash=f"{type(error).__name__}: {error}")
    except Exception:  # noqa: BLE001 - this program searches for exceptions that must never be raised
        return FileResult(path, (), crash=traceback.format_exc())
    return FileResult(path, tuple(results))


def _kind_of(error: InputError) -> str:
    """Return the message without its numbers, so that files with the same problem add up."""
    return _NUMBER.sub("N", error.reason) if error.where else error.reason


def _convert_version(image: ElfImage, options: Options) -> VersionResult:
    conversion = convert_image(image, options)
    coverage = account(conversion)
    differences: tuple[str, ...] = ()
    refusal = ""
    points = 0
    strict: Counter[str] = Counter()
    if conversion.data:
        decoded = decode_raw(image, conversion.data, conversion.section_vaddr, options)
        verification = verify(image, decoded, options)
        points = verification.point_count
        differences = tuple(f"0x{d.vaddr:x}: {d.kind}: {d.message}" for d in verification.differences)
        if not image.is_relocatable:
            complaints = strict_complaints(conversion.data, conversion.section_vaddr, code_of(image))
            # A program with code in several segments gets a section with a warning.
            complaints = [text for text in complaints if text != SPREAD]
            differences += tuple(f"strict reader: {text}" for text in complaints)
            strict = Counter(sections_read_strictly=1, strict_complaints=len(complaints))
    else:
        refusal = "none of the functions can be described"
    counts = {**_counts(coverage), "points": points, "differences": len(differences), **strict}
    return VersionResult(options.version, counts, coverage.reasons, coverage.dropped, differences, refusal)


def _counts(coverage: Coverage) -> dict[str, int]:
    functions = coverage.functions._asdict()
    sizes = {"cfi_bytes": coverage.sizes.cfi + coverage.sizes.eh_frame_hdr, "sframe_bytes": coverage.sizes.sframe}
    code = {f"code_{name}": value for name, value in coverage.bytes._asdict().items()}
    return {**functions, **sizes, **code, "rows": coverage.row_count}


# All files


def convert_all(
    sources: Sequence[Source], versions: tuple[int, ...], level: Level | None, jobs: int
) -> Iterator[FileResult]:
    """Yield the results in the order in which they are ready."""
    convert = partial(convert_file, versions=versions, level=level)
    with results_of(convert, sources, size_of, count=jobs) as results:
        for number, result in results:
            yield FileResult(sources[number].path, (), crash=result.reason) if isinstance(result, Lost) else result


def size_of(source: Source) -> int:
    """Return the bytes of a file."""
    return source.size


def add_up(results: Iterable[FileResult], versions: tuple[int, ...]) -> Report:
    """Add all results up."""
    totals = {version: Totals(Counter(), Counter(), Counter(), Counter()) for version in versions}
    unusable: Counter[str] = Counter()
    differences: list[str] = []
    crashes: list[str] = []
    damaged: list[str] = []
    file_count = with_cfi_count = 0
    for path, of_versions, message, crash in results:
        file_count += 1
        if crash:
            crashes.append(f"{path}: {crash}")
        elif message:
            unusable[message] += 1
        else:
            with_cfi_count += 1
        for result in of_versions:
            sums = totals[result.version]
            sums.counts.update(result.counts)
            sums.reasons.update(result.reasons)
            sums.dropped.update(result.dropped)
            if result.refusal:
                sums.refusals[result.refusal] += 1
            differences += [f"{path}: version {result.version}: {text}" for text in result.differences]
        if of_versions and of_versions[-1].counts.get("damaged"):
            damaged.append(f"{path}: {of_versions[-1].counts['damaged']} damaged FDEs")
    return Report(
        file_count,
        with_cfi_count,
        unusable,
        totals,
        tuple(sorted(differences)),
        tuple(sorted(crashes)),
        tuple(sorted(damaged)),
    )


# Showing


def table_of(report: Report) -> list[tuple[str, ...]]:
    """Return the report as rows of cells; the first is the heading."""
    versions = list(report.totals)
    counts = [report.totals[version].counts for version in versions]

    def line(label: str, name: str) -> tuple[str, ...]:
        return (label, *(f"{count[name]:,}" for count in counts))

    def lines_of(indent: str, counters: list[Counter[str]]) -> Iterator[tuple[str, ...]]:
        names = sorted(set().union(*counters), key=lambda name: (-max(c[name] for c in counters), name))
        for name in names:
            yield (indent + name, *(f"{counter[name]:,}" for counter in counters))

    def shares(label: str, part: str, whole: str) -> tuple[str, ...]:
        return (label, *(f"{100 * c[part] / c[whole]:.3f} %" if c[whole] else "" for c in counts))

    every = [f"{report.file_count:,}"] * len(versions)
    for count in counts:
        count["described"] = count["default"] + count["flexible"]
        count["wanted"] = count["described"] + count["left_out"] + count["damaged"]
    table: list[tuple[str, ...]] = [("", *(f"version {version}" for version in versions)), ("ELF files", *every)]
    table += [(f"- {text}", *([f"{number:,}"] * len(versions))) for text, number in report.unusable.most_common()]
    table.append(("with CFI", *([f"{report.with_cfi_count:,}"] * len(versions))))
    table += lines_of("- no section: ", [report.totals[version].refusals for version in versions])
    table += [line("FDEs", "fdes"), line("described by rows of the CFI", "described")]
    table += [line("- default rows", "default"), line("- flexible rows", "flexible"), line("left out", "left_out")]
    table += lines_of("- ", [report.totals[version].reasons for version in versions])
    table.append(line("PLT stubs, described by their instructions", "replaced"))
    table.append(line("dropped", "dropped"))
    table += lines_of("- ", [report.totals[version].dropped for version in versions])
    table += [line("damaged", "damaged"), line("overlapping, cut", "overlapping")]
    table += [shares("share described", "described", "wanted"), line("functions written", "records")]
    table.append(line("- of them PLT stubs", "stub_records"))
    table += [line("rows written", "rows"), line("PCs compared", "points"), line("differences", "differences")]
    table.append(line("sections shown to the strict reader", "sections_read_strictly"))
    table.append(line("- its complaints", "strict_complaints"))
    table += [line("CFI + search table, bytes", "cfi_bytes"), line(".sframe, bytes", "sframe_bytes")]
    ratios = (f"{c['sframe_bytes'] / c['cfi_bytes']:.3f}" if c["cfi_bytes"] else "" for c in counts)
    table.append(("ratio", *ratios))
    return table


def aligned(table: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the table's lines for a terminal."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        cells = [row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]
        yield "  ".join(cells).rstrip()


def as_markdown(table: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the table's lines as Markdown."""
    for number, row in enumerate(table):
        # Markdown does not indent a cell that starts with a dash.
        first = f"&nbsp;&nbsp;{row[0][2:]}" if row[0].startswith("- ") else row[0]
        yield "| " + " | ".join((first, *row[1:])) + " |"
        if number == 0:
            yield "|---|" + "---:|" * (len(row) - 1)


def as_data(report: Report) -> dict[str, Any]:
    """Return the report as JSON-ready data."""
    return {
        "files": report.file_count,
        "with_cfi": report.with_cfi_count,
        "unusable": dict(report.unusable),
        "versions": {
            version: {
                **totals.counts,
                "reasons": dict(totals.reasons),
                "dropped_by_reason": dict(totals.dropped),
                "no_section": dict(totals.refusals),
            }
            for version, totals in report.totals.items()
        },
        "difference_list": report.differences,
        "crashes": report.crashes,
        "damaged_files": report.damaged,
    }


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", metavar="ROOT", nargs="+", help="a folder, or a file")
    parser.add_argument("--version", type=int, choices=_VERSIONS, action="append", help="default: all three")
    parser.add_argument("--level", choices=_LEVELS, help="default: that of cfi2sframe; objects are always at 0")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true")
    form.add_argument("--markdown", action="store_true")
    arguments = parser.parse_args()
    versions = tuple(sorted(set(arguments.version or _VERSIONS)))
    begin = time.monotonic()
    sources = find_elf_files(arguments.roots)
    results = convert_all(sources, versions, _LEVELS.get(arguments.level), arguments.jobs)
    report = add_up(_with_progress(results, len(sources)), versions)
    if arguments.json:
        print(json.dumps(as_data(report), indent=2))
    else:
        for line in (as_markdown if arguments.markdown else aligned)(table_of(report)):
            print(line)
    for lines in (report.damaged, report.differences, report.crashes):
        for line in lines[:_MAX_SHOWN]:
            print(line, file=sys.stderr)
        if len(lines) > _MAX_SHOWN:
            print(f"... and {len(lines) - _MAX_SHOWN:,} more", file=sys.stderr)
    print(
        f"{len(report.differences):,} differences, {len(report.crashes):,} crashes, {time.monotonic() - begin:.0f} s",
        file=sys.stderr,
    )
    return 0 if report.is_clean else 1


def _with_progress(results: Iterable[FileResult], count: int) -> Iterator[FileResult]:
    """Pass the results on; print at once what is wrong, and on a terminal the progress."""
    is_terminal = sys.stderr.isatty()
    for number, result in enumerate(results, 1):
        if result.crash or any(of_version.differences for of_version in result.results):
            sys.stderr.write(f"{result.path}: {'crash' if result.crash else 'differences'}\n")
        if is_terminal:
            sys.stderr.write(f"\r{number:,} of {count:,} files")
        yield result
    if is_terminal:
        sys.stderr.write("\r" + " " * 40 + "\r")


if __name__ == "__main__":
    sys.exit(main())
