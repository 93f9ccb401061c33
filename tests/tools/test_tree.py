# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/tree.py sees what goes wrong: a comparison that cannot fail would prove nothing."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe import load
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Iterator

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "tree.py"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    spec = importlib.util.spec_from_file_location("tree_tool", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["tree_tool"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["tree_tool"]


@pytest.fixture
def tree(script: Any, tmp_path: Path) -> Any:
    need("env", "ldd")
    made = script.Tree(tmp_path / "tree")
    made.make()
    shutil.copy2("/usr/bin/env", made.programs / "env")
    for soname, library in script.libraries_of(Path("/usr/bin/env")).items():
        shutil.copy2(library, made.libraries / soname)
    return made


def test_a_program_that_runs_as_before(script: Any, tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"env": script.runs_of(tree, "env")}
    assert before["env"][0].status == 0
    assert before["env"][0].output
    outcome = script.convert(tree.programs / "env")
    assert (outcome.refusal, bool(outcome.placement)) == ("", True)
    assert script.verify_file(tree.programs / "env") == ""
    account = script.Account()
    with ProcessPoolExecutor(1) as workers:
        script.compare_runs(account, tree, before, workers)
    assert account.problems == 0
    assert "1 of 1 programs run as before" in capsys.readouterr().out


def test_a_program_that_crashes_is_a_problem(script: Any, tree: Any, capsys: pytest.CaptureFixture[str]) -> None:
    before = {"env": script.runs_of(tree, "env")}
    path = tree.programs / "env"
    text = next(section for section in load(str(path)).sections if section.name == ".text")
    data = bytearray(path.read_bytes())
    data[text.file_offset : text.file_offset + text.size] = b"\xcc" * text.size
    path.write_bytes(data)
    account = script.Account()
    with ProcessPoolExecutor(1) as workers:
        script.compare_runs(account, tree, before, workers)
    assert account.problems == 1
    assert "0 of 1 programs run as before" in capsys.readouterr().out


def test_a_changed_section_is_a_problem(script: Any, tree: Any) -> None:
    path = tree.programs / "env"
    assert script.verify_file(path) != ""
    script.convert(path)
    section = next(section for section in load(str(path)).sections if section.name == ".sframe")
    data = bytearray(path.read_bytes())
    data[section.file_offset + section.size - 2] ^= 0x10
    path.write_bytes(data)
    assert script.verify_file(path) != ""
