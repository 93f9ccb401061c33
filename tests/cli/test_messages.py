# SPDX-License-Identifier: Apache-2.0
"""What is said on standard error: quietly, in colour, in one line, and what contradicts itself there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from cfi2sframe.cli.parsers import VERBS
from tests.support.cli import ROOT, run, run_python
from tests.support.jobs import OBJECT, object_with_gap
from tests.support.needs import open_terminal


def red_and_plain(missing: Path) -> tuple[str, str]:
    """Return the line about a missing file with colors and without."""
    end = "No such file or directory"
    return f"cfi2sframe: {missing}: \x1b[1;31merror:\x1b[0m {end}", f"cfi2sframe: {missing}: error: {end}"


def test_quiet_and_color(good: Path) -> None:
    """Colors are for terminals, unless they are asked for; errors are always said."""
    missing = good.parent / "missing"
    red, plain = red_and_plain(missing)
    for words, line in ((("--color=always",), red), (("--color=never",), plain), ((), plain), (("-q",), plain)):
        assert run("--in-place", *words, missing).err == (line,)
    gap = good.parent / "gap.o"
    for words, has_warning in (((), True), (("-q",), False)):
        gap.write_bytes(object_with_gap())
        done = run("--in-place", *words, gap)
        assert (done.status, bool(done.err)) == (0, has_warning)


def test_colors_of_a_terminal(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    terminal, end = open_terminal()
    with os.fdopen(end, "wb") as stream:
        for variables in ({}, {"NO_COLOR": "1"}, {"TERM": "dumb"}):
            env = {**os.environ, "TERM": "xterm", "PYTHONPATH": str(ROOT), **variables}
            subprocess.run([sys.executable, "-m", "cfi2sframe", "dump", missing], stderr=stream, env=env, check=False)
    shown = os.read(terminal, 1 << 12).decode().splitlines()
    os.close(terminal)
    red, plain = red_and_plain(missing)
    assert shown == [red, plain, plain]


def test_arguments_cannot_forge_lines() -> None:
    """A shell pattern gives the names of files, which may look like options."""
    for verb in VERBS:
        done = run(verb, "x", "--\x1b[31m\ncfi2sframe:x:y")
        assert (done.status, len(done.err)) == (2, 1)
        assert r"--\x1b[31m\ncfi2sframe:x:y;" in done.err[0]


def test_an_unforeseen_error_is_one_line() -> None:
    """If there ever is one, the user gets what a bug report needs, and no traceback."""
    script = "import cfi2sframe.cli as cli; cli.main = lambda: {}['a\\nb']; cli.run()"
    done = run_python("-c", script)
    assert (done.returncode, done.stdout) == (3, "")
    line = r"cfi2sframe: error: internal error: KeyError: 'a\\\\nb' at __main__:1; please report it\n"
    assert re.fullmatch(line, done.stderr), done.stderr


def test_a_deleted_directory_is_the_one_that_is_named(tmp_path: Path) -> None:
    """No message blames standard output."""
    (tmp_path / "file").write_bytes(OBJECT)
    script = f'cd "$0/gone" && rmdir "$0/gone" && {sys.executable} -m cfi2sframe'
    for words in ("--in-place file", "-r --in-place .", 'dump "$0/file" -o out', "size ."):
        (tmp_path / "gone").mkdir()
        done = subprocess.run(["sh", "-c", f"{script} {words}", tmp_path], env={**os.environ, "PYTHONPATH": str(ROOT)},
                              capture_output=True, text=True, check=False)  # fmt: skip
        assert (done.returncode, done.stderr) == (3, "cfi2sframe: .: error: No such file or directory\n"), words
