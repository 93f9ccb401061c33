# SPDX-License-Identifier: Apache-2.0
"""Folders, file systems and the shim; a test skips with a reason if they are not available."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.faults import Faults
from tests.support.needs import need

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library to preload."""
    compiler = shutil.which("gcc") or need("cc")
    library = tmp_path_factory.mktemp("shim") / "shim.so"
    options = ["-shared", "-fPIC", "-O1", "-Wall", "-Werror"]
    command = [compiler, *options, "-o", str(library), str(HERE / "shim.c"), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return library


@pytest.fixture
def faults(shim: Path, tmp_path: Path) -> Faults:
    place = tmp_path / "marks"
    place.mkdir()
    return Faults(shim, place)


@pytest.fixture
def unnamed_files(folder: Path) -> bool:
    """Whether the file system makes files without a name."""
    try:
        os.close(os.open(folder, os.O_TMPFILE | os.O_RDWR))
    except OSError:
        return False
    return True


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "folder"
    path.mkdir()
    return path
