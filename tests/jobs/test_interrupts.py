# SPDX-License-Identifier: Apache-2.0
"""Batches that are interrupted: every file is the old one or the new one, nothing else is left, nothing is printed."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cli import ROOT
from tests.support.jobs import has_section, object_of

FUNCTIONS = 500
#: Enough for processes, and for the run to last longer than the test looks.
COUNT = 60
PADDING = bytes(1 << 16)
TIMEOUT_SECONDS = 60


def start(*words: str) -> subprocess.Popen[str]:
    """Start the program in a session of its own, and slower than what watches it."""
    return subprocess.Popen(
        ["nice", "-n", "19", sys.executable, "-m", "cfi2sframe", *words],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def wait_for_the_first(folder: Path, process: subprocess.Popen[str], untouched: dict[str, int]) -> None:
    """Wait until a file has been exchanged."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while process.poll() is None and time.monotonic() < end:
        if any(path.stat().st_ino != untouched.get(path.name) for path in folder.glob("*.o")):
            return
        time.sleep(0.005)
    pytest.fail(f"nothing happened: {process.communicate()}")


def is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize(("number", "to_all"), [(signal.SIGINT, True), (signal.SIGINT, False), (signal.SIGTERM, False)])
def test_an_interrupt(tmp_path: Path, jobs: int, number: signal.Signals, *, to_all: bool) -> None:
    """A terminal sends it to all processes of the group, others to one; either way all of them end."""
    old = object_of(FUNCTIONS) + PADDING
    for index in range(COUNT):
        (tmp_path / f"{index:02}.o").write_bytes(old)
    names = {path.name for path in tmp_path.iterdir()}
    untouched = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    with start("--in-place", "-r", "--for", "ld", str(tmp_path), "-j", str(jobs)) as process:
        wait_for_the_first(tmp_path, process, untouched)
        (os.killpg if to_all else os.kill)(process.pid, number)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    assert (process.returncode, out) == (128 + number, "")
    said = re.fullmatch(r"cfi2sframe: error: interrupted: (\d+) of 60 files done; rerun to continue\n", err)
    assert said is not None, err
    assert {path.name for path in tmp_path.iterdir()} == names
    contents = [path.read_bytes() for path in tmp_path.iterdir()]
    new = next(data for data in contents if data != old)
    assert has_section(new)
    assert set(contents) == {old, new}
    # A file may be done whose process was interrupted before it could say so.
    assert contents.count(old) <= COUNT - int(said[1])
    end = time.monotonic() + TIMEOUT_SECONDS
    while not is_gone(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert is_gone(process.pid)


@pytest.mark.sampled
@pytest.mark.usefixtures("heeds_hangups")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_process_stays_when_size_is_interrupted(tmp_path: Path, number: signal.Signals) -> None:
    """Not even when the first process is killed: the others find their pipes closed."""
    data = object_of(FUNCTIONS)
    for index in range(COUNT):
        (tmp_path / f"{index:02}.o").write_bytes(data)
    with start("size", str(tmp_path), "-j", "2") as process:
        end = time.monotonic() + TIMEOUT_SECONDS
        while process.poll() is None and time.monotonic() < end and len(children(process.pid)) < 2:
            time.sleep(0.005)
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    code = process.returncode
    assert (code if code >= 0 else 128 - code, out, err) == (128 + number, "", "")
    while not is_gone(process.pid) and time.monotonic() < end:
        time.sleep(0.01)
    assert is_gone(process.pid)


def children(process: int) -> list[int]:
    with open(f"/proc/{process}/task/{process}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]
