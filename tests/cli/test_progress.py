# SPDX-License-Identifier: Apache-2.0
"""What is printed about many files, and while a run takes long."""

import os
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from cfi2sframe.cli.progress import Files
from tests.support.cli import ROOT
from tests.support.jobs import OBJECT, object_of

#: The program, whose runs are long after some hundredths of a second, and in which files called "slow" take 0.35 s.
SLOW = """
import sys, time
from cfi2sframe.conversion import convert
from cfi2sframe.cli import progress, run
progress._FIRST_SECONDS = progress._INTERVAL_SECONDS = progress._TERMINAL_INTERVAL_SECONDS = 0.08
if {hides_tqdm}:
    sys.modules["tqdm"] = None
true = convert.read_cfi
def slow(image, *arguments):
    end = time.monotonic() + 0.35 * ("slow" in image.name)
    while time.monotonic() < end:
        pass
    return true(image, *arguments)
convert.read_cfi = slow
run()
"""


def run_slowly(*words: str | Path, stderr: int = subprocess.PIPE, hides_tqdm: bool = False) -> str:
    done = subprocess.run(
        [sys.executable, "-P", "-c", SLOW.format(hides_tqdm=hides_tqdm), *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CFI2SFRAME_PROGRESS": "always"},
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stderr or ""


@pytest.mark.parametrize("words", ["FILE -o FILE.sframe", "coverage FILE", "verify --would-be FILE"])
def test_a_long_run_about_a_file_names_it(tmp_path: Path, words: str) -> None:
    path = tmp_path / "slow.o"
    path.write_bytes(OBJECT)
    err = run_slowly(*words.replace("FILE", str(path)).split())
    assert f"cfi2sframe: info: processing {path} (" in err
    assert len(re.findall(r" \(\d+ s\)\n", err)) >= 2


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_long_run_says_how_far_it_is(tmp_path: Path, jobs: str) -> None:
    for number in range(4):
        (tmp_path / f"slow{number}.o").write_bytes(object_of(number) + bytes(1 << 18))
    err = run_slowly("--in-place", "-r", "--for", "ld", tmp_path, "-j", jobs)
    found = re.findall(r"info: (\d) of 4 files(?:, about \d+ s left)?, processing \S+slow\d.o \(", err)
    assert len(found) >= 3
    assert found == sorted(found)


def test_the_time_left_is_guessed_when_a_tenth_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFI2SFRAME_PROGRESS", "never")
    with Files({"first": 9, "second": 1, "third": 90}) as files:
        files.add("first")
        assert files.line() == "1 of 3 files, processing second"
        files.add("second")
        assert files.line() == "2 of 3 files, about 0 s left, processing third"


@pytest.mark.parametrize("hides_tqdm", [False, True])
def test_a_terminal_has_a_bar_or_a_line_that_is_redrawn(tmp_path: Path, *, hides_tqdm: bool) -> None:
    if not hides_tqdm:
        pytest.importorskip("tqdm")
    for number in range(3):
        (tmp_path / f"slow{number}.o").write_bytes(object_of(number))
    terminal, end = os.openpty()
    termios.tcsetwinsize(end, (24, 120))
    with os.fdopen(end, "wb"):
        run_slowly("--in-place", "-r", "--for", "ld", tmp_path, "-j", "1", stderr=end, hides_tqdm=hides_tqdm)
        shown = os.read(terminal, 1 << 16).decode()
    os.close(terminal)
    assert ("2 of 3 files]" in shown) == (not hides_tqdm)
    lines = [
        line for line in shown.split("\r") if re.match(r"\033\[Kcfi2sframe: info: \d of 3 files.*processing ", line)
    ]
    assert bool(lines) == hides_tqdm
    assert all("\n" not in line and len(line) < 120 + len("\033[K") for line in lines)
    assert "info: 3 files: 3 converted" in shown


def test_progress_can_be_switched_off(tmp_path: Path) -> None:
    path = tmp_path / "slow.o"
    path.write_bytes(OBJECT)
    done = subprocess.run(
        [sys.executable, "-P", "-c", SLOW.format(hides_tqdm=False), str(path), "-o", str(tmp_path / "out.o")],
        env={**os.environ, "PYTHONPATH": str(ROOT), "CFI2SFRAME_PROGRESS": "never"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
