#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sample stacks of running programs whose time goes into code without CFI, and walk them with and without its rows.

    tools/stacks.py [--directory build/step] [--stops 300]

DIRECTORY is what tools/fetch-step made. A decoder (dav1d) and a multiplication of matrices (OpenBLAS) are interrupted,
and each stack is walked by the reader of tests/support/consumer with the sections that CFI alone gives, with those of
`--from code`, and by elfutils' libdw. Printed is the share of samples whose walk reaches the program's start, for all
samples and for those in code without CFI, and how many of libdw's whole stacks the walk by SFrame repeats. The exit
status is 1 when a stack differs from libdw's where that one reaches the start from code with CFI.

Then gdb runs each program, and at each of so many stops its backtrace is compared, PC and SP of each frame. Where gdb
knows nothing of a function, it takes the word at SP for the return address, then the next word, until one leads into
code that it knows. Such a stack is wrong where a word is an address in no file; counted are those that have all frames
of the walk by SFrame nevertheless, at the same SPs and in the same order. The exit status is 1 when gdb reaches the
start through code with CFI only, or through addresses in files only, and its stack is not that of the walk by SFrame.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from step_programs import Kit, MissingError, build_blas, make_clip

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import Options  # noqa: E402  # the checkout that this script lies in
from tests.support.shadow_run import SHADOW, SUPPORT, Ranges, Subject, run_environment, subject_of, write_job  # noqa: E402

_ENTRY_SIZE: Final = 64
_CLIP_FRAMES: Final = 150
_SHOWN_COUNT: Final = 8
_STOPS: Final = 300
_INSIDE: Final = "in code without CFI"
_ELSEWHERE: Final = "elsewhere"

#: Of a walk: the number of the file (-1: in none), the vaddr, and SP where it is known.
Frame = Sequence[int]


class Run(NamedTuple):
    """A program to be sampled every so many microseconds, so many times from start to end."""

    name: str
    words: tuple[str | Path, ...]
    interval_us: int
    times: int = 1
    variables: tuple[tuple[str, str], ...] = ()


class Files(NamedTuple):
    """The files that a program loads, the program first: its sections with and without rows from instructions."""

    before: tuple[Subject, ...]
    after: tuple[Subject, ...]
    without_cfi: tuple[Ranges, ...]
    start_vaddr: int


