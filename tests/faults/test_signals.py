# SPDX-License-Identifier: Apache-2.0
"""Signals right before and right after each system call of the writing, and at random moments of a run."""

from __future__ import annotations

import random
import re
import signal
import time
from typing import TYPE_CHECKING

import pytest

from tests.faults.support import BY_NAME, FORMS, TIMEOUT_SECONDS, Faults, Form, check_left, contents, fill, run, start

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
ALL = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
#: A line of a traceback that is in the program, past what the interpreter needs to find its first line.
PROGRAM_FRAME = re.compile(r'File ".*/cfi2sframe/(?!__init__|__main__|cli/__init__|cli/exit_status|interrupts)')
NO_UNNAMED = "tmpfile:error:95"


def moments(form: Form, *, is_named: bool = False) -> list[str]:
    calls = [*form.moments]
    if is_named:
        calls = ["create" if call == "tmpfile" else call for call in calls if call != "link"]
        if "rename" not in calls:
            calls.append("rename")
    return [f"{call}:{when}" for call in calls for when in ("before", "after")]


def interrupt(form: Form, folder: Path, faults: Faults, moment: str, number: int, *more: str) -> None:
    """Send a signal at a moment, and check the files that are left."""
    for path in folder.iterdir():
        path.unlink()
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of(*more, f"{moment}:{int(number)}"))
    assert faults.mark.exists(), moment
    assert done == (128 + number, b"", ""), moment
    check_left(form, folder)


@ALL
def test_a_signal_at_each_call(folder: Path, faults: Faults, form: Form) -> None:
    for moment in moments(form):
        interrupt(form, folder, faults, moment, signal.SIGTERM)


@pytest.mark.parametrize("name", ["raw-new", "in-place"])
def test_two_signals(folder: Path, faults: Faults, name: str) -> None:
    """The second signal comes during the clean-up after the first."""
    form = BY_NAME[name]
    fill(form, folder)
    variables = faults.of(NO_UNNAMED, f"write:after:{int(signal.SIGTERM)}", f"unlink:before:{int(signal.SIGINT)}")
    done = run(folder, *form.arguments, variables=variables)
    assert done == (128 + signal.SIGTERM, b"", "")
    assert contents(folder) == dict(form.files)


@ALL
def test_a_kill_leaves_nothing_either(folder: Path, faults: Faults, form: Form) -> None:
    """Except between the two calls that exchange a name: the new file then has a name of its own, and is whole."""
    for moment in moments(form):
        if "rename" in form.moments and moment in ("link:after", "rename:before"):
            continue
        interrupt(form, folder, faults, moment, signal.SIGKILL)


@pytest.mark.parametrize("moment", ["link:after", "rename:before"])
def test_what_a_kill_leaves_at_the_one_moment(folder: Path, faults: Faults, moment: str) -> None:
    form = BY_NAME["in-place"]
    fill(form, folder)
    assert (
        run(folder, *form.arguments, variables=faults.of(f"{moment}:{int(signal.SIGKILL)}")).status
        == 128 + signal.SIGKILL
    )
    left = contents(folder)
    (stray,) = left.keys() - {"in.o"}
    assert stray.startswith(".cfi2sframe-")
    assert left["in.o"] == dict(form.files)["in.o"]
    assert run(folder, *form.arguments).status == 0
    assert contents(folder)["in.o"] == left[stray]


def test_a_signal_that_the_caller_ignores(folder: Path, faults: Faults) -> None:
    """As `nohup` does for SIGHUP."""
    form = BY_NAME["in-place"]
    fill(form, folder)
    variables = faults.of(f"write:after:{int(signal.SIGHUP)}")
    done = run(folder, *form.arguments, prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"], variables=variables)
    assert faults.mark.exists()
    assert done == (0, b"", "")
    assert contents(folder) != dict(form.files)


def at_random(form: Form, folder: Path, count: int, numbers: tuple[signal.Signals, ...]) -> None:
    """Send signals at moments spread over the length of a run."""
    fill(form, folder)
    began = time.monotonic()
    run(folder, *form.arguments)
    length = time.monotonic() - began
    source = random.Random(1)  # noqa: S311 - moments, no secrets
    for _ in range(count):
        for path in folder.iterdir():
            path.unlink()
        fill(form, folder)
        number = source.choice(numbers)
        with start(folder, *form.arguments) as process:
            time.sleep(source.uniform(0, length))
            process.send_signal(number)
            _, err = process.communicate(timeout=TIMEOUT_SECONDS)
        if err or process.returncode == 1:
            # Before the first line of the program, the interpreter answers to an interrupt in its own way.
            assert number == signal.SIGINT
            assert not PROGRAM_FRAME.search(err.decode())
            assert contents(folder) == dict(form.files)
        else:
            assert process.returncode in (0, -number, 128 + number)
        check_left(form, folder)


def test_signals_at_random_moments(folder: Path) -> None:
    at_random(BY_NAME["in-place"], folder, 10, (*ENDING, signal.SIGKILL))
