# SPDX-License-Identifier: Apache-2.0
"""Every seed and every kept fuzz input again. No fuzzing engine is needed."""

import pytest

from tests.fuzz.harness import TARGETS, FindingError, inputs, measured, target, timed

pytestmark = pytest.mark.fuzz


@pytest.mark.parametrize("name", TARGETS)
def test_inputs_raise_nothing_and_cost_little(name: str) -> None:
    run = target(name).run
    for number, (each, data) in enumerate(inputs(name).items()):
        if number == 0:
            # What is imported at the first run is not the first input's fault.
            run(data)
        try:
            timed(run, data)
        except FindingError as error:
            raise AssertionError(f"{name}/{each}: {error}") from error


@pytest.mark.slow
@pytest.mark.parametrize("name", TARGETS)
def test_memory_is_bounded(name: str) -> None:
    run = target(name).run
    for data in inputs(name).values():
        run(data)
        measured(run, data)
