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
from tests.support.cli import ROOT, run_python
from tests.support.jobs import OBJECT, object_of
from tests.support.needs import open_terminal

#: The program, whose runs are long after some hundredths of a second, and in which files called "slow" take 0.35 s
#: of CPU time: on a busy machine more, and there is no less to see.
SLOW = """
import sys, time
from cfi2sframe.conversion import convert
from cfi2sframe.cli import progress, run
progress._FIRST_SECONDS = progress._INTERVAL_SECONDS = 0.08
if {hides_tqdm}:
    sys.modules["tqdm"] = None
true = convert.read_cfi
def slow(image, *arguments):
    end = time.process_time() + 0.35 * ("slow" in image.name)
    while time.process_time() < end:
        pass
    return true(image, *arguments)
convert.read_cfi = slow
run()
"""


def run_slowly(*words: str | Path, hides_tqdm: bool = True, variable: tuple[str, str] = ("TERM", "xterm")) -> list[str]:
    """Return what is drawn on a terminal, one after the other in its last line, and printed there."""
    terminal, end = open_terminal()
    termios.tcsetwinsize(end, (24, 240))
    with os.fdopen(end, "wb"):
        subprocess.run(
            [sys.executable, "-P", "-c", SLOW.format(hides_tqdm=hides_tqdm), *map(str, words)],
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "CFI2SFRAME_PROGRESS": "",
                "TERM": "xterm",
                variable[0]: variable[1],
            },
            stdout=subprocess.DEVNULL,
            stderr=end,
            check=False,
            timeout=60,
        )
        os.write(end, b"\0\n")
        shown = b""
        # What a slow run draws is more than a terminal gives at once.
        while b"\0" not in shown:
            shown += os.read(terminal, 1 << 16)
    os.close(terminal)
    return [part.removeprefix("\033[K") for part in re.split(r"[\r\n\0]+", shown.decode())]


@pytest.mark.parametrize("words", ["FILE -o FILE.sframe", "coverage FILE", "verify --would-be FILE"])
def test_a_long_run_about_a_file_names_it(tmp_path: Path, words: str) -> None:
    path = tmp_path / "slow.o"
    path.write_bytes(OBJECT)
    shown = run_slowly(*[word.replace("FILE", str(path)) for word in words.split()])
    assert sum(re.fullmatch(r"cfi2sframe: \d+ s, processing slow\.o", line) is not None for line in shown) >= 2


@pytest.mark.parametrize("jobs", ["1", "2"])
@pytest.mark.parametrize("hides_tqdm", [False, True])
def test_a_long_run_says_how_far_it_is(tmp_path: Path, jobs: str, *, hides_tqdm: bool) -> None:
    """With tqdm, the same sentence has a bar after it."""
    if not hides_tqdm:
        pytest.importorskip("tqdm")
    for number in range(4):
        (tmp_path / f"slow{number}.o").write_bytes(object_of(number) + bytes(1 << 18))
    shown = run_slowly("--in-place", "-r", "--for", "ld", tmp_path, "-j", jobs, hides_tqdm=hides_tqdm)
    pattern = r"cfi2sframe: (\d+) % of 4 files, \d+ s(?:, \d+ s left)?, processing slow\d.o( +\|.*\|)?"
    found = [match for match in (re.fullmatch(pattern, line) for line in shown) if match]
    assert len(found) >= 3
    shares = [int(match[1]) for match in found]
    assert shares == sorted(shares)
    # Of 80 columns, what changes is left.
    assert all(len(match[0].partition("processing")[0]) < 60 for match in found)
    assert all((match[2] is None) == hides_tqdm for match in found)
    assert any("info: 4 files: 4 converted" in line for line in shown)


def test_the_time_left_is_guessed_when_a_tenth_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CFI2SFRAME_PROGRESS", "never")
    with Files({"folder/first": 9, "folder/second": 1, "third": 90}) as files:
        files.add("folder/first")
        assert files.line() == "9 % of 3 files, 0 s, processing second"
        files.add("folder/second")
        assert files.line() == "10 % of 3 files, 0 s, 0 s left, processing third"


@pytest.mark.parametrize("variable", [("CFI2SFRAME_PROGRESS", "never"), ("TERM", "dumb")])
def test_progress_can_be_switched_off(tmp_path: Path, variable: tuple[str, str]) -> None:
    """It is off where a terminal could not redraw its line."""
    path = tmp_path / "slow.o"
    path.write_bytes(OBJECT)
    assert run_slowly(path, "-o", tmp_path / "out.o", variable=variable) == ["", ""]


@pytest.mark.parametrize(
    ("seconds", "count", "is_quiet"), [(60, 2, False), (0.1, 1, False), (0.1, 2, True), (0.1, 2, False)]
)
def test_a_log_tells_each_minute_how_far_a_run_over_files_is(
    tmp_path: Path, seconds: float, count: int, *, is_quiet: bool
) -> None:
    for number in range(count):
        (tmp_path / f"slow{number}.o").write_bytes(object_of(number))
    script = SLOW.format(hides_tqdm=True).replace("run()", f"progress._LOG_SECONDS = {seconds}\nrun()")
    quiet = ("-q",) if is_quiet else ()
    done = run_python("-c", script, *quiet, "--check", *sorted(tmp_path.iterdir()), CFI2SFRAME_PROGRESS="")
    lines = re.findall(
        r"^cfi2sframe: info: \d+ % of 2 files, \d+ s(?:, \d+ s left)?, processing slow\d.o$", done.stderr, re.MULTILINE
    )
    assert (len(lines) >= 2) == (seconds < 1 and count > 1 and not is_quiet), done.stderr
    assert done.stderr.count("\n") == len(lines) + (count > 1 and not is_quiet)
