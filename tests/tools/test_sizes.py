# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""bench/sizes.py adds files up, and holds their sums to its goals."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.sframe.lookup_cost import add_costs
from tests.support.sizes import library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.conversion import Level

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "sizes.py"
LEVELS: tuple[Level, ...] = (0, 1, 2, "s")


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("sizes_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sizes_bench"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["sizes_bench"]


@pytest.fixture(name="files", scope="module")
def _files(script: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    folder = tmp_path_factory.mktemp("sizes")
    files = []
    for count in (3, 40):
        path = folder / f"{count}.so"
        path.write_bytes(library(count))
        files.append(script.measure(str(path), (2, 3), LEVELS))
    return files


def test_every_level_is_measured(files: list[Any]) -> None:
    for file in files:
        for version in (2, 3):
            for level in LEVELS:
                conversion = convert(load(file.path), Options(version=version, level=level))
                made = file.section(version, level)
                assert (made.size, made.lookup_cost) == (len(conversion.data), conversion.lookup_cost)


def test_sums(script: Any, files: list[Any]) -> None:
    for level in LEVELS:
        summary = script.summarize(files, 3, level, 1)
        made = [file.section(3, level) for file in files]
        assert summary.size == sum(each.size for each in made)
        assert summary.lookup_cost == add_costs(each.lookup_cost for each in made)
        assert len(summary.worst) == 1
    lines = list(script.lines_of([script.summarize(files, 3, level, 1) for level in LEVELS], "s"))
    assert [line.split()[1] for line in lines[1:5]] == ["0", "1", "2", "s"]
    assert len({len(line) for line in lines[:5]}) == 1


def test_goals(script: Any, files: list[Any]) -> None:
    summaries = [script.summarize(files, 3, level, 1) for level in LEVELS]
    shared, split, smallest = summaries[1:]
    cost = shared.lookup_cost
    quicker = cost._replace(walked_count=cost.walked_count - 1)
    slower = cost._replace(walked_count=cost.walked_count + 1)
    met = script.verdicts(
        [
            shared._replace(seconds=1.0),
            split._replace(whole_size=100, size=52, larger_count=149, lookup_cost=quicker, seconds=2.0),
            smallest._replace(whole_size=100, size=47),
        ]
    )
    assert [line.split(": ")[-1].split(";")[0] for line in met] == ["met", "met", "met", "met", "2.00"]
    missed = script.verdicts(
        [
            shared._replace(seconds=1.0),
            split._replace(whole_size=100, size=53, larger_count=150, lookup_cost=slower, slower_count=1),
            smallest._replace(whole_size=100, size=48),
        ]
    )
    lines = list(missed)
    assert [line.split(": ")[-1].split(";")[0] for line in lines[:4]] == ["MISSED"] * 4
    assert lines[3].endswith("more in 1 of 2 files")
