# SPDX-License-Identifier: Apache-2.0
"""bench/lookup.py prints a table, and refuses sections that give other rows."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import convert
from tests.support.needs import need
from tests.support.sizes import library

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the benchmark is for files of AMD64"),
]

BENCH: Final = Path(__file__).resolve().parents[2] / "bench"


def test_the_table(tmp_path: Path) -> None:
    path = tmp_path / "library.so"
    source = "void g(int *); int f(void) { int a = 1; g(&a); g(&a); return a; }"
    compile_it = [need("gcc"), "-O2", "-fPIC", "-shared", "-x", "c", "-", "-o", str(path)]
    subprocess.run(compile_it, input=source, text=True, check=True)
    command = [sys.executable, str(BENCH / "lookup.py"), "--rounds", "2", str(path)]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    cells = [line.strip("| ").split(" | ") for line in lines[2:]]
    made = convert(path, level=0), convert(path, level=1), convert(path, level=2)
    assert [row[0] for row in cells] == ["library.so"] * 3
    assert [row[1] for row in cells] == ["GNU's layout", "-O1", "-O2"]
    assert [row[2] for row in cells] == [f"{len(conversion.data):,}" for conversion in made]
    assert cells[0][5] == "1.00"
    assert all(float(row[3]) >= 1 and float(row[5]) > 0 for row in cells)


def test_another_answer_is_an_error(tmp_path: Path) -> None:
    reader = tmp_path / "lookup"
    subprocess.run([need("cc"), "-o", reader, BENCH / "lookup.c"], check=True)
    conversion = convert(library(40))
    wrong = bytearray(conversion.data)
    # The offset of RA from the CFA, which AMD64 stores in the header.
    assert wrong[6] == 0xF8
    wrong[6] = 0xF0
    (tmp_path / "right").write_bytes(conversion.data)
    (tmp_path / "wrong").write_bytes(wrong)
    (tmp_path / "addresses").write_bytes(conversion.section.functions[0].start_vaddr.to_bytes(8, "little"))
    vaddr = str(conversion.section_vaddr)
    command: list[str | Path] = [
        reader,
        tmp_path / "addresses",
        "1",
        vaddr,
        tmp_path / "right",
        vaddr,
        tmp_path / "wrong",
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"lookup: {tmp_path}/wrong: no row, or another one than the first section's\n"
