#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fuzz the reading and rewriting code with atheris (coverage-guided), each target for a stated time.

fuzz.py [--seconds N] [TARGET]...     default: all targets, 60 seconds each
fuzz.py --minimise [TARGET]...        merge what the runs found into testdata/fuzz, smallest set of the same coverage

Seeds and found inputs are in build/fuzz/TARGET; an input that fails is kept as testdata/fuzz/TARGET/finding-HASH, where
the tests replay it. Exit status 1 when a target failed.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.harness import CORPUS, FINDING_PREFIX, MAX_SIZE, TARGETS, expect, granted_seconds, inputs, target  # noqa: E402

_ENGINE = "--engine"
WORK = ROOT / "build/fuzz"
#: MiB; a target at rest has about 100.
_MEMORY_LIMIT = 768
#: Instrumented code is this many times slower than what the tests replay.
_SLOWDOWN = 4
#: The largest inputs that are kept in the repository.
_KEPT_SIZE = 4096
_KEPT_TOTAL = 120_000


def main() -> int:
    """Run the command line; return its exit status."""
    if sys.argv[1:2] == [_ENGINE]:
        # The engine has options of its own, which argparse must not see.
        _run_engine(sys.argv[2], sys.argv[3:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", metavar="TARGET", nargs="*", help=", ".join(TARGETS))
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--minimise", action="store_true", help="keep what was found, and stop")
    arguments = parser.parse_args()
    chosen = arguments.targets or list(TARGETS)
    if unknown := set(chosen) - set(TARGETS):
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    failures = 0
    for name in chosen:
        if arguments.minimise:
            minimise(name)
        else:
            failures += fuzz(name, arguments.seconds)
    return 1 if failures else 0


def fuzz(name: str, seconds: int) -> int:
    """Run a target; return 1 when it failed."""
    work = WORK / name
    failed = work.with_suffix(".failed")
    work.mkdir(parents=True, exist_ok=True)
    failed.mkdir(exist_ok=True)
    for each, data in inputs(name).items():
        (work / each).write_bytes(data)
    begin = time.monotonic()
    options = [
        f"-max_total_time={seconds}",
        f"-max_len={MAX_SIZE}",
        f"-timeout={int(granted_seconds(MAX_SIZE) * _SLOWDOWN * 4)}",
        f"-rss_limit_mb={_MEMORY_LIMIT}",
        f"-artifact_prefix={failed}/",
        "-print_final_stats=1",
        "-close_fd_mask=0",
    ]
    log = work.with_suffix(".log")
    with open(log, "w", encoding="utf-8") as out:
        status = _start_engine(name, [*options, str(work)], out.fileno())
    tail = log.read_text(encoding="utf-8", errors="replace")
    count = next((line.split()[-1] for line in tail.splitlines() if "number_of_executed_units" in line), "?")
    print(f"{name}: {count} executions in {time.monotonic() - begin:.0f} s, {'failed' if status else 'no failure'}")
    kept = [_keep(name, path) for path in sorted(failed.iterdir())]
    for path in kept:
        print(f"  {path}")
    if status:
        print("\n".join(tail.splitlines()[-40:]), file=sys.stderr)
    return 1 if status else 0


def _keep(name: str, path: Path) -> Path:
    """Move a failing input to where the tests replay it."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    kept = CORPUS / name / f"{FINDING_PREFIX}{digest}"
    kept.parent.mkdir(exist_ok=True)
    shutil.move(path, kept)
    return kept


def minimise(name: str) -> None:
    """Add found inputs to the committed corpus: the smallest ones that reach what nothing else reaches."""
    merged = WORK / f"{name}.merged"
    shutil.rmtree(merged, ignore_errors=True)
    merged.mkdir(parents=True)
    _start_engine(name, ["-merge=1", f"-max_len={_KEPT_SIZE}", str(merged), str(WORK / name)], None)
    known = set(inputs(name).values())
    (CORPUS / name).mkdir(exist_ok=True)
    total = 0
    for path in sorted(merged.iterdir(), key=lambda path: path.stat().st_size):
        data = path.read_bytes()
        total += len(data)
        if total > _KEPT_TOTAL:
            break
        if data not in known:
            (CORPUS / name / hashlib.sha256(data).hexdigest()[:12]).write_bytes(data)


def _start_engine(name: str, options: list[str], output: int | None) -> int:
    command = [sys.executable, str(Path(__file__).resolve()), _ENGINE, name, *options]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(command, stdout=output, stderr=output, env=environment, check=False).returncode


def _run_engine(name: str, options: list[str]) -> None:
    import atheris

    # What the target imports is what its coverage counts.
    with atheris.instrument_imports(include=["cfi2sframe"]):
        for module in sorted((ROOT / "cfi2sframe").rglob("*.py")):
            _import(".".join(module.relative_to(ROOT).with_suffix("").parts))
        chosen = target(name)

    def run(data: bytes) -> None:
        start = time.process_time()
        chosen.run(data)
        seconds = time.process_time() - start
        expect(seconds < granted_seconds(len(data)) * _SLOWDOWN, f"took {seconds:.1f} s")

    atheris.Setup([sys.argv[0], *options], run)
    atheris.Fuzz()


def _import(name: str) -> None:
    import importlib

    if not name.endswith(("__main__", "__init__")):
        importlib.import_module(name)


if __name__ == "__main__":
    sys.exit(main())
