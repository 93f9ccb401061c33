# SPDX-License-Identifier: Apache-2.0
"""What every fuzz target keeps to: which failures are right ones, and how much time and memory an input may cost.

A target is a module with `run(data)` and `seeds()`. `run` returns for whatever bytes, or raises `FindingError`, or what
must never be raised: any exception outside the project's own tree. Nothing here needs a fuzzing engine.
"""

import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from cfi2sframe.errors import CostError
from cfi2sframe.process.guard import limited
from tests.support.process import BASE_SECONDS, MARGIN, MIB, SECONDS_PER_MIB

CORPUS: Final = Path(__file__).resolve().parents[2] / "testdata/fuzz"
#: A module in this package each, and a folder in `CORPUS` where fuzzing has found something.
TARGETS: Final = ("file", "cfi", "sframe", "core", "recording", "derive", "debug")
FINDING_PREFIX: Final = "finding-"
MAX_SIZE: Final = 1 << 16
#: Bytes of memory: some for the program itself, and a multiple of the input.
MAX_MEMORY_SIZE: Final = 64 << 20
MAX_MEMORY_FACTOR: Final = 1024


class FindingError(Exception):
    """An input was answered wrongly, or cost too much. Not one of the project's own errors, which targets catch."""


class Target(Protocol):
    """What a target's module offers."""

    def run(self, data: bytes) -> None:
        """Feed one input to the code under test."""

    def seeds(self) -> Iterator[tuple[str, bytes]]:
        """Yield named inputs to start from, made by the tests' own assemblers."""


class Cost(NamedTuple):
    """What an input took: CPU seconds, and bytes of memory at the peak."""

    seconds: float
    memory_size: int


def target(name: str) -> Target:
    """Import a target."""
    return import_module(f"tests.fuzz.target_{name}")


def inputs(name: str) -> dict[str, bytes]:
    """Return the inputs of a target by name: its seeds, and what was kept of the fuzzers' finds."""
    kept = sorted((CORPUS / name).glob("*"))
    return dict(target(name).seeds()) | {path.name: path.read_bytes() for path in kept}


def expect(holds: bool, message: str) -> None:  # noqa: FBT001 - reads like an assertion
    """Raise `FindingError` unless something holds (assertions may be compiled away)."""
    if not holds:
        raise FindingError(message)


def granted_seconds(size: int) -> float:
    """Return the CPU seconds that an input of `size` bytes may cost: the promise of SECURITY.md."""
    return BASE_SECONDS + SECONDS_PER_MIB * size / MIB + MARGIN


def timed(run: Callable[[bytes], None], data: bytes) -> float:
    """Run one input as a job of the command line is run, or until it is too costly; return its CPU seconds.

    Raises `FindingError` when they are out of proportion.
    """
    start = time.process_time()
    with suppress(CostError), limited(len(data)):
        run(data)
    seconds = time.process_time() - start
    expect(seconds <= granted_seconds(len(data)), f"{len(data)} bytes took {seconds:.1f} s")
    return seconds


def measured(run: Callable[[bytes], None], data: bytes) -> Cost:
    """Run one input twice, for its time and for its memory. Raises `FindingError` when one is out of proportion."""
    seconds = timed(run, data)
    gc.collect()
    tracemalloc.start()
    try:
        with suppress(CostError), limited(len(data)):
            run(data)
        memory_size = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    expect(
        memory_size <= MAX_MEMORY_SIZE + MAX_MEMORY_FACTOR * len(data),
        f"{len(data)} bytes took {memory_size:,} bytes of memory",
    )
    return Cost(seconds, memory_size)
