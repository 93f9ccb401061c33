# SPDX-License-Identifier: Apache-2.0
"""Signals that come while the interpreter calls something by itself, where no exception can be raised."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.faults.support import BY_NAME, TIMEOUT_SECONDS, Done, check_left, contents, fill
from tests.support.cli import ROOT

if TYPE_CHECKING:
    from pathlib import Path

#: `lose()` sends a signal to this process in a weak reference's callback; the handler runs there.
LOSING = """
import os, signal, sys, time, weakref

class Thing: pass

def lose(number):
    def callback(_):
        os.kill(os.getpid(), number)
    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing
"""
#: The program, interrupted where a call of `os` is made: before the call, and with time to hear of it.
PROGRAM = """
from cfi2sframe.cli import run
call, number = sys.argv[1], int(sys.argv[2])
del sys.argv[1:3]
true = getattr(os, call)
def interrupted(*arguments, **options):
    lose(number)
    time.sleep(10)
    return true(*arguments, **options)
setattr(os, call, interrupted)
run()
"""
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def python(program: str, *arguments: str, folder: Path) -> Done:
    process = subprocess.run(
        [sys.executable, "-c", LOSING + program, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    return Done(process.returncode, process.stdout, process.stderr.decode(errors="replace"))


def test_python_loses_such_an_interrupt(tmp_path: Path) -> None:
    """If this ever ends otherwise, `keep_interrupts` is no longer needed."""
    done = python("lose(signal.SIGINT); print('on it goes')", folder=tmp_path)
    assert done[:2] == (0, b"on it goes\n")
    assert done.err.startswith("Exception ignored in")


@pytest.mark.parametrize("number", ENDING, ids=lambda number: number.name)
@pytest.mark.parametrize("name", ["raw", "raw-new", "in-place"])
def test_a_run_ends(tmp_path: Path, name: str, number: signal.Signals) -> None:
    """While it writes."""
    form = BY_NAME[name]
    fill(form, tmp_path)
    assert python(PROGRAM, "chmod", str(int(number)), *form.arguments, folder=tmp_path) == (128 + number, b"", "")
    assert contents(tmp_path) == dict(form.files)
    check_left(form, tmp_path)


def test_a_worker_of_a_pool_ends(tmp_path: Path) -> None:
    """A worker may finish its item first, but takes no other one."""
    program = """
from cfi2sframe.batch import results_of
def work(length):
    lose(signal.SIGTERM)
    time.sleep(length)
for reason in results_of(work, [float(sys.argv[1])] * 2, lambda _: 0, lambda _, reason: reason, count=2):
    print(reason)
"""
    reason = b"worker ended with exit status 130\n"
    for length in ("10", "0"):
        assert python(program, length, folder=tmp_path) == (0, reason + reason, "")
