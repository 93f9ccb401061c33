# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/compiled.py: what it compiles, the wheel that it makes of a pure one, and whether that is what runs here.

`make test-compiled` sets CFI2SFRAME_EXPECT_COMPILED: then the compiled modules have to be the ones that run.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import os
import subprocess
import sys
import zipfile
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import pytest

import cfi2sframe

SCRIPT = Path(__file__).resolve().parents[1] / "tools" / "compiled.py"
PACKAGE = Path(cfi2sframe.__file__).parent
IS_EXPECTED = os.environ.get("CFI2SFRAME_EXPECT_COMPILED") == "1"
RECORD = "cfi2sframe-1.dist-info/RECORD"


@pytest.fixture(name="script")
def _script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(SCRIPT.parent)
    return importlib.import_module("compiled")


def test_the_lists_fit_the_modules(script: Any) -> None:
    files = script.compiled_files(PACKAGE)
    assert len(files) > 20
    assert all((PACKAGE / name).is_file() for name in files)
    assert not [name for name in files if name.endswith("__init__.py") or name in script.KEPT]
    assert {Path(name).parent.as_posix() for name in files} == {
        ".",
        "code",
        "code/s390x",
        "dwarf",
        "elf",
        "gotable",
        "sframe",
        "verification",
    }


@pytest.mark.parametrize("name", ["COMPILED", "KEPT"])
def test_a_name_that_fits_nothing_is_refused(script: Any, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(script, name, (*getattr(script, name), "gone/*.py"))
    with pytest.raises(script.BuildError, match=r"no module is called gone/\*\.py"):
        script.compiled_files(PACKAGE)


@pytest.mark.skipif(not IS_EXPECTED, reason="the sources run here; make test-compiled runs the compiled modules")
def test_what_runs_is_compiled(script: Any) -> None:
    for name in script.module_names(script.compiled_files(PACKAGE)):
        path = importlib.import_module(name).__file__
        assert path is not None
        assert path.endswith(tuple(EXTENSION_SUFFIXES)), name


@pytest.mark.skipif(not IS_EXPECTED, reason="the sources run here; make test-compiled runs the compiled modules")
def test_other_processes_run_it_too() -> None:
    command = [sys.executable, "-c", "import cfi2sframe.sframe.encode as module; print(module.__file__)"]
    done = subprocess.run(command, cwd=SCRIPT.parents[1], capture_output=True, text=True, check=True)
    assert done.stdout.rstrip().endswith(tuple(EXTENSION_SUFFIXES))


def test_a_missing_compiler_is_named(tmp_path: Path) -> None:
    env = {**os.environ, "CC": "no-such-compiler -pthread", "SOURCE_DATE_EPOCH": "1735689600"}
    command = [sys.executable, str(SCRIPT), str(tmp_path / "dist")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("compiled.py: no C compiler (no-such-compiler): apt-get install gcc")
    assert not (tmp_path / "dist").exists()


def test_modules_that_cannot_be_loaded_are_named(script: Any, tmp_path: Path) -> None:
    package = tmp_path / "cfi2sframe"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "broken.py").write_text("raise KeyError('ElfImage')")
    (package / "crashing.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n")
    (package / "source.py").touch()
    with pytest.raises(script.BuildError) as caught:
        script.check_imports(tmp_path, ["cfi2sframe.broken", "cfi2sframe.crashing", "cfi2sframe.source"])
    _, *lines, hint = str(caught.value).splitlines()
    assert lines[0] == "cfi2sframe.broken: KeyError: 'ElfImage'"
    assert lines[1] == "cfi2sframe.crashing: exit status -11"
    assert lines[2].startswith("cfi2sframe.source: not the compiled module: ")
    assert "KEPT" in hint


def test_fields_whose_classes_are_not_there_are_quoted(script: Any) -> None:
    source = """
from typing import TYPE_CHECKING, NamedTuple
if TYPE_CHECKING:
    from collections.abc import Sequence
    from house import Door as Gate

class Record(NamedTuple):
    \"\"\"\u00fc\"\"\"
    gate: Gate
    kinds: Sequence[Literal["a"]] = ()  # a comment
    data: memoryview
    count: int
    rows: tuple[Gate, ...]

class Other:
    gate: Gate
"""
    quoted = source.replace("    gate: Gate\n", "    gate: 'Gate'\n", 1)
    quoted = quoted.replace('Sequence[Literal["a"]]', """'Sequence[Literal["a"]]'""").replace(
        "memoryview", "'memoryview'"
    )
    assert script.with_quoted_fields(source) == quoted


def test_the_wheel_is_the_pure_one_and_the_extension_modules(script: Any, tmp_path: Path) -> None:
    pure, library = tmp_path / "pure.whl", tmp_path / "lib"
    (library / "cfi2sframe").mkdir(parents=True)
    extension = library / "cfi2sframe" / "lower.so"
    extension.write_bytes(b"\x7fELF")
    kept = {
        "cfi2sframe/lower.py": b"source = 1\n",
        "cfi2sframe-1.data/data/share/man/man1/cfi2sframe.1": b".TH\n",
        "cfi2sframe-1.dist-info/METADATA": b"Name: cfi2sframe\n",
    }
    with zipfile.ZipFile(pure, "w") as wheel:
        for name, data in kept.items():
            wheel.writestr(name, data)
        wheel.writestr("cfi2sframe-1.dist-info/WHEEL", "Root-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(RECORD, "")
    members = {m.info.filename: m.data for m in script.members_of(pure, library, [extension], "cp311-cp311-linux_x")}
    assert list(members)[-1] == RECORD
    assert {name: members[name] for name in kept} == kept
    assert members["cfi2sframe/lower.so"] == b"\x7fELF"
    assert members["cfi2sframe-1.dist-info/WHEEL"] == b"Root-Is-Purelib: false\nTag: cp311-cp311-linux_x\n"
    *rows, own = csv.reader(members.pop(RECORD).decode().splitlines())
    assert own == [RECORD, "", ""]
    digests = {name: base64.urlsafe_b64encode(hashlib.sha256(data).digest()) for name, data in members.items()}
    assert rows == [
        [name, f"sha256={digests[name].decode().rstrip('=')}", str(len(data))] for name, data in members.items()
    ]
