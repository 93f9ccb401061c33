# SPDX-License-Identifier: Apache-2.0
"""The account of one input: what it grants, and its message when that is used up."""

from __future__ import annotations

import pytest

from cfi2sframe.budget import BASE_MEMORY, BASE_STEPS, MEMORY_PER_BYTE, STEPS_PER_BYTE, Budget
from cfi2sframe.errors import BudgetError


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_work_up_to_the_last_step(size: int) -> None:
    budget = Budget(size)
    budget.spend(BASE_STEPS + STEPS_PER_BYTE * size, "rows")
    with pytest.raises(BudgetError, match=f"^rows take more work than {size:,} bytes of input may$"):
        budget.spend(1, "rows")


@pytest.mark.parametrize("size", [0, 1, 4096])
def test_memory_up_to_the_last_byte(size: int) -> None:
    budget = Budget(size)
    budget.hold(BASE_MEMORY + MEMORY_PER_BYTE * size, "names")
    with pytest.raises(BudgetError, match=f"^names take more memory than {size:,} bytes of input may$"):
        budget.hold(1, "names")


def test_half_of_what_is_left() -> None:
    budget = Budget(0)
    with pytest.raises(BudgetError), budget.half():  # noqa: PT012 - what comes before the error matters
        budget.spend(BASE_STEPS // 2, "a part")
        budget.hold(BASE_MEMORY // 2, "a part")
        budget.spend(1, "more")
    budget.spend(BASE_STEPS // 2, "the rest")
    budget.hold(BASE_MEMORY // 2, "the rest")
    with pytest.raises(BudgetError):
        budget.spend(1, "more")
