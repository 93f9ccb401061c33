# SPDX-License-Identifier: Apache-2.0
"""The start of the program: interrupted, or with too little memory for it, it ends as it does later."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.support import cli
from tests.support.placing.emitted import GOLDEN

#: Runs a program whose import of a module raises; prints the modules that it imports if the module has no name.
PROGRAM: Final = """
import sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == RAISING:
            raise ERROR
        if not RAISING:
            sys.stderr.write(name + "\\n")

sys.meta_path.insert(0, Finder())
from cfi2sframe.PACKAGE import run
run()
"""
VERBS: Final = (("cli", "--version"), ("cli", "dump", "raw.sframe"), ("cli.wrapper", "--cfi2sframe-help"))
LIMIT_KIB: Final = range(10 << 10, 36 << 10, 2 << 10)


def start(folder: Path, words: tuple[str, ...], raising: str, error: str = "") -> subprocess.CompletedProcess[str]:
    package, *arguments = words
    text = PROGRAM.replace("PACKAGE", package).replace("RAISING", repr(raising)).replace("ERROR", error)
    env = {**os.environ, "PYTHONPATH": str(cli.ROOT)}
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
def test_an_import_that_is_interrupted(tmp_path: Path, words: tuple[str, ...]) -> None:
    """Only the two packages around the first line are loaded before an interrupt is caught."""
    (tmp_path / "raw.sframe").write_bytes(cli.SECTION.assemble())
    done = start(tmp_path, words, "")
    assert done.returncode == 0
    package = f"cfi2sframe.{words[0]}"
    needed = [name for name in done.stderr.split() if name not in ("cfi2sframe", "cfi2sframe.cli", package)]
    assert len(needed) > 1
    # The first imports are the ones that nothing might catch yet.
    for name in (*needed[:12], needed[-1]):
        done = start(tmp_path, words, name, "KeyboardInterrupt")
        assert (name, done.returncode, done.stdout, done.stderr) == (name, 130, "", "")
        done = start(tmp_path, words, name, "MemoryError")
        assert (name, done.returncode, done.stdout) == (name, 3, "")
        assert done.stderr.startswith("cfi2sframe: error: ")
        assert "out of memory" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", [("dump", "raw.sframe"), ("audit", "program"), ("convert", "program", "-o", "out")])
def test_little_memory(tmp_path: Path, words: tuple[str, ...]) -> None:
    """From 1 MiB more than starts Python: one line, or success."""
    (tmp_path / "raw.sframe").write_bytes(cli.SECTION.assemble())
    (tmp_path / "program").write_bytes((GOLDEN / "amd64-push-rbp.o").read_bytes())
    env = {**os.environ, "PYTHONPATH": str(cli.ROOT)}

    def limited(limit: int, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'ulimit -v {limit}; exec "$@"', "sh", sys.executable, "-P", *arguments]
        return subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, timeout=60)

    refused = 0
    for limit in LIMIT_KIB:
        if limited(limit, "-c", "from cfi2sframe.cli import run; bytes(1 << 20)").returncode:
            continue
        done = limited(limit, "-c", "from cfi2sframe.cli import run; run()", *words)
        if done.returncode == 0:
            continue
        assert (limit, done.returncode, done.stdout, done.stderr.count("\n")) == (limit, 3, "", 1), done.stderr
        assert done.stderr.startswith("cfi2sframe: ")
        assert "out of memory" in done.stderr
        refused += 1
    assert refused > 2
