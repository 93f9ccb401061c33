# SPDX-License-Identifier: Apache-2.0
"""Streams that are closed, full or of a narrow encoding: the program ends as it should, without a traceback."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import ROOT, run
from tests.support.contrib import environment, install_programs
from tests.support.jobs import TRUNCATED, object_of
from tests.support.needs import need
from tests.support.trace.core_files import plain_core

SIGPIPE_STATUS: Final = 128 + signal.SIGPIPE
#: What writes to standard output.
PRINTS: Final = """\
--version
GOOD -o -
dump RAW.sframe
dump RAW.sframe --format json
coverage GOOD
coverage GOOD --format json
verify GOOD OTHER.sframe
remove OLD -o -
--check -v -r --for ld TREE -j 1
--check -v -r --for ld TREE -j 2
--in-place -r --for ld TREE --report - -j 2
size TREE -j 1
size TREE -j 2
size TREE --format json
size TREE --format html
size --compare TREE TREE --format csv
trace CORE
trace CORE --format json"""
#: What writes to standard error.
SAYS: Final = """\
BAD -o -
GOOD
dump GOOD
coverage BAD
coverage BAD BAD
coverage BAD GOOD
verify -v --would-be GOOD
verify BAD
remove BAD -o -
trace BAD
size BAD
size TREE BAD -j 2
--in-place BAD
--in-place -v -r --for ld TREE -j 2
--in-place TREE/0.o -v"""


def run_closed(folder: Path, words: str, stream: str) -> subprocess.CompletedProcess[bytes]:
    """Run the program with `stream` a pipe without a reader."""
    (folder / "TREE").mkdir()
    for number in range(5):
        (folder / "TREE" / f"{number}.o").write_bytes(object_of(number) + bytes(1 << 18))
    (folder / "GOOD").write_bytes(object_of(3))
    (folder / "BAD").write_bytes(TRUNCATED)
    (folder / "CORE").write_bytes(plain_core(AMD64, "program").assemble())
    assert run(folder / "GOOD", "-o", folder / "OLD").status == 0
    for name, number in (("RAW.sframe", 3), ("OTHER.sframe", 5)):
        assert run("-", "-o", folder / name, stdin=object_of(number)).status == 0
    command = [sys.executable, "-P", "-m", "cfi2sframe", *words.split()]
    return without_reader(command, stream, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)})


def without_reader(
    command: list[str], stream: str, cwd: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run a program in a folder with one of its streams a pipe without a reader."""
    read_end, write_end = os.pipe()
    os.close(read_end)
    with os.fdopen(write_end, "wb") as pipe:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, stream: pipe}
        return subprocess.run(command, cwd=cwd, env=env, check=False, timeout=60, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("words", PRINTS.splitlines())
def test_standard_output(tmp_path: Path, words: str) -> None:
    done = run_closed(tmp_path, words, "stdout")
    said = [line for line in done.stderr.splitlines() if not line.startswith(b"cfi2sframe: info: 5 files")]
    assert (done.returncode, said) == (SIGPIPE_STATUS, [])


@pytest.mark.parametrize("words", SAYS.splitlines())
def test_standard_error(tmp_path: Path, words: str) -> None:
    assert run_closed(tmp_path, words, "stderr").returncode == SIGPIPE_STATUS


@pytest.mark.parametrize(
    ("words", "stream"), [("--help", "stdout"), ("size --help", "stdout"), ("", "stderr"), ("--nothing", "stderr")]
)
def test_messages_of_the_argument_parser(tmp_path: Path, words: str, stream: str) -> None:
    done = run_closed(tmp_path, words, stream)
    assert (done.returncode, done.stderr or b"") == (SIGPIPE_STATUS, b"")


def test_a_link_with_closed_streams(tmp_path: Path) -> None:
    """It succeeds as it would have without the wrapper."""
    need("cc")
    (tmp_path / "main.c").write_text("int main(void) { return 0; }\n")
    env = environment(install_programs(tmp_path / "programs"), CFI2SFRAME_LOG=f"{tmp_path}/missing/log")
    command = [str(tmp_path / "programs" / "cfi2sframe-cc"), "-o", "main", "main.c"]
    assert without_reader(command, "stderr", tmp_path, env).returncode == 0
    assert (tmp_path / "main").exists()


def shell(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script with arguments `$1` and so on; the program is `"$PYTHON" -m cfi2sframe`."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", ['"$1" -o -', 'dump "$2"', 'coverage "$1"', 'verify "$1" "$2"', "--version"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(good: Path, raw: Path, arguments: str, closed: str) -> None:
    """Who closes standard output gets nothing; verify has nothing to say."""
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} {closed}', good, raw)
    is_lost = ">&-" in closed.split() and not arguments.startswith("verify")
    assert done.returncode == (3 if is_lost else 0)
    place = "" if arguments.startswith("--") else "<stdout>: "
    assert done.stderr == (f"cfi2sframe: {place}error: Bad file descriptor\n" if is_lost and closed == ">&-" else "")


@pytest.mark.parametrize("arguments", ["--help", "--version", "size --help", "", "--odd"])
def test_closed_streams_without_a_file(arguments: str) -> None:
    for closed in (">&-", "<&- >&- 2>&-"):
        done = shell(f'"$PYTHON" -m cfi2sframe {arguments} {closed}')
        assert done.returncode == (3 if arguments.endswith(("help", "version")) else 2)
        assert "internal error" not in done.stderr


@pytest.mark.parametrize(
    "environment",
    ["PYTHONIOENCODING=ascii", "PYTHONIOENCODING=cp1252:strict", "LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0"],
)
@pytest.mark.parametrize(
    "arguments", ["coverage", "size", "size --format html", "size --format csv", "size --format markdown"]
)
def test_encodings_that_cannot_hold_a_name(good: Path, tmp_path: Path, environment: str, arguments: str) -> None:
    named = tmp_path / "\u65e5\xef"
    named.write_bytes(good.read_bytes())
    done = shell(f'{environment} "$PYTHON" -m cfi2sframe {arguments} "$1"', named)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_closed_standard_input_is_empty() -> None:
    done = shell('"$PYTHON" -m cfi2sframe - -o - <&-')
    assert (done.returncode, done.stderr) == (3, "cfi2sframe: <stdin>: error: not an ELF file\n")


@pytest.mark.parametrize("arguments", ['"$1" -o -', 'dump "$2"', 'coverage "$1"', 'coverage --format json "$1"'])
def test_a_full_standard_output(good: Path, raw: Path, arguments: str) -> None:
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} >/dev/full', good, raw)
    assert done.returncode == 3
    assert done.stderr == "cfi2sframe: <stdout>: error: No space left on device\n"


@pytest.mark.parametrize("command", ["cfi2sframe --version", "cfi2sframe-as --cfi2sframe-help"])
def test_a_full_standard_output_without_a_file(tmp_path: Path, command: str) -> None:
    programs = install_programs(tmp_path / "programs")
    done = shell(f'"$1"/{command} >/dev/full', programs)
    assert (done.returncode, done.stderr) == (3, "cfi2sframe: error: No space left on device\n")


def test_the_help_of_a_wrapper_that_nobody_reads(tmp_path: Path) -> None:
    command = [str(install_programs(tmp_path / "programs") / "cfi2sframe-as"), "--cfi2sframe-help"]
    done = without_reader(command, "stdout", tmp_path)
    assert (done.returncode, done.stderr) == (SIGPIPE_STATUS, b"")
