# SPDX-License-Identifier: Apache-2.0
"""The recipe for Go: build, convert, verify, strip, run. Go's programs load no C library, so nothing walks inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import check_section, copy_recipe, environment, has_section, run
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

#: The runtime has more.
MANY_FUNCTIONS = 1000


@pytest.fixture(scope="module")
def caches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Folders of Go's own: the runtime is compiled once."""
    return {name: str(tmp_path_factory.mktemp(name)) for name in ("GOCACHE", "GOPATH")}


@pytest.mark.parametrize(
    "flags",
    [
        [],
        pytest.param(["-buildmode=pie"], marks=pytest.mark.slow),
        ["-ldflags=-linkmode=external"],
        ["-ldflags=-s -w"],
    ],
    ids=["go's linker", "pie", "c linker", "stripped"],
)
def test_go(tmp_path: Path, programs: Path, caches: dict[str, str], flags: list[str]) -> None:
    need("go", "cc", "strip")
    folder = copy_recipe("go", tmp_path / "words", with_project=False)
    env = environment(programs, GOPROXY="off", GOFLAGS="-mod=readonly", GOTOOLCHAIN="local", **caches)
    build = ["go", "build", "-trimpath", *flags, "-o", "words", "."]
    run(*build, cwd=folder, env=env)
    program = folder / "words"
    result = run(program).out
    run("cfi2sframe", "--in-place", "--replace", program, env=env)
    check_section(program, more_functions_than=MANY_FUNCTIONS)
    assert run(program, "0.3").out == result
    converted = program.read_bytes()
    run(*build, cwd=folder, env=env)
    assert program.read_bytes() == converted
    before = run("cfi2sframe", "dump", program, env=env).out
    run("strip", program)
    assert run("cfi2sframe", "dump", program, env=env).out == before
    assert run(program, "0.1").out == result
    run("cfi2sframe", "remove", "--in-place", program, env=env)
    assert not has_section(program)
    assert run(program, "0.1").out == result
