# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/size_table.py prints the numbers of the report, and names what it could not measure."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.report.size.measure import measure
from tests.support.samples import TEXT_VADDR
from tests.support.sizes import library, s390x_library, unsayable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "size_table.py"


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("size_table_tool", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["size_table_tool"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["size_table_tool"]


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a.so").write_bytes(library(40))
    (root / "b.so").write_bytes(library(2, more=(unsayable(TEXT_VADDR + 0x200),)))
    (root / "broken.so").write_bytes(library(2)[:100])
    (root / "text").write_text("not ELF\n")
    (root / "again.so").hardlink_to(root / "a.so")
    return root


def test_task(script: Any, tree: Path) -> None:
    sources, failures = script.split_found(script.find_sources([str(tree)]))
    assert failures == []
    by_name = {Path(source.path).name: script.measure_task(source, with_split=True) for source in sources}
    # Hard links count once, and what is no ELF file does not count; the name that sorts first is the one kept.
    assert by_name.keys() == {"a.so", "b.so", "broken.so"}
    for name in ("a.so", "b.so"):
        image = load(str(tree / name))
        task = by_name[name]
        assert task.measured.results == (measure(image),)
        conversion = convert(image, Options(version=3, level=2))
        assert task.splits == ((len(conversion.data), conversion.lookup_cost),)
        assert task.cpu_seconds >= 0
        assert task.split_cpu_seconds >= 0
        assert task.peak_size > 1 << 20
    assert (by_name["broken.so"].splits, len(by_name["broken.so"].measured.results)) == ((), 1)
    assert script.measure_task(sources[0], with_split=False).splits == ()


def test_table(script: Any, tree: Path) -> None:
    one = script.measure_installation([str(tree)], 1, with_split=True)
    files = {file.name: file for file in one.report.files}
    assert len(files) == 2
    (bad,) = one.report.failures
    assert bad.name.endswith("broken.so")
    assert not bad.is_expected
    rows = script.summary_table({"one": one}).rows
    cells = dict(rows)
    assert cells["ELF files with CFI"] == "2"
    assert cells["functions (FDEs)"] == f"{sum(file.fde_count for file in files.values())}"
    assert cells["version 3: left out"] == "1 (2.326 %)"
    for split, level in zip(one.splits, ("-O2",), strict=True):
        ratio = split.size / one.report.totals.sizes.base
        assert cells[f"version 3 by cfi2sframe {level}"].endswith(f"({ratio:.2f})")
    costs = [
        *(total.section(maker).lookup_cost for total in one.report.totals.versions for maker in ("cfi2sframe", "gnu")),
        *(split.lookup_cost for split in one.splits),
    ]
    walked = [row[1] for row in rows if row[0] == "rows walked for a look-up"]
    assert walked == [f"{cost.mean_rows:.1f} ({cost.max_rows})" for cost in costs]
    larger = [row[1] for row in rows if "files where" in row[0]]
    expected = [
        str(sum(section.size > file.sizes.base for file in files.values() if (section := file.section(version, maker))))
        for version in (1, 2, 3)
        for maker in ("cfi2sframe", "gnu")
    ]
    assert larger == expected


def test_version_that_is_not_defined(script: Any, tmp_path: Path) -> None:
    (tmp_path / "z.so").write_bytes(s390x_library())
    column = script.measure_installation([str(tmp_path)], 1, with_split=False)
    rows = [row for row in script.summary_table({"z": column}).rows if row[0].startswith("version 1")]
    assert rows == [
        ("version 1: left out", "not defined"),
        ("version 1 by cfi2sframe", ""),
        ("version 1 by GNU as + ld", ""),
    ]
    assert not any("-O2" in row[0] for row in script.summary_table({"z": column}).rows)


def test_command_line(tree: Path, tmp_path: Path) -> None:
    account = tmp_path / "account.json"
    command = [sys.executable, str(SCRIPT), "--jobs", "2", "--json", str(account), f"here={tree}", "gone=/no/such/path"]
    run = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})
    assert run.returncode == 0
    assert "| ELF files with CFI | 2 |" in run.stdout
    assert "broken.so: " in run.stderr
    assert "/no/such/path is not here" in run.stderr
    assert "Traceback" not in run.stderr
    written = json.loads(account.read_text())
    assert sum(written["here"]["left_out"]["3"].values()) == 1
    assert len(written["here"]["failures"]) == 1