def main() -> int:
    """Sample the programs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "step")
    parser.add_argument("--stops", type=int, default=_STOPS, help="how many stacks of each program gdb is asked for")
    words = parser.parse_args()
    kit = Kit(words.directory.resolve())
    is_right = True
    asks_gdb = words.stops > 0 and _has_gdb()
    with tempfile.TemporaryDirectory(prefix="stacks-") as name:
        folder = Path(name)
        try:
            sampler = build_sampler(kit, folder)
            runs = _runs(kit)
        except MissingError as error:
            print(f"skipped: {error}")
            return 1
        for run in runs:
            files = files_of(Path(run.words[0]), kit)
            is_right &= account(run.name, samples_of(sampler, folder, run, files, kit), files)
            if asks_gdb:
                is_right &= account_beside_gdb(stops_of(sampler, folder, run, files, kit, words.stops), files)
    if not asks_gdb:
        print("skipped: gdb (with Python)")
    return 0 if is_right else 1


def _runs(kit: Kit) -> list[Run]:
    dav1d, clip = kit.root / "usr" / "bin" / "dav1d", make_clip(kit, _CLIP_FRAMES)
    blas = build_blas(kit)
    decode = (dav1d, "-q", "-i", clip, "-o", "/dev/null", "--muxer", "yuv", "--threads", "1")
    return [
        *(Run(f"dav1d --cpumask {mask}", (*decode, "--cpumask", mask), 250, 5) for mask in ("ssse3", "avx2")),
        *(
            Run(f"OpenBLAS dgemm for {core}", (blas, "100"), 1000, variables=(("OPENBLAS_CORETYPE", core),))
            for core in ("Nehalem", "Haswell")
        ),
    ]


def build_sampler(kit: Kit, folder: Path) -> Path:
    """Compile the sampler, which needs libdw."""
    target, parts = folder / "stacks", ("start", "process", "job")
    sources = [SHADOW / "stacks.c", *(SHADOW / f"shadow_{part}.c" for part in parts)]
    sources += [SUPPORT / "consumer" / f"sframe_{part}.c" for part in ("section", "walk")]
    headers = (f"-I{SUPPORT / 'consumer'}", f"-I{kit.root / 'usr' / 'include'}")
    kit.build("cc", "-O2", *headers, "-o", target, *sources, f"-L{kit.libraries}", "-ldw", "-lelf")
    return target


def files_of(program: Path, kit: Kit) -> Files:
    """Convert a program and the libraries that it loads."""
    text = subprocess.run(
        ["ldd", program], check=True, capture_output=True, text=True, env=run_environment(kit.variables())
    ).stdout
    paths = [program, *(Path(path) for path in re.findall(r"(/\S+) \(0x", text))]
    subjects = [[subject_of(path, Options(source=source)) for path in paths] for source in (None, "code")]
    with program.open("rb") as file:
        start_vaddr = struct.unpack_from("<Q", file.read(64), 24)[0]
    none = Ranges(())
    before, after = (tuple(s._replace(ranges=none) for s in half) for half in subjects)
    return Files(before, after, tuple(subject.ranges for subject in subjects[0]), start_vaddr)


def samples_of(sampler: Path, folder: Path, run: Run, files: Files, kit: Kit) -> list[dict[str, Any]]:
    """Return the samples of a run, as stacks.c writes them."""
    jobs = _write_jobs(folder, files)
    report = folder / "samples"
    samples = []
    for _ in range(run.times):
        words = [sampler, "-i", str(run.interval_us), *jobs, report, *run.words]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=run_environment(_variables_of(run, kit)))
        samples += [json.loads(line) for line in report.read_text().splitlines()]
    return samples


def stops_of(sampler: Path, folder: Path, run: Run, files: Files, kit: Kit, count: int) -> list[dict[str, Any]]:
    """Return what gdb and the walks by SFrame found at so many stops of a run, or until it ended as often as it may."""
    jobs = _write_jobs(folder, files)
    report = folder / "stops"
    samples: list[dict[str, Any]] = []
    for _ in range(run.times):
        words = [sampler, "-p", "PID", "-i", run.interval_us, *jobs, report]
        variables = {
            **_variables_of(run, kit),
            "STACKS_WORDS": json.dumps([str(word) for word in words]),
            "STACKS_COUNT": str(count - len(samples)),
        }
        gdb = ["gdb", "-batch", "-nx", "-x", SHADOW / "stacks_gdb.py", "--args", *run.words]
        subprocess.run(gdb, check=True, stdout=subprocess.DEVNULL, env=run_environment(variables))
        samples += [json.loads(line) for line in report.read_text().splitlines()]
        if len(samples) >= count:
            break
    return samples


def _has_gdb() -> bool:
    if shutil.which("gdb") is None:
        return False
    words = ["gdb", "-batch", "-nx", "-ex", "python print('it has')"]
    return "it has" in subprocess.run(words, check=False, capture_output=True, text=True).stdout


def _write_jobs(folder: Path, files: Files) -> list[Path]:
    jobs = [folder / "before", folder / "after"]
    for job, subjects in zip(jobs, files[:2], strict=True):
        write_job(job, subjects)
    return jobs


def _variables_of(run: Run, kit: Kit) -> dict[str, str]:
    return {**kit.variables(), "OPENBLAS_NUM_THREADS": "1", **dict(run.variables)}


def account(name: str, samples: Sequence[dict[str, Any]], files: Files) -> bool:
    """Print what became of a run's samples; return whether no stack differs from libdw's where that is known right."""
    counts: Counter[tuple[str, str]] = Counter()
    endings: Counter[str] = Counter()
    wrong = []
    for sample in samples:
        kind = _INSIDE if _is_without_cfi(sample["after"][0], files) else _ELSEWHERE
        counts[kind, "samples"] += 1
        whole = {walker: _is_whole(sample[walker], files) for walker in ("before", "after", "libdw")}
        for walker, is_whole in whole.items():
            counts[kind, walker] += is_whole
        if not whole["after"]:
            endings[sample["after_ending"]] += 1
        if whole["libdw"]:
            is_same = [frame[:2] for frame in sample["after"]] == sample["libdw"]
            counts[kind, "same"] += is_same
            if not is_same and kind == _ELSEWHERE and whole["after"]:
                wrong.append(sample)
    print(f"{name}: {len(samples)} samples")
    for kind in (_INSIDE, _ELSEWHERE):
        count = counts[kind, "samples"]
        shares = {walker: _share(counts[kind, walker], count) for walker in ("before", "after", "libdw")}
        print(
            f"  {kind}: {count}; to the program's start: {shares['before']} before, {shares['after']} after, "
            f"{shares['libdw']} by libdw; {counts[kind, 'same']} of libdw's {counts[kind, 'libdw']} the same"
        )
    if endings:
        print(f"  after, other endings: {dict(endings.most_common(_SHOWN_COUNT))}")
    for sample in wrong[:_SHOWN_COUNT]:
        print(f"  differs: {sample}")
    return not wrong


def account_beside_gdb(stops: Sequence[dict[str, Any]], files: Files) -> bool:
    """Print what became of gdb's stacks; return whether none that can be right differs from the walk by SFrame."""
    counts: Counter[tuple[str, str]] = Counter()
    wrong = []
    for stop in stops:
        kind = _INSIDE if any(_is_without_cfi(frame, files) for frame in stop["after"]) else _ELSEWHERE
        counts[kind, "stops"] += 1
        is_whole = _is_whole(stop["after"], files)
        counts[kind, "whole"] += is_whole
        if not _is_whole(stop["gdb"], files):
            outcome = "cut"
        elif stop["gdb"] == stop["after"]:
            outcome = "same"
        elif any(module < 0 for module, _, _ in stop["gdb"]):
            outcome = "through words"
            counts[kind, "all frames"] += is_whole and _is_among(stop["after"], stop["gdb"])
        else:
            outcome = "different"
        counts[kind, outcome] += 1
        if outcome == "different" or (outcome == "through words" and kind == _ELSEWHERE):
            wrong.append(stop)
    for kind in (_INSIDE, _ELSEWHERE):
        print(
            f"  beside gdb, {kind}: {counts[kind, 'stops']}, {counts[kind, 'whole']} whole; gdb's: "
            f"{counts[kind, 'same']} the same, {counts[kind, 'through words']} through words that are no code "
            f"({counts[kind, 'all frames']} of them have all frames), {counts[kind, 'different']} different, "
            f"{counts[kind, 'cut']} not to the start"
        )
    for stop in wrong[:_SHOWN_COUNT]:
        print(f"  differs from gdb's: {stop}")
    return not wrong


def _is_among(frames: Sequence[Frame], others: Sequence[Frame]) -> bool:
    """Whether others has all these frames, in this order."""
    rest = iter(others)
    return all(frame in rest for frame in frames)


def _is_without_cfi(frame: Frame, files: Files) -> bool:
    module, vaddr = frame[:2]
    return module >= 0 and files.without_cfi[module].hold(vaddr)


def _is_whole(frames: Sequence[Frame], files: Files) -> bool:
    module, vaddr = frames[-1][:2] if frames else (-1, 0)
    return module == 0 and files.start_vaddr <= vaddr < files.start_vaddr + _ENTRY_SIZE


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else "none"


if __name__ == "__main__":
    sys.exit(main())
