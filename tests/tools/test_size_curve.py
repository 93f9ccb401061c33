# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/size_curve.py measures what conversion writes, and draws all of it where it can be read."""

from __future__ import annotations

import importlib.util
import sys
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.report.size.measure import measure
from tests.support.sizes import library

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "tools" / "size_curve.py"
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("size_curve_tool", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["size_curve_tool"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["size_curve_tool"]


def _curve(script: Any, name: str, ratio: float, rows: float) -> Any:
    """Return a curve as files have them: from `rows` rows, which cost the most bytes, to 40, which cost the least."""
    by_maximum = {
        maximum: script.Point(ratio + 0.2 * (40 - mean_rows) / 40, mean_rows)
        for maximum, mean_rows in zip(script.MAXIMA, (rows, 9, 11, 14, 17, 20, 25, 30, 35, 40), strict=True)
    }
    ratios = (ratio + 0.5, ratio + 0.4, ratio + 0.1, ratio)
    layouts = (script.GNU, "-O1", "-O2", "-Os")
    points = map(script.Point, ratios, (12.0, 12.5, 20.0, 40.0))
    return script.Curve(name, by_maximum, dict(zip(layouts, points, strict=True)))


def test_points_are_those_of_conversions(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(library(60))
    curve = script.curve_of(path)
    sizes = measure(load(str(path)))
    for name, options in (("-O1", Options(level=1)), ("-O2", Options(level=2)), ("-Os", Options(level="s"))):
        conversion = convert(load(str(path)), options)
        ratio = len(conversion.data) / sizes.sizes.base
        assert curve.by_layout[name] == (ratio, conversion.lookup_cost.mean_rows)
    gnu = sizes.version(3).gnu
    assert gnu is not None
    plain = convert(load(str(path)), Options(level=0))
    assert curve.by_layout[script.GNU] == (gnu.size / sizes.sizes.base, plain.lookup_cost.mean_rows)
    assert curve.by_maximum.keys() == {*script.MAXIMA}
    assert max(point.ratio for point in curve.by_maximum.values()) < curve.by_layout["-O1"].ratio


def test_files_that_nothing_makes_smaller_have_no_curve(script: Any, tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(library(1))
    curve = script.curve_of(path)
    assert curve.by_maximum == {}
    lines = list(script.table_of([curve]))
    assert lines[-3] == "| at most 256 rows | - |"
    assert "".join(script.picture_of([curve])).count("<circle") > 0


def test_table(script: Any) -> None:
    lines = list(script.table_of([_curve(script, "a", 0.5, 7), _curve(script, "b", 0.6, 8)]))
    assert len(lines) == 2 + 4 + len(script.MAXIMA)
    assert lines[0] == "| | a | b |"
    assert lines[2] == "| GNU's layout | 1.000, 12.0 | 1.100, 12.0 |"
    assert lines[-1] == "| -Os | 0.500, 40.0 | 0.600, 40.0 |"


def test_picture(script: Any) -> None:
    """It is XML, the same each time; all marks are inside it, and no two names overlap."""
    curves = [_curve(script, f"f<{number}>", ratio, 7) for number, ratio in enumerate((0.9, 0.5, 0.505, 0.51, 0.8))]
    text = "".join(script.picture_of(curves))
    assert text == "".join(script.picture_of(curves))
    root = ET.fromstring(text)  # noqa: S314 - our own
    width, height = (float(word) for word in root.attrib["viewBox"].split()[2:])
    names = [each for each in root.iter(f"{SVG}text") if each.get("class") == "own"]
    assert [each.text for each in names] == [f"f<{number}>" for number in range(5)]
    for one, other in combinations(names, 2):
        assert abs(float(one.attrib["y"]) - float(other.attrib["y"])) >= 12
    circles = list(root.iter(f"{SVG}circle"))
    # Each curve has a dot for each maximum, and marks of -O1 and -O2; two more are in the legend.
    assert len(circles) == 5 * (len(script.MAXIMA) + 2) + 2
    for each in circles:
        assert 0 < float(each.attrib["cx"]) < width
        assert 0 < float(each.attrib["cy"]) < height
    assert "prefers-color-scheme: dark" in text


def test_usage(script: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    good, bad = tmp_path / "good.so", tmp_path / "bad.so"
    good.write_bytes(library(3))
    bad.write_bytes(b"\x7fELF")
    picture = tmp_path / "picture.svg"
    monkeypatch.setattr(sys, "argv", ["size_curve.py", "--svg", str(picture), str(bad), str(good)])
    assert script.main() == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("| | good.so |\n")
    assert shown.err.startswith(f"size_curve: {bad}: ")
    assert picture.read_text().startswith("<svg ")
