# SPDX-License-Identifier: Apache-2.0
"""The recipe for a dask cluster, with dask where it is installed, and with executors of Python."""

from __future__ import annotations

import runpy
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from tests.support.cli import ROOT
from tests.support.jobs import TRUNCATED, has_section, object_of

if TYPE_CHECKING:
    from pathlib import Path


def check(executor: Executor, folder: Path, out: pytest.CaptureFixture[str]) -> None:
    paths = [folder / f"{number}.o" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(object_of(number) if number != 2 else TRUNCATED)
    recipe = runpy.run_path(str(ROOT / "contrib" / "dask" / "convert.py"))
    assert recipe["convert_all"](executor, map(str, paths)) == 1
    lines = sorted(out.readouterr().out.splitlines())
    assert [line for line in lines if line.endswith(": converted")] == [f"{paths[n]}: converted" for n in (0, 1, 3)]
    assert "truncated: the ELF header needs 64 bytes, the file has 40" in lines[2]
    assert [has_section(path.read_bytes()) for path in paths] == [True, True, False, True]


def test_threads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ThreadPoolExecutor(2) as executor:
        check(executor, tmp_path, capsys)


def test_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with ProcessPoolExecutor(2, get_context("spawn")) as executor:
        check(executor, tmp_path, capsys)


def test_dask(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    distributed = pytest.importorskip("distributed", reason="no dask: pip install distributed")
    with distributed.Client(processes=False, n_workers=1, threads_per_worker=2, dashboard_address=None) as client:
        check(client.get_executor(), tmp_path, capsys)
