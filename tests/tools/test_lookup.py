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

from cfi2sframe.sframe.decode import decode_section
from cfi2sframe.sframe.lookup import Lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.sframe.model import Rule
    from tests.support.oracle.tools import CorpusArch

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


def _compile(folder: Path, *options: str) -> Path:
    program = folder / "workload"
    subprocess.run(["cc", "-O2", "-pthread", *options, "-o", str(program), str(SOURCE)], check=True)
    return program


@pytest.fixture(name="workload", scope="module")
def _workload(script: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    assert script.unsupported() is None
    return _compile(tmp_path_factory.mktemp("program"), "-fPIE", "-pie")


def _spelled(rule: Rule | None) -> str:
    if rule is None:
        return f"{UNCHANGED}:0:0"
    base = BASE_CFA if rule.register is None else rule.register
    return f"{LOADED if rule.deref else COMPUTED}:{base}:{rule.offset}"


@pytest.mark.parametrize("version", [2, 3])
def test_rows_are_right(script: Any, reader: Path, workload: Path, tmp_path: Path, version: int) -> None:
    """The C reader finds what the package's decoder finds, in the sections of every level."""
    prepared = script.prepare(workload, tmp_path, version, 500)
    output = subprocess.run(prepared.command(reader, 0, 1), check=True, capture_output=True, text=True).stdout
    vaddrs = dict(zip(prepared.sections[::3], prepared.sections[1::3], strict=True))
    views = {way: Lookup(decode_section((tmp_path / way).read_bytes(), int(vaddrs[way], 0))) for way in script.LAYOUTS}
    found = dict.fromkeys(script.LAYOUTS, 0)
    row_counts = dict.fromkeys(script.LAYOUTS, 0)
    for line in output.splitlines():
        kind, *words = line.split()
        if kind != "row" or words[1] not in views:
            continue
        way = views[words[1]].find(int(words[0], 0))
        assert way is not None
        assert way.row is not None
        state = way.row.row.state
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
    assert (f" {LOADED}:6:" in output) == (version == 3)


def test_times(script: Any, reader: Path, workload: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measured = script.measure(reader, workload, 3, 100, 2, 2)
    assert measured.address_count > 20
    assert measured.compared_count >= 0.9 * measured.address_count
    assert measured.evicting_size >= 1 << 20
    assert {way: len(rounds) for way, rounds in measured.times.items()} == dict.fromkeys(measured.times, 2)
    assert all(time > 0 for rounds in measured.times.values() for pair in rounds for time in pair)
    lines = list(script.lines_of(measured))
    assert len(lines) == len(script.LAYOUTS) + 2
    assert lines[0].startswith(f"| workload | GNU's layout | {measured.prices['gnu'].size:,} | ")
    assert " 1.00 | " in lines[0]
    assert capsys.readouterr().out == ""


def test_ratios_are_of_rounds(script: Any) -> None:
    """A round in which the machine was slow slows all ways, and no ratio."""
    times = {way: [script.Time(10, 20), script.Time(100, 200)] for way in (*script.LAYOUTS, *script.DWARF)}
    times["O2"] = [script.Time(5, 30), script.Time(50, 300)]
    measured = script.Measured("file", times, dict.fromkeys(script.LAYOUTS, script.Prices(1000, 5.55)), 7, 7, 1 << 20)
    lines = list(script.lines_of(measured))
    assert lines[2] == "| file | -O2 | 1,000 | 5.5 | 28 | 0.50 | 0.50 | 165 | 1.50 | 1.50 |"


def test_another_answer_is_an_error(script: Any, reader: Path, workload: Path, tmp_path: Path) -> None:
    """A section whose offsets are all wrong is found out."""
    command = script.prepare(workload, tmp_path, 3, 500).command(reader, 1, 1)
    section = tmp_path / "O1"
    data = bytearray(section.read_bytes())
    # The offset of RA from the CFA, which AMD64 stores in the header.
    assert data[6] == 0xF8
    data[6] = 0xF0
    section.write_bytes(data)
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "lookup: O1: no row, or another one than the first section's\n"


def test_only_what_glibc_can_load(script: Any, workload: Path, tmp_path: Path) -> None:
    fixed = _compile(tmp_path, "-no-pie")
    with pytest.raises(script.BenchError, match="only what is position-independent"):
        script.loadable(fixed, tmp_path)
    folder = tmp_path / "copies"
    folder.mkdir()
    copy = script.loadable(workload, folder)
    assert copy == folder / "workload"
    # A flag, and where constructors are: code and CFI stay.
    changed = [a != b for a, b in zip(workload.read_bytes(), copy.read_bytes(), strict=True)]
    assert 0 < sum(changed) < 64
    # A library stays as it is.
    assert script.loadable(copy, folder) == copy


@pytest.mark.corpus
def test_files_of_other_abis_are_timed_without_dwarf(
    script: Any, reader: Path, corpus: Callable[[CorpusArch], Path]
) -> None:
    """Nothing of such a file runs here; its sections have all answers in common."""
    measured = script.measure(reader, corpus("arm64") / "usr/bin/ls", 3, 300, 1, 1)
    assert (measured.address_count, measured.compared_count) == (300, 0)
    ways = [way for way, times in measured.times.items() if times]
    assert ways == list(script.LAYOUTS)
    assert [line.split(" | ")[1] for line in script.lines_of(measured)] == [name for name, _ in script.LAYOUTS.values()]
