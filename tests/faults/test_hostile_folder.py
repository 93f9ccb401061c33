# SPDX-License-Identifier: Apache-2.0
"""The program run in another user's folder, with a file there for every module that could be imported."""

from __future__ import annotations

import shutil
import subprocess
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.cli.rewriting import POOL_SIZE
from tests.contrib.support import ROOT, environment, install_programs
from tests.faults.test_truncation import file_of
from tests.support.jobs import object_of
from tests.support.needs import Result, attempt, need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

#: Beside the standard library: what this program may load, and what Python itself looks for.
OTHERS: Final = (
    *("capstone", "elftools", "zstandard", "jinja2", "markupsafe", "cffi", "_cffi_backend"),
    *("sitecustomize", "usercustomize", "pkg_resources", "setuptools", "cfi2sframe", "__main__"),
)
LIBRARIES: Final = ("libcapstone.so", "libcapstone.so.4", "libcapstone.so.5")
TOOLS: Final = ("ldconfig", "gcc", "cc", "ld", "as", "objdump", "python3", "cfi2sframe", "true")
OBJECTS: Final = tuple(f"object{number}.o" for number in range(5))
PADDING: Final = bytes(1 << 18)
CONSTRUCTOR: Final = """
#include <stdio.h>
__attribute__((constructor)) static void load(void)
{
    FILE *file = fopen("MARK", "a");
    fputs("a library", file);
    fclose(file);
}
"""


@cache
def library(mark: Path) -> bytes:
    """Return a shared library that leaves the mark when it is loaded; none without a compiler."""
    if shutil.which("cc") is None:
        return b""
    source, made = mark.with_suffix(".c"), mark.with_suffix(".so")
    source.write_text(CONSTRUCTOR.replace("MARK", str(mark)))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", made, source], check=True)
    return made.read_bytes()


class Trap:
    """A folder full of files that leave a mark when they are run."""

    def __init__(self, folder: Path, mark: Path) -> None:
        self.folder = folder
        self.mark = mark
        self.set()

    def set(self) -> None:
        """Put the files there."""
        self.folder.mkdir(exist_ok=True)
        for name in (*sys.stdlib_module_names, *OTHERS):
            (self.folder / f"{name}.py").write_text(f"open({str(self.mark)!r}, 'a').write('{name}\\n')\n")
        for name in LIBRARIES:
            (self.folder / name).write_bytes(library(self.mark))
        for name in TOOLS:
            path = self.folder / name
            path.write_text(f"#!/bin/sh\necho {name} >> '{self.mark}'\n")
            path.chmod(0o755)

    def sprung(self) -> str:
        """Return what has been run."""
        return self.mark.read_text() if self.mark.exists() else ""

    def run(self, *command: str | Path, env: dict[str, str]) -> Result:
        """Run a program in the folder; it must not spring the trap."""
        result = attempt(*command, cwd=self.folder, env=env)
        assert self.sprung() == "", result.err
        assert "Traceback" not in result.err
        return result


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    trap = Trap(tmp_path / "folder", tmp_path / "sprung")
    for number, name in enumerate(OBJECTS):
        (trap.folder / name).write_bytes(object_of(number) + PADDING)
    for number in range(8):
        shutil.copy("/bin/ls", trap.folder / f"ls{number}")
    for name in ("core", "program"):
        (trap.folder / name).write_bytes(file_of(name))
    return trap


#: Each verb, with processes where it has them, and the exit statuses that it may end with.
RUNS: Final = {
    "check": (("--check", "-r", "--for", "ld", ".", "-j", "2"), {1}),
    "convert": (("ls0", "-o", "out"), {0}),
    "coverage": (("coverage", "--format", "json", "ls0", "object1.o"), {0}),
    "verify": (("verify", "--would-be", "-v", "ls0"), {0}),
    "dump": (("dump", "program"), {0}),
    "remove": (("remove", "program", "-o", "out"), {0}),
    "size": (("size", ".", "-j", "2", "--format", "html", "-o", "out"), {0}),
    "compare": (("size", "--compare", "ls0", "ls1", "-j", "2"), {0}),
    "trace": (("trace", "core", "--format", "json"), {0}),
    "in place": (("--in-place", "-r", "--for", "ld", ".", "-j", "2", "--report", "report"), {0}),
}


def programs_of(kind: str, folder: Path) -> tuple[tuple[str | Path, ...], dict[str, str]]:
    """Return a command that is this program, and its environment."""
    env = environment(install_programs(folder / "programs"))
    if kind == "script":
        return (folder / "programs" / "cfi2sframe",), env
    return (sys.executable, "-P", "-m", "cfi2sframe"), {**env, "PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_verbs(trap: Trap, tmp_path: Path, kind: str) -> None:
    assert sum((trap.folder / name).stat().st_size for name in OBJECTS) >= POOL_SIZE
    command, env = programs_of(kind, tmp_path)
    for name, (words, statuses) in RUNS.items():
        result = trap.run(*command, *words, env=env)
        assert result.status in statuses, (name, result)


def test_the_trap(trap: Trap) -> None:
    """The trap works: an interpreter that looks in the current directory imports it."""
    for option, what in (("-c", "import selectors"), ("-m", "capstone")):
        attempt(sys.executable, option, what, cwd=trap.folder)
        assert trap.sprung() != ""
        trap.mark.unlink()
    if library(trap.mark):
        load = "import ctypes; ctypes.CDLL('./libcapstone.so')"
        attempt(sys.executable, "-P", "-c", load, cwd=trap.folder)
        assert trap.sprung() == "a library"


@pytest.mark.parametrize("kind", ["cc", "ld", "as"])
def test_wrappers(trap: Trap, tmp_path: Path, kind: str) -> None:
    need("gcc", "cc", "ld")
    programs = install_programs(tmp_path / "programs")
    (trap.folder / "main.c").write_text("int main(void) { return 0; }\n")
    env = environment(programs)
    if kind == "cc":
        result = trap.run("cfi2sframe-cc", "-o", "main", "main.c", env=env)
    else:
        (tmp_path / "links").mkdir()
        (tmp_path / "links" / kind).symlink_to(programs / f"cfi2sframe-{kind}")
        what = ("-Wa,--gsframe-3", "-c") if kind == "as" else ()
        result = trap.run("gcc", "-B", tmp_path / "links", *what, "-o", "main", "main.c", env=env)
    assert (result.status, result.err) == (0, "")
    assert b".sframe\0" in (trap.folder / "main").read_bytes()
