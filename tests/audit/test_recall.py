# SPDX-License-Identifier: Apache-2.0
"""Faults put into the CFI of compilers are found, nearly all."""

from __future__ import annotations

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
    faults = [fault for unit in units(target) for fault in measure(unit, tmp_path)]
    missed = [f"{fault.kind}, {fault.unit}: {fault.lines}" for fault in faults if not fault.is_found]
    assert len(faults) > 1000
    assert len(missed) <= (1 - share) * len(faults), missed
