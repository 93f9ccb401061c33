# SPDX-License-Identifier: Apache-2.0
"""Faults put into the CFI of compilers are found, nearly all."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from tests.support.cfi_faults import AARCH64, AMD64, S390X, compiled, measure, units
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.cfi_faults import Target

pytestmark = pytest.mark.oracle


def test_a_function_of_each_kind_of_frame(tmp_path: Path) -> None:
    need("gcc")
    source = tmp_path / "calls.c"
    source.write_text("int g(int); int f(int a) { return g(a) + g(1); }")
    faults = list(measure(compiled("gcc", "-O0", source, AMD64), tmp_path))
    assert len({fault.kind for fault in faults}) >= 6
    assert [fault.kind for fault in faults if not fault.is_found] == []


@pytest.mark.slow
@pytest.mark.parametrize(("target", "share"), [(AMD64, 0.99), (AARCH64, 0.99), (S390X, 0.97)])
def test_recall(target: Target, share: float, tmp_path: Path) -> None:
    counts = Counter(fault.is_found for unit in units(target) for fault in measure(unit, tmp_path))
    assert counts.total() > 1000
    assert counts[True] / counts.total() >= share
