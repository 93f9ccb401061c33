# SPDX-License-Identifier: Apache-2.0
"""What most verbs are tried on: a program of one function, and its section as raw bytes."""

from pathlib import Path

import pytest

from tests.support.cli import PROGRAM, SECTION


@pytest.fixture
def good(tmp_path: Path) -> Path:
    """A linked file that can be converted."""
    path = tmp_path / "in"
    path.write_bytes(PROGRAM)
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    """Its section."""
    path = tmp_path / "raw.sframe"
    path.write_bytes(SECTION.assemble())
    return path
