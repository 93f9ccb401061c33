# SPDX-License-Identifier: Apache-2.0
"""What the wrappers link."""

from pathlib import Path

import pytest

from tests.support.contrib import SOURCES, run
from tests.support.needs import need


@pytest.fixture
def objects(tmp_path: Path) -> list[str]:
    """The project's objects, in the test's folder."""
    need("cc", "ld")
    run("cc", "-O2", "-c", *SOURCES, cwd=tmp_path)
    return ["main.o", "words.o"]
