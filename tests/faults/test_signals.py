# SPDX-License-Identifier: Apache-2.0
"""Signals right before and right after each system call of the writing."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.faults import (
    BY_NAME,
    CALLS,
    FORMS,
    TIMEOUT_SECONDS,
    Done,
    Faults,
    Form,
    check_left,
    contents,
    expected,
    fill,
    run,
    start,
    wait_for,
)

pytestmark = [pytest.mark.sampled, pytest.mark.usefixtures("heeds_hangups")]

ALL = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
MOMENTS = [f"{call}:{when}" for call in CALLS for when in ("before", "after")]
#: When a file that is to replace another one has a name of its own already.
NAMED_MOMENTS = ("link:after", "rename:before")


def interrupt(form: Form, folder: Path, faults: Faults, moment: str, number: int, *, named: bool = False) -> None:
    """Send a signal at a moment, and check the files that are left."""
    for path in folder.iterdir():
        path.unlink()
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of(f"{moment}:{int(number)}", named=named))
    assert faults.mark.exists(), moment
    assert done == (128 + number, b"", ""), moment
    check_left(form, folder, may_be_left=number == signal.SIGKILL and (named or moment in NAMED_MOMENTS))


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


@pytest.mark.parametrize("named", [False, True])
@ALL
def test_a_kill(folder: Path, faults: Faults, unnamed_files: bool, form: Form, named: bool) -> None:  # noqa: FBT001
    """Whatever was there is still there, and the next run succeeds."""
    for moment in (*MOMENTS, *(() if named or not unnamed_files else ("link:before", "link:after"))):
        interrupt(form, folder, faults, moment, signal.SIGKILL, named=named or not unnamed_files)
        assert run(folder, *form.arguments).status == 0
        assert contents(folder).items() >= {item for item in expected(form).items() if item[0] != "report"}


def test_the_next_run_over_a_directory_removes_what_a_kill_has_left(folder: Path, faults: Faults) -> None:
    form = BY_NAME["in-place"]
    fill(form, folder)
    run(folder, *form.arguments, variables=faults.of(f"fsync:before:{int(signal.SIGKILL)}", named=True))
    (stray,) = folder.glob(".cfi2sframe-*")
    for words in (("--check", "."), ("coverage", "."), form.arguments):
        run(folder, *words)
        assert stray.exists()
    with start(folder, "in.o", "-o", "out.o", variables=faults.of("fsync:wait:0", named=True)) as writing:
        wait_for(faults.mark)
        run(folder, "--in-place", ".")
        left = set(folder.glob(".cfi2sframe-*"))
        faults.word.touch()
        assert writing.communicate(timeout=TIMEOUT_SECONDS) == (b"", b"")
    assert (len(left), stray in left) == (1, False)
    assert contents(folder).keys() == {"in.o", "out.o"}


def test_a_signal_that_the_caller_ignores(folder: Path, faults: Faults) -> None:
    """As `nohup` does for SIGHUP."""
    form = BY_NAME["in-place"]
    fill(form, folder)
    variables = faults.of(f"write:after:{int(signal.SIGHUP)}")
    done = run(folder, *form.arguments, prefix=["sh", "-c", 'trap "" HUP; exec "$@"', "sh"], variables=variables)
    assert faults.mark.exists()
    assert done == (0, b"", "")
    assert contents(folder) != dict(form.files)


# Where no exception can be raised, since the interpreter calls something by itself

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
    assert done.err.startswith("Exception ignored ")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
@pytest.mark.parametrize("name", ["raw", "raw-new", "in-place"])
def test_a_run_ends_while_it_writes(tmp_path: Path, name: str, number: signal.Signals) -> None:
    form = BY_NAME[name]
    fill(form, tmp_path)
    assert python(PROGRAM, "chmod", str(int(number)), *form.arguments, folder=tmp_path) == (128 + number, b"", "")
    assert contents(tmp_path) == dict(form.files)
    check_left(form, tmp_path)


def test_a_worker_of_a_pool_ends(tmp_path: Path) -> None:
    """A worker may finish its item first, but takes no other one."""
    program = """
from cfi2sframe.process.batch import results_of
def work(length):
    lose(signal.SIGTERM)
    time.sleep(length)
for reason in results_of(work, [float(sys.argv[1])] * 2, lambda _: 0, lambda _, reason: reason, count=2):
    print(reason)
"""
    reason = b"worker ended with exit status 130\n"
    for length in ("10", "0"):
        assert python(program, length, folder=tmp_path) == (0, reason + reason, "")
