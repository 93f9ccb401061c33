# SPDX-License-Identifier: Apache-2.0
"""One bad file among good ones, whatever is bad about it: it alone fails, and every other file is done."""

import json
import subprocess
from itertools import product
from pathlib import Path

import pytest

from tests.support.cli import run_python
from tests.support.jobs import has_section, object_of
from tests.support.needs import need

COUNT = 5
#: So much that processes are started.
PADDING = bytes(1 << 18)
MIB = 1 << 20
#: The program, with something happening to files whose name has "bad" in it.
PROGRAM = """
import os, resource, signal, sys
import cfi2sframe.cli
from cfi2sframe.conversion import convert
from cfi2sframe.process import guard

def act():
    {action}

def with_bad(true):
    def call(image, *arguments, **options):
        if "bad" in image.name:
            act()
        return true(image, *arguments, **options)
    return call

convert.convert_image = with_bad(convert.convert_image)
{setup}
cfi2sframe.cli.run()
"""
UNFORESEEN = "raise OverflowError('too large')"
OUT_OF_MEMORY = "bytearray(1 << 45)"
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
VERBS = {
    "in place": ("--in-place", "--report", "-"),
    "check": ("--check", "-v"),
    "size": ("size", "--format", "json"),
    "coverage": ("coverage", "--format", "json"),
}


def run(action: str, *words: str, setup: str = "", memory_limit: int | None = None) -> subprocess.CompletedProcess[str]:
    """Run the program; `memory_limit` is what `ulimit -v` would be, in bytes."""
    limited = () if memory_limit is None else ("prlimit", f"--as={memory_limit}")
    return run_python("-c", PROGRAM.format(action=action, setup=setup), *words, prefix=limited)


def fill(folder: Path, position: int) -> list[str]:
    """Make some objects, the one at `position` a bad one; return their names."""
    paths = [folder / f"{number}-{'bad' if number == position else 'good'}.o" for number in range(COUNT)]
    for number, path in enumerate(paths):
        path.write_bytes(object_of(number) + PADDING)
    return [str(path) for path in paths]


def check_others(verb: str, names: list[str], out: str) -> None:
    """All files but the bad one have the result of the verb."""
    good = [name for name in names if "bad" not in name]
    if verb == "in place":
        reports = [json.loads(line) for line in out.splitlines()]
        assert [report["file"] for report in reports] == names
        # A file that was at work when another one's process died is tried again, and may have been done.
        assert [report["file"] for report in reports if report["status"] in ("converted", "unchanged")] == good
        for name in names:
            with open(name, "rb") as file:
                assert has_section(file.read()) == (name in good)
    elif verb == "check":
        assert [line.split(": ")[0] for line in out.splitlines() if "would convert" in line] == good
        assert len(out.splitlines()) == len(good)
    else:
        report = json.loads(out)
        assert [file["file"] for file in report["files"]] == good
        assert [failure["file"] for failure in report["failures"]] == [name for name in names if name not in good]


each_way = pytest.mark.parametrize(("verb", "jobs"), list(product(VERBS, ("1", "2"))))


@pytest.mark.parametrize("position", [0, 2, COUNT - 1])
@each_way
def test_an_unexpected_error(tmp_path: Path, verb: str, jobs: str, position: int) -> None:
    names = fill(tmp_path, position)
    done = run(UNFORESEEN, *VERBS[verb], *names, "-j", jobs)
    said = f"{names[position]}: error: internal error: OverflowError: too large"
    assert f"{said} at __main__:8; please report it\n" in done.stderr
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
    check_others(verb, names, done.stdout)


@pytest.mark.parametrize("verb", ["in place", "size", "coverage"])
@pytest.mark.parametrize("position", [0, 2, COUNT - 1])
def test_a_process_that_dies(tmp_path: Path, verb: str, position: int) -> None:
    names = fill(tmp_path, position)
    done = run(KILLED, *VERBS[verb], *names, "-j", "2")
    assert done.returncode == 3
    assert f"{names[position]}: error: worker killed by signal 9 (out of memory?)" in done.stderr
    assert "Traceback" not in done.stderr
    check_others(verb, names, done.stdout)


@pytest.mark.parametrize("verb", ["in place", "size", "coverage"])
def test_a_job_that_takes_too_long(tmp_path: Path, verb: str) -> None:
    """The grant is made small to keep the test quick."""
    names = fill(tmp_path, 2)
    setup = "guard._SECONDS, guard._SECONDS_PER_MIB = 0.5, 0"
    done = run("while True: pass", *VERBS[verb], *names, "-j", "2", setup=setup)
    assert done.returncode == 3
    assert f"{names[2]}: error: takes more CPU time than a file of this size accounts for (0.5 s)\n" in done.stderr
    check_others(verb, names, done.stdout)


@each_way
def test_memory_that_there_is_not(tmp_path: Path, verb: str, jobs: str) -> None:
    """Without a limit of the user's and with one that is smaller than what the file may have."""
    need("prlimit")
    for memory_limit, reason in (
        (None, "takes more memory than a file of this size accounts for (350 MiB)"),
        (256 * MIB, "out of memory (limit 256 MiB)"),
    ):
        names = fill(tmp_path, 2)
        done = run(OUT_OF_MEMORY, *VERBS[verb], *names, "-j", jobs, memory_limit=memory_limit)
        assert done.returncode == 3
        place = f"cfi2sframe: {names[2]}: error: "
        assert [line for line in done.stderr.splitlines() if line.startswith(place)] == [place + reason]
        assert "internal error" not in done.stdout + done.stderr
        check_others(verb, names, done.stdout)


def test_no_more_processes_to_be_had(tmp_path: Path) -> None:
    """Then this process does the work."""
    names = fill(tmp_path, COUNT)
    setup = "def fork():\n    raise BlockingIOError(11, 'no')\nos.fork = fork"
    done = run("pass", *VERBS["in place"], *names, "-j", "2", setup=setup)
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    check_others("in place", names, done.stdout)


@pytest.mark.parametrize(
    "words",
    [
        ("FILE", "-o", "out"),
        ("coverage", "FILE"),
        ("verify", "--would-be", "FILE"),
        ("--in-place", "FILE"),
        ("size", "FILE"),
    ],
)
def test_memory_that_there_is_not_for_a_single_file(tmp_path: Path, words: tuple[str, ...]) -> None:
    path = tmp_path / "bad.o"
    path.write_bytes(object_of(1))
    done = run(
        OUT_OF_MEMORY, *(word.replace("FILE", str(path)).replace("out", str(tmp_path / "out")) for word in words)
    )
    reason = "takes more memory than a file of this size accounts for (300 MiB)"
    assert (done.returncode, done.stderr) == (3, f"cfi2sframe: {path}: error: {reason}\n")
