# SPDX-License-Identifier: Apache-2.0
"""Mount file systems for a test; it skips where that is not permitted."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@contextmanager
def mounting() -> Iterator[Callable[..., None]]:
    """Give a function: `mount(POINT, WORD...)` calls mount(8) with the words; all is unmounted at the end."""
    made: list[Path] = []

    def mount(point: Path, *words: str | Path) -> None:
        if not point.exists():
            point.mkdir()
        done = subprocess.run(["mount", *map(str, words), str(point)], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        made.append(point)

    need("mount")
    try:
        yield mount
    finally:
        for point in reversed(made):
            subprocess.run(["umount", point], check=True)
