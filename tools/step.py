#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Step programs instruction by instruction, and hold the rows of code without CFI to what execution shows.

    tools/step.py [--directory build/step] [--only GROUP]... [--details FILE]

DIRECTORY is what tools/fetch-step made. Video codecs' tests of their assembly, a decoder and an encoder, OpenBLAS and
musl programs run under the tracer of tests/support/shadow, which knows each instruction's CFA, return address and
caller's FP from calls and returns alone. Printed are, for each run, the steps in code without CFI, those whose row is
right or wrong or missing, and the addresses that ran. In a helper that has overwritten FP, and whose callers have it in
a slot, a row may say that FP is in its register: "FP later" if the walk is right from the caller on. At calls the
caller's row is tried as a walk from the callee does; "unsafe" are those that need another register than SP and FP. The
exit status is 1 when a row is wrong. What cannot be had is named and skipped.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from step_programs import GROUPS, Kit, MissingError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from step_programs import Run

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import Options, load  # noqa: E402  # the checkout that this script lies in
from tests.support.shadow_run import FunctionNames, RefusedError, Report, Subject, build_tracer, step, subject_of  # noqa: E402

_OPTIONS: Final = Options(source="code")
#: Functions without rows that are printed, those with the most steps first.
_SHOWN_COUNT: Final = 15
_HEADINGS: Final = (
    "run",
    "steps",
    "right",
    "FP later",
    "wrong",
    "no row",
    "unknown",
    "places",
    "no row",
    "calls",
    "unsafe",
)


class Account(NamedTuple):
    """What one run showed."""

    run: Run
    report: Report

    @property
    def cells(self) -> tuple[str, ...]:
        """The run's line of the table."""
        sums, places = self.report.sums, self.report.places
        without = sum(1 for place in places if place.without_row)
        counts = [sums[name] for name in ("steps", "equal", "fp_by_caller", "differing", "without_row", "unknown")]
        calls = (sums["right_calls"], sums["unsafe_calls"])
        return (self.run.name, *(f"{count:,}" for count in (*counts, len(places), without, *calls)))


def main() -> int:
    """Step through all programs, or those of some groups."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "step")
    parser.add_argument(
        "--only", action="append", choices=sorted(GROUPS), help="this group of programs; more than once"
    )
    parser.add_argument(
        "--details", type=Path, metavar="FILE", help="write what was met at each address, as JSON lines"
    )
    words = parser.parse_args()
    kit = Kit(words.directory.resolve())
    accounts: list[Account] = []
    skipped: list[str] = []
    with tempfile.TemporaryDirectory(prefix="step-") as name:
        folder = Path(name)
        tracer = build_tracer(folder)
        subjects: dict[Path, Subject] = {}
        print(_line(_HEADINGS))
        for group in words.only or GROUPS:
            try:
                runs = GROUPS[group](kit)
            except MissingError as error:
                skipped.append(f"{group}: {error}")
                continue
            for run in runs:
                try:
                    accounts.append(_account(tracer, folder, run, kit, subjects))
                    print(_line(accounts[-1].cells), flush=True)
                except (RefusedError, RuntimeError) as error:
                    skipped.append(f"{run.name}: {error}")
    _print_sums(accounts, skipped)
    if words.details:
        words.details.write_text("".join(_details(accounts)))
    return 1 if any(account.report.sums["differing"] for account in accounts) or not accounts else 0


def _account(tracer: Path, folder: Path, run: Run, kit: Kit, subjects: dict[Path, Subject]) -> Account:
    path = run.subject.resolve()
    if path not in subjects:
        # Where every instruction is stepped, short ranges cost nothing.
        subjects[path] = subject_of(path, _OPTIONS, least_size=1) if "-a" in run.limits else subject_of(path, _OPTIONS)
    variables = {**kit.variables(), **dict(run.variables)}
    report = step(tracer, folder, [subjects[path]], run.words, limits=run.limits, variables=variables)
    if report.status not in (0, 1):
        raise RuntimeError(f"exit status {report.status}")
    return Account(run, report)


def _line(cells: Sequence[str]) -> str:
    return f"{cells[0]:30} " + " ".join(f"{cell:>9}" for cell in cells[1:])


def _print_sums(accounts: Sequence[Account], skipped: Sequence[str]) -> None:
    sums: Counter[str] = Counter()
    without: Counter[tuple[str, str]] = Counter()
    names: dict[str, FunctionNames] = {}
    differing: list[str] = []
    for account in accounts:
        sums.update(account.report.sums)
        for place in account.report.places:
            if place.without_row:
                name = _names_of(place.path, names).of(place.vaddr)
                without[Path(place.path).name, name] += place.without_row
        for example in account.report.examples:
            name = _names_of(example.path, names).of(example.vaddr)
            values = ", ".join(
                f"{what} {want:#x} not {got:#x}"
                for what, want, got in zip(("CFA", "RA", "FP"), example.want, example.got, strict=True)
                if want != got
            )
            differing.append(f"{account.run.name}: {example.vaddr:#x} in {name}: {example.ending}: {values}")
    print(
        f"\n{sums['steps']:,} steps in code without CFI, {sums['equal']:,} at addresses with a row that is right, "
        f"{sums['fp_by_caller']:,} where FP is right from the caller on, {sums['differing']:,} with one that is wrong, "
        f"{sums['without_row']:,} without a row, {sums['unknown']:,} in "
        f"frames that are not known; {sums['calls'] + sums['entries']:,} calls, {sums['returns']:,} returns"
    )
    print("\nmost steps without a row:")
    for (file, name), count in without.most_common(_SHOWN_COUNT):
        print(f"  {count:12,}  {name} ({file})")
    for heading, lines in (("rows that are not right:", differing), ("skipped:", skipped)):
        if lines:
            print(f"\n{heading}\n  " + "\n  ".join(lines))


def _names_of(path: str, known: dict[str, FunctionNames]) -> FunctionNames:
    if path not in known:
        known[path] = FunctionNames(load(path))
    return known[path]


def _details(accounts: Sequence[Account]) -> list[str]:
    lines = []
    for account in accounts:
        lines += [{"run": account.run.name, **place._asdict()} for place in account.report.places]
        lines += [{"run": account.run.name, **example._asdict()} for example in account.report.examples]
    return [json.dumps(line) + "\n" for line in lines]


if __name__ == "__main__":
    sys.exit(main())
