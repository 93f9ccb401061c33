# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import pytest


def need(*programs: str) -> str:
    """Return the path of the first of some programs; skip the test where one of them is missing."""
    paths = []
    for program in programs:
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"no {program}: make packages, if Debian has it")
        paths.append(path)
    return paths[0]


def need_plain(path: Path, tool: str) -> None:
    """Skip the test where a path has a space and a tool cannot be told of such a one."""
    if " " in str(path):
        pytest.skip(f"{tool} takes a path with a space for two")


def open_terminal() -> tuple[int, int]:
    """Return the descriptors of a pseudo terminal: the user's end, and the program's. Skip the test where none is."""
    try:
        return os.openpty()
    except OSError as error:
        pytest.skip(f"no terminals here, since nothing is mounted at /dev/pts: {error.strerror}")


class Result(NamedTuple):
    """What a program left."""

    status: int
    out: str
    err: str


def attempt(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Run a program, whatever becomes of it."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run(*command: str | Path, **environment: str) -> str:
    """Run a program that must succeed; return what it printed on either stream."""
    words = [str(word) for word in command]
    variables = {**os.environ, "LC_ALL": "C", **environment}
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables, timeout=600
    )
    assert done.returncode == 0, f"{shlex.join(words)}: {done.returncode}\n{done.stdout}"
    return done.stdout
