#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Sample stacks of running programs whose time goes into code without CFI, and walk them with and without its rows.

    tools/stacks.py [--directory build/step]

DIRECTORY is what tools/fetch-step made. A decoder (dav1d) and a multiplication of matrices (OpenBLAS) are interrupted,
and each stack is walked by the reader of tests/support/consumer with the sections that CFI alone gives, with those of
`--from code`, and by elfutils' libdw. Printed is the share of samples whose walk reaches the program's start, for all
samples and for those in code without CFI, and how many of libdw's whole stacks the walk by SFrame repeats. The exit
status is 1 when a stack differs from libdw's where that one reaches the start from code with CFI.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from step_programs import Kit, MissingError, build_blas, make_clip

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import Options  # noqa: E402  # the checkout that this script lies in
from tests.support.shadow_run import SHADOW, SUPPORT, Ranges, Subject, run_environment, subject_of, write_job  # noqa: E402

_ENTRY_SIZE: Final = 64
_CLIP_FRAMES: Final = 150
_SHOWN_COUNT: Final = 8


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
    kit = Kit(parser.parse_args().directory.resolve())
    is_right = True
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
    jobs = [folder / "before", folder / "after"]
    for job, subjects in zip(jobs, files[:2], strict=True):
        write_job(job, subjects)
    report = folder / "samples"
    variables = {**kit.variables(), "OPENBLAS_NUM_THREADS": "1", **dict(run.variables)}
    samples = []
    for _ in range(run.times):
        words = [sampler, "-i", str(run.interval_us), *jobs, report, *run.words]
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=run_environment(variables))
        samples += [json.loads(line) for line in report.read_text().splitlines()]
    return samples


def account(name: str, samples: Sequence[dict[str, Any]], files: Files) -> bool:
    """Print what became of a run's samples; return whether no stack differs from libdw's where that is known right."""
    counts: Counter[tuple[str, str]] = Counter()
    endings: Counter[str] = Counter()
    wrong = []
    for sample in samples:
        module, vaddr = sample["after"][0]
        inside = module >= 0 and files.without_cfi[module].hold(vaddr)
        kind = "in code without CFI" if inside else "elsewhere"
        counts[kind, "samples"] += 1
        whole = {walker: _is_whole(sample[walker], files) for walker in ("before", "after", "libdw")}
        for walker, is_whole in whole.items():
            counts[kind, walker] += is_whole
        if not whole["after"]:
            endings[sample["after_ending"]] += 1
        if whole["libdw"]:
            is_same = sample["after"] == sample["libdw"]
            counts[kind, "same"] += is_same
            if not is_same and not inside and whole["after"]:
                wrong.append(sample)
    print(f"{name}: {len(samples)} samples")
    for kind in ("in code without CFI", "elsewhere"):
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


def _is_whole(pcs: Sequence[Sequence[int]], files: Files) -> bool:
    module, vaddr = pcs[-1] if pcs else (-1, 0)
    return module == 0 and files.start_vaddr <= vaddr < files.start_vaddr + _ENTRY_SIZE


def _share(count: int, of: int) -> str:
    return f"{100 * count / of:.1f} %" if of else "none"


if __name__ == "__main__":
    sys.exit(main())
