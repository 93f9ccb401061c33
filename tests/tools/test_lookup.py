# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""bench/lookup.py times readers that find the right rows, and says so where two readers disagree."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe.sframe.read import read_section

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.sframe.model import Rule

pytestmark = pytest.mark.oracle

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "bench" / "lookup.py"
#: A program with stacks of many kinds. Some functions realign theirs: their rows are flexible in version 3.
SOURCE = ROOT / "tests/support/consumer/workload.c"
#: As `lookup.h` numbers them.
UNCHANGED, COMPUTED, LOADED = range(3)
BASE_CFA = 0xFF


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("lookup_bench", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lookup_bench"] = module
    spec.loader.exec_module(module)
    reason = module.unsupported()
    if reason is not None:
        pytest.skip(reason)
    yield module
    del sys.modules["lookup_bench"]


@pytest.fixture(name="reader", scope="module")
def _reader(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    program: Path = script.build(tmp_path_factory.mktemp("reader"))
    return program


@pytest.fixture(name="workload", scope="module")
def _workload(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert script.unsupported() is None
    library = tmp_path_factory.mktemp("library") / "workload"
    subprocess.run(["cc", "-O2", "-pthread", "-fPIC", "-shared", "-o", str(library), str(SOURCE)], check=True)
    return library


def _spelled(rule: Rule | None) -> str:
    if rule is None:
        return f"{UNCHANGED}:0:0"
    base = BASE_CFA if rule.register is None else rule.register
    return f"{LOADED if rule.deref else COMPUTED}:{base}:{rule.offset}"


def test_rows_are_right(script: Any, reader: Path, workload: Path, tmp_path: Path) -> None:
    """The C reader finds what the package's decoder finds, in the sections of every level."""
    prepared = script.prepare(workload, tmp_path, 500)
    output = subprocess.run(prepared.command(reader, 0), check=True, capture_output=True, text=True).stdout
    vaddrs = dict(zip(prepared.sections[::3], prepared.sections[1::3], strict=True))
    views = {way: read_section((tmp_path / way).read_bytes(), int(vaddrs[way], 0)) for way in script.LAYOUTS}
    found = dict.fromkeys(script.LAYOUTS, 0)
    row_counts = dict.fromkeys(script.LAYOUTS, 0)
    for line in output.splitlines():
        kind, *words = line.split()
        if kind != "row" or words[1] not in views:
            continue
        way = views[words[1]].find(int(words[0], 0))
        assert way is not None
        assert way.row is not None
        state = way.row.state
        rules = [_spelled(state.cfa), _spelled(state.ra), _spelled(state.fp)]
        if state.cfa is None:
            assert words[2:] == ["1", "0:0:0", "0:0:0", "0:0:0"]
        else:
            assert words[2:] == ["0", *rules]
        found[words[1]] += 1
        row_counts[words[1]] += 1 + way.function.rows.index(way.row)
    (count,) = {*found.values()}
    assert count > 20
    assert row_counts == {name: round(count * prices.mean_rows) for name, prices in prepared.prices.items()}
    # CFA = *(FP + offset), in a flexible row.
    assert f" {LOADED}:6:" in output


def test_times(script: Any, reader: Path, workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = script.measure(reader, workload, 100, 2)
    assert measured.address_count > 20
    assert measured.compared_count >= 0.9 * measured.address_count
    assert {way: len(rounds) for way, rounds in measured.times.items()} == dict.fromkeys(measured.times, 2)
    assert all(time > 0 for rounds in measured.times.values() for time in rounds)
    lines = list(script.lines_of(measured))
    assert len(lines) == len(script.LAYOUTS) + 1
    assert lines[0].startswith(f"| workload | GNU's layout | {measured.prices['gnu'].size:,} | ")
    assert " 1.00 | " in lines[0]
    assert capsys.readouterr().out == ""


def test_ratios_are_of_rounds(script: Any) -> None:
    """A round in which the machine was slow slows all ways, and no ratio."""
    times = {way: [20.0, 200.0] for way in (*script.LAYOUTS, *script.DWARF)}
    times["O2"] = [10.0, 100.0]
    measured = script.Measured("file", times, dict.fromkeys(script.LAYOUTS, script.Prices(1000, 5.55)), 7, 7)
    lines = list(script.lines_of(measured))
    assert lines[2] == "| file | -O2 | 1,000 | 5.5 | 55 | 0.50 | 0.50 |"


def test_another_answer_is_an_error(script: Any, reader: Path, workload: Path, tmp_path: Path) -> None:
    """A section whose offsets are all wrong is found out."""
    command = script.prepare(workload, tmp_path, 500).command(reader, 1)
    section = tmp_path / "O1"
    data = bytearray(section.read_bytes())
    # The offset of RA from the CFA, which AMD64 stores in the header.
    assert data[6] == 0xF8
    data[6] = 0xF0
    section.write_bytes(data)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "lookup: O1: no row, or another one than the first section's\n"
