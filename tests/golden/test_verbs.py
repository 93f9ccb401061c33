# SPDX-License-Identifier: Apache-2.0
"""The words of every verb, in one place; `make golden` rewrites them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.golden.verbs import PATH, text

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_what_the_verbs_print(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert text().splitlines() == PATH.read_text().splitlines()
