# SPDX-License-Identifier: Apache-2.0
"""Objects of one idea each, and what every version makes of them, byte by byte; reviewed when it changes."""

from __future__ import annotations

import hashlib

import pytest

from tests.golden.expected import FOLDER, expected_path, objects, text_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("path", objects(), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    """After a wanted change: `make golden`, and read the difference."""
    assert text_of(path).splitlines() == expected_path(path).read_text().splitlines()


def test_every_expectation_has_its_object() -> None:
    assert len(objects()) > 10
    assert sorted(FOLDER.glob("*.expected")) == [expected_path(path) for path in objects()]


def test_the_objects_are_those_that_the_checksums_name() -> None:
    lines = (FOLDER / "SHA256SUMS").read_text().splitlines()
    assert sorted(lines) == sorted(
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}" for path in objects()
    )
