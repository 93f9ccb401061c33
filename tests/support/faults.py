# SPDX-License-Identifier: Apache-2.0
"""Runs of the command line in a folder of their own, with faults, and what may be left in the folder afterwards."""

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, MappingProxyType
from typing import NamedTuple

from tests.support import cli
from tests.support.cli import ROOT
from tests.support.jobs import object_of

TIMEOUT_SECONDS = 120
#: What lies in the place of the output before it is written.
OLD = b"what was there before\n"
_SUMS = re.compile(r"cfi2sframe: (info: \d+ files|error: interrupted: )")


class Done(NamedTuple):
    """The exit status of a process (as in a shell, 128 + the number of a signal), and its messages."""

    status: int
    out: bytes
    err: str


class Form(NamedTuple):
    """A way to call the program: its arguments in a folder with these files."""

    name: str
    arguments: tuple[str, ...]
    files: tuple[tuple[str, bytes], ...]


#: The system calls of the writing.
CALLS = ("create", "write", "fchmod", "fsync", "rename")
_INPUT = ("in.o", object_of(3))
_BATCH = ("--in-place", "a.o", "b.o", "c.o", "--report", "report")
FORMS = (
    Form("raw", ("in.o", "-o", "out.sframe"), (_INPUT, ("out.sframe", OLD))),
    Form("raw-new", ("in.o", "-o", "out.sframe"), (_INPUT,)),
    Form("copy", ("in.o", "-o", "out.o"), (_INPUT, ("out.o", OLD))),
    Form("copy-new", ("in.o", "-o", "out.o"), (_INPUT,)),
    Form("in-place", ("--in-place", "in.o"), (_INPUT,)),
    Form("batch", _BATCH, tuple((f"{name}.o", object_of(n)) for n, name in enumerate("abc"))),
)
BY_NAME = {form.name: form for form in FORMS}


def fill(form: Form, folder: Path) -> None:
    """Put the form's files into a folder."""
    for name, data in form.files:
        (folder / name).write_bytes(data)


def run(
    folder: Path,
    *arguments: str | bytes,
    prefix: Sequence[str] = (),
    stdout: int = subprocess.PIPE,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Done:
    """Run the program in a folder; the sums of several files are no message."""
    with start(folder, *arguments, prefix=prefix, stdout=stdout, variables=variables) as process:
        out, err = process.communicate(timeout=TIMEOUT_SECONDS)
    code = process.returncode
    said = [line for line in err.decode(errors="replace").splitlines(keepends=True) if not _SUMS.match(line)]
    return Done(code if code >= 0 else 128 - code, out or b"", "".join(said))


def start(
    folder: Path,
    *arguments: str | bytes,
    prefix: Sequence[str] = (),
    stdout: int = subprocess.PIPE,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.Popen[bytes]:
    """Start the program in a folder."""
    # -I would hide the package; without byte code in files, what is written is the program's own.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **variables}
    command = [*prefix, sys.executable, "-m", "cfi2sframe", *arguments]
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=stdout, stderr=subprocess.PIPE)


def wait_for(path: Path) -> None:
    """Wait until a file is there."""
    end = time.monotonic() + TIMEOUT_SECONDS
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.005)


def run_until(
    functions: frozenset[object], number: int, act: Callable[[], object], *words: str | Path
) -> tuple[cli.Result, bool]:
    """Run the program in this process, and act before the call of this number; return whether that came, too."""
    left = number

    def watch(_: FrameType, event: str, function: object) -> None:
        nonlocal left
        if event == "c_call" and function in functions:
            left -= 1
            if left == 0:
                sys.setprofile(None)
                act()

    sys.setprofile(watch)
    try:
        result = cli.run(*words)
    finally:
        sys.setprofile(None)
    return result, left <= 0


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files in a folder, with names beginning with a dot."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@cache
def expected(form: Form) -> dict[str, bytes]:
    """Return what a run without faults leaves."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        fill(form, folder)
        done = run(folder, *form.arguments)
        assert done == (0, b"", ""), done
        return contents(folder)


def check_left(form: Form, folder: Path, *, may_be_left: bool = False) -> None:
    """Every file is the old one or the new one, and there is no other, or maybe a part of a new one."""
    before, after = dict(form.files), expected(form)
    left = contents(folder)
    strays = [name for name in left if name.startswith(".cfi2sframe-")]
    assert len(strays) <= may_be_left
    for name in strays:
        del left[name]
    # The content of the report depends on what happened, but it is complete.
    lines = left.pop("report", b"").splitlines(keepends=True)
    assert [json.loads(line)["file"] for line in lines] in ([], [name for name, _ in form.files])
    assert left.keys() <= before.keys() | after.keys()
    for name in (before.keys() | after.keys()) - {"report"}:
        # A file that was not there may still be missing.
        assert left.get(name) in (before.get(name), after.get(name)), name


class Faults(NamedTuple):
    """The shim, and a place for its marks outside of the folders that are looked at."""

    library: Path
    place: Path

    def of(self, *faults: str, file: Path | None = None, named: bool = False) -> dict[str, str]:
        """Return the environment that brings the faults: `CALL:ACTION:NUMBER`; `named`: without O_TMPFILE."""
        self.mark.unlink(missing_ok=True)
        self.word.unlink(missing_ok=True)
        variables = {"FAULTS": ",".join(faults), "FAULTS_MARK": str(self.mark), "FAULTS_GO": str(self.word)}
        if file is not None:
            variables["FAULTS_FILE"] = str(file)
        if named:
            variables["FAULTS_NAMED"] = "1"
        # A path in LD_PRELOAD ends at a space; a name is looked for.
        return {"LD_PRELOAD": self.library.name, "LD_LIBRARY_PATH": str(self.library.parent), **variables}

    @property
    def mark(self) -> Path:
        """The file that shows that a fault has happened."""
        return self.place / "mark"

    @property
    def word(self) -> Path:
        """The file that a waiting process waits for."""
        return self.place / "go"
