# SPDX-License-Identifier: Apache-2.0
"""Signals right before and right after each system call of the writing."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from tests.faults.support import (
    BY_NAME,
    CALLS,
    FORMS,
    Faults,
    Form,
    check_left,
    contents,
    expected,
    fill,
    run,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

ALL = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
MOMENTS = [f"{call}:{when}" for call in CALLS for when in ("before", "after")]


def interrupt(form: Form, folder: Path, faults: Faults, moment: str, number: int) -> None:
    """Send a signal at a moment, and check the files that are left."""
    for path in folder.iterdir():
        path.unlink()
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of(f"{moment}:{int(number)}"))
    assert faults.mark.exists(), moment
    assert done == (128 + number, b"", ""), moment
    check_left(form, folder, was_killed=number == signal.SIGKILL)


@ALL
def test_a_signal_at_each_call(folder: Path, faults: Faults, form: Form) -> None:
    for moment in MOMENTS:
        interrupt(form, folder, faults, moment, signal.SIGTERM)


@pytest.mark.parametrize("name", ["raw-new", "in-place"])
def test_two_signals(folder: Path, faults: Faults, name: str) -> None:
    """The second signal comes during the clean-up after the first."""
    form = BY_NAME[name]
    fill(form, folder)
    variables = faults.of(f"write:after:{int(signal.SIGTERM)}", f"unlink:before:{int(signal.SIGINT)}")
    done = run(folder, *form.arguments, variables=variables)
    assert done == (128 + signal.SIGTERM, b"", "")
    assert contents(folder) == dict(form.files)


@ALL
def test_a_kill(folder: Path, faults: Faults, form: Form) -> None:
    """Whatever was there is still there, and the next run succeeds."""
    for moment in MOMENTS:
        interrupt(form, folder, faults, moment, signal.SIGKILL)
        assert run(folder, *form.arguments).status == 0
        assert contents(folder).items() >= {item for item in expected(form).items() if item[0] != "report"}


def test_a_signal_that_the_caller_ignores(folder: Path, faults: Faults) -> None:
    """As `nohup` does for SIGHUP."""
    form = BY_NAME["in-place"]
    fill(form, folder)
    variables = faults.of(f"write:after:{int(signal.SIGHUP)}")
    done = run(folder, *form.arguments, prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"], variables=variables)
    assert faults.mark.exists()
    assert done == (0, b"", "")
    assert contents(folder) != dict(form.files)
