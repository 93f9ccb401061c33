# SPDX-License-Identifier: Apache-2.0
"""The recipe for Cargo and rustc: a Rust program that is built from a clean folder, and the stacks of its run."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import check_section, copy_recipe, environment, run
from tests.support.needs import need
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.walk import Sampler

pytestmark = pytest.mark.sampled

MANY_FUNCTIONS = 500


def toolchain(tool: str, which: str) -> str:
    """Return the path of Debian's cargo or rustc, or of another that comes first in PATH."""
    debian, first = shutil.which(tool, path="/usr/bin"), shutil.which(tool)
    path = debian if which == "debian" else first
    if path is None or (which == "first" and path == debian):
        pytest.skip(f"no {tool} {'in /usr/bin' if which == 'debian' else 'but that of /usr/bin'}")
    return path


def rust_environment(programs: Path, path: str) -> dict[str, str]:
    """Return an environment in which this cargo finds its own rustc."""
    result = environment(programs)
    result["PATH"] = os.pathsep.join([str(programs), os.path.dirname(path), os.environ["PATH"]])
    return result


@pytest.mark.parametrize("which", ["debian", "first"])
def test_cargo(tmp_path: Path, programs: Path, sampler: Sampler, which: str) -> None:
    need("cc")
    cargo = toolchain("cargo", which)
    folder = copy_recipe("cargo", tmp_path / "words", with_project=False)
    env = rust_environment(programs, cargo)
    run(cargo, "build", "--release", "--offline", "--locked", cwd=folder, env=env)
    program = folder / "target" / "release" / "words"
    check_section(program, more_functions_than=MANY_FUNCTIONS)
    check_walks(sampler, program)
    before = program.stat().st_mtime_ns
    run(cargo, "build", "--release", "--offline", "--locked", cwd=folder, env=env)
    assert program.stat().st_mtime_ns == before


@pytest.mark.parametrize("which", ["debian", "first"])
@pytest.mark.parametrize(
    "options",
    [
        ["-C", "linker=cfi2sframe-cc", "-C", "strip=symbols"],
        ["-C", "linker=cfi2sframe-ld", "-C", "linker-flavor=gcc"],
    ],
    ids=["cc", "ld"],
)
def test_rustc(tmp_path: Path, programs: Path, which: str, options: list[str]) -> None:
    need("cc")
    rustc = toolchain("rustc", which)
    folder = copy_recipe("cargo", tmp_path / "words", with_project=False)
    env = rust_environment(programs, rustc)
    program = folder / "words"
    run(rustc, "--edition", "2021", "-O", *options, "-o", program, "src/main.rs", cwd=folder, env=env)
    check_section(program, more_functions_than=MANY_FUNCTIONS)
    assert run(program).out == run(program, "0").out
