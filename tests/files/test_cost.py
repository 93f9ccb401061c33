# SPDX-License-Identifier: Apache-2.0
"""Archives with large claims: within the bound, and without loss of other results."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tests.support import archives as make
from tests.support.bounds import MIB, TOO_COSTLY, run_within_bound
from tests.support.sizes import library

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]


def _size(path: Path, stored_size: int | None = None) -> BoundedRun:
    """Measure an archive beside a good file, whose result is not to be lost."""
    good = path.with_name("good.so")
    good.write_bytes(library(1))
    size = path.stat().st_size if stored_size is None else stored_size
    run = run_within_bound("size", path, good, "-j", "1", "--format", "csv", input_size=size + good.stat().st_size)
    assert f'\n"{good}","AMD64",' in run.out
    return run


def test_sparse_files(tmp_path: Path) -> None:
    """Holes are no input, and are not read."""
    size = 9 << 30
    data = make.ar([]) + make.ar_header(b"//", size)
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(len(data) + size)
    if os.stat(path).st_blocks * 512 > MIB:
        pytest.skip("this file system has no holes")
    run = _size(path, len(data))
    assert run.seconds < 1.5
    assert TOO_COSTLY in run.out + run.err
