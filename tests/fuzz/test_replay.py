# SPDX-License-Identifier: Apache-2.0
"""Every kept fuzz input again: seeds, what coverage found, and findings. No fuzzing engine is needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.fuzz import harness
from tests.fuzz.harness import (
    CORPUS,
    FINDING_PREFIX,
    MAX_SIZE,
    TARGETS,
    FindingError,
    expect,
    inputs,
    measured,
    target,
    timed,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.fuzz

#: Bytes of the whole corpus, which is part of the repository.
MAX_CORPUS_SIZE = 1_000_000


def every_input() -> list[tuple[str, Path]]:
    return [(name, path) for name in TARGETS for path in inputs(name)]


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_raise_nothing_and_cost_little(name: str) -> None:
    run = target(name).run
    paths = inputs(name)
    # What is imported at the first run is not the first input's fault.
    run(paths[0].read_bytes())
    for path in paths:
        try:
            timed(run, path.read_bytes())
        except FindingError as error:
            raise AssertionError(f"{name}/{path.name}: {error}") from error


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("name", "path"),
    [each for each in every_input() if each[1].name.startswith((FINDING_PREFIX, "seed-"))],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_memory_is_bounded(name: str, path: Path) -> None:
    run = target(name).run
    run(path.read_bytes())
    measured(run, path.read_bytes())


@pytest.mark.parametrize("name", TARGETS)
def test_seeds_are_what_the_assemblers_make(name: str) -> None:
    """After a change of the test assemblers, `tools/fuzz.py --seed` is due."""
    made = {f"seed-{seed}": data for seed, data in target(name).seeds()}
    assert made
    assert {path.name: path.read_bytes() for path in inputs(name) if path.name.startswith("seed-")} == made


def test_the_corpus_is_small() -> None:
    sizes = [path.stat().st_size for _, path in every_input()]
    assert max(sizes) <= MAX_SIZE
    assert sum(sizes) <= MAX_CORPUS_SIZE
    assert sorted(path.name for path in CORPUS.iterdir()) == sorted(TARGETS)


def test_costs_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other tests rely on: an input that costs too much is found."""

    def waste_time(_data: bytes) -> None:
        sum(range(10_000_000))

    def waste_memory(_data: bytes) -> None:
        bytearray(1 << 27)

    with pytest.raises(FindingError, match="of memory"):
        measured(waste_memory, b"")
    monkeypatch.setattr(harness, "BASE_SECONDS", 0.01)
    monkeypatch.setattr(harness, "MARGIN", 0)
    with pytest.raises(FindingError, match=r"took \d"):
        timed(waste_time, b"")
    with pytest.raises(FindingError):
        expect(holds=False, message="")
