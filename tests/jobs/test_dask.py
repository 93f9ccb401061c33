# SPDX-License-Identifier: Apache-2.0
"""The example under contrib/dask: the same bytes as here, by a cluster of its own and by one that runs already."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.cli import ROOT
from tests.support.jobs import TRUNCATED, object_of, object_with_gap, tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("distributed") is None, reason="Dask is not here: pip install 'dask[distributed]'"
    ),
]

COUNT = 40


def convert(folder: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join((str(ROOT), str(ROOT / "contrib/dask")))
    return subprocess.run(
        [sys.executable, "-m", "cfi2sframe", "--in-place", "-r", "--objects", str(folder), "-j", "2", *words],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )


@pytest.mark.parametrize("is_running", [False, True])
def test_a_cluster_gives_the_same_bytes(tmp_path: Path, *, is_running: bool) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder in (here, there):
        folder.mkdir()
        for number in range(COUNT):
            data = {3: object_with_gap(), 7: TRUNCATED}.get(number) or object_of(number)
            (folder / f"{number:02}.o").write_bytes(data)
    reports = tmp_path / "report-here", tmp_path / "report-there"
    expected = convert(here, "--report", str(reports[0]))
    assert expected.returncode == 3
    words = ("--executor", "cfi2sframe_dask:executor")
    if is_running:
        # Not here, or here without types: mypy is to see the same everywhere.
        dask: Any = importlib.import_module("distributed")

        # The workers have what this process has: the paths of the repository.
        with (
            dask.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            dask.Client(cluster) as client,
        ):
            client.run(sys.path.insert, 0, str(ROOT))
            address = {"CFI2SFRAME_DASK_SCHEDULER": cluster.scheduler_address}
            done = convert(there, *words, "--report", str(reports[1]), **address)
            before = tree(there)
            again = convert(there, *words, **address)
    else:
        done = convert(there, *words, "--report", str(reports[1]))
        before = tree(there)
        again = convert(there, *words)
    assert done.returncode == again.returncode == 3
    errors = [line for line in done.stderr.splitlines() if line.startswith("cfi2sframe: ")]
    assert [line.replace(str(there), "") for line in errors] == [
        line.replace(str(here), "") for line in expected.stderr.splitlines()
    ]
    assert {name: file.data for name, file in tree(here).items()} == {name: f.data for name, f in before.items()}
    assert tree(there) == before
    texts = [report.read_text().replace(str(folder), "") for report, folder in zip(reports, (here, there), strict=True)]
    assert texts[0] == texts[1]
    assert len([json.loads(line) for line in texts[0].splitlines()]) == COUNT
