# SPDX-License-Identifier: Apache-2.0
"""What is printed about many files, and while a run takes long."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import termios
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.cli.outcomes import few_lines
from cfi2sframe.cli.progress import Files
from tests.support.cli import ROOT, run
from tests.support.jobs import OBJECT, TRUNCATED, object_of, object_with_gap

if TYPE_CHECKING:
    from pathlib import Path

GAP = "warning: function at 0x40 skipped: CFA is an expression (lit0)"
DAMAGED = "error: truncated: the ELF header needs 64 bytes, the file has"
#: The program, whose runs are long after a tenth of a second, and in which files called "slow" take a second.
SLOW = """
import sys, time
from cfi2sframe import conversion
from cfi2sframe.cli import progress, run
progress._FIRST_SECONDS = progress._INTERVAL_SECONDS = 0.3
if {hides_tqdm}:
    sys.modules["tqdm"] = None
true = conversion.read_cfi
def slow(image, *arguments):
    end = time.monotonic() + ("slow" in image.name)
    while time.monotonic() < end:
        pass
    return true(image, *arguments)
conversion.read_cfi = slow
run()
"""


def fill(folder: Path, good: int, gaps: int, bad: int) -> None:
    for number in range(good):
        (folder / f"good{number}.o").write_bytes(OBJECT)
    for number in range(gaps):
        (folder / f"gap{number}.o").write_bytes(object_with_gap())
    for number in range(bad):
        (folder / f"bad{number}.o").write_bytes(TRUNCATED + bytes(number))


def test_equal_warnings_of_many_files_are_one_line(tmp_path: Path) -> None:
    fill(tmp_path, 30, 20, 12)
    status, out, err = run("--in-place", "-r", "--for", "ld", tmp_path)
    assert (status, out, len(err)) == (3, b"", 3)
    assert err[0] == f"cfi2sframe: warning: 20 files, such as {tmp_path}/gap0.o: {GAP.removeprefix('warning: ')}"
    start = f"cfi2sframe: error: 12 files, such as {tmp_path}/bad0.o: {DAMAGED.removeprefix('error: ')} "
    assert err[1].startswith(start)
    assert err[2].startswith("cfi2sframe: info: 62 files: 50 converted, 12 failed; ")


def test_few_files_have_a_line_each(tmp_path: Path) -> None:
    fill(tmp_path, 3, 2, 1)
    _, _, err = run("--in-place", "-r", "--for", "ld", tmp_path)
    assert err[:2] == tuple(f"cfi2sframe: {tmp_path}/gap{number}.o: {GAP}" for number in range(2))
    assert err[2] == f"cfi2sframe: {tmp_path}/bad0.o: {DAMAGED} 40"
    assert len(err) == 4


def test_verbose_is_a_line_a_file_and_one_for_its_warnings(tmp_path: Path) -> None:
    fill(tmp_path, 3, 2, 1)
    _, _, err = run("--in-place", "-r", "--for", "ld", "-v", tmp_path)
    said = [line.removeprefix(f"cfi2sframe: {tmp_path}/") for line in err]
    assert said[0] == f"bad0.o: {DAMAGED} 40"
    place = ".sframe: as a section with relocations"
    assert said[1:5] == [f"gap{n}.o: {text}" for n in range(2) for text in (GAP, f"info: converted: {place}")]
    assert said[5:8] == [f"good{n}.o: info: converted: {place}" for n in range(3)]
    assert len(said) == 9


def test_never_more_than_eight_lines() -> None:
    kinds = "abcdefghijklm"
    found = [(f"{kind}{number}", f"{kind} is wrong", (f"{kind} is wrong",)) for kind in kinds for number in range(3)]
    lines = list(few_lines(found))
    assert len(lines) == 8
    assert lines[0] == ("", "3 files, such as a0: a is wrong")
    assert lines[7] == ("", "6 more kinds of these, in 18 files (-v has them)")


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
def test_a_long_run_about_a_file_names_it_and_the_step(tmp_path: Path, words: str) -> None:
    path = tmp_path / "slow.o"
    path.write_bytes(OBJECT)
    err = run_slowly(*words.replace("FILE", str(path)).split())
    assert f"cfi2sframe: info: {path}: converting; " in err
    assert err.count(" s so far\n") >= 2


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_long_run_says_how_far_it_is(tmp_path: Path, jobs: str) -> None:
    for number in range(4):
        (tmp_path / f"slow{number}.o").write_bytes(object_of(number) + bytes(1 << 18))
    err = run_slowly("--in-place", "-r", "--for", "ld", tmp_path, "-j", jobs)
    found = re.findall(r"info: (\d) of 4 files(?:, about \d+ s left)?, at work on \S+slow\d.o(?:: converting)?; ", err)
    assert len(found) >= 3
    assert found == sorted(found)


def test_the_time_left_is_guessed_when_a_tenth_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFI2SFRAME_PROGRESS", "never")
    with Files({"first": 9, "second": 1, "third": 90}) as files:
        files.add("first")
        assert files.line() == "1 of 3 files, at work on second"
        files.add("second")
        assert files.line() == "2 of 3 files, about 0 s left, at work on third"


@pytest.mark.parametrize("hides_tqdm", [False, True])
def test_a_terminal_has_a_bar(tmp_path: Path, *, hides_tqdm: bool) -> None:
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
    assert " so far" in shown or not hides_tqdm
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
