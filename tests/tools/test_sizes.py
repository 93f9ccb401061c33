# SPDX-License-Identifier: Apache-2.0
"""bench/sizes.py prints the ratios of what conversions make."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from cfi2sframe import convert, load
from tests.support.sizes import library

SCRIPT = Path(__file__).resolve().parents[2] / "bench" / "sizes.py"


def test_ratios(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    path.write_bytes(library(40))
    command = [sys.executable, str(SCRIPT), "--jobs", "1", "--level", "1", "--level", "2", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    cells = lines[-1].strip("| ").split(" | ")
    assert cells[:2] == [str(path), "1"]
    cfi_size = int(cells[3].replace(",", ""))
    made = [len(convert(load(path), level=level).data) for level in (1, 2)]
    assert cells[5:] == [f"{size / cfi_size:.3f}" for size in made]
    assert float(cells[4]) >= float(cells[5])
