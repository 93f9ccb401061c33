# SPDX-License-Identifier: Apache-2.0
"""The recipe for Go: build, convert, verify, strip, run. Go's programs load no C library, so nothing walks inside."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.contrib.support import check_section, copy_recipe, environment, need, run

if TYPE_CHECKING:
    from pathlib import Path

#: The runtime has more.
MANY_FUNCTIONS = 1000


def test_go(tmp_path: Path, programs: Path) -> None:
    need("go", "cc", "strip")
    folder = copy_recipe("go", tmp_path / "words", with_project=False)
    caches = {name: str(tmp_path / name) for name in ("GOCACHE", "GOPATH")}
    env = environment(programs, GOPROXY="off", GOFLAGS="-mod=readonly", GOTOOLCHAIN="local", **caches)
    build = ["go", "build", "-trimpath", "-ldflags=-linkmode=external", "-o", "words", "."]
    run(*build, cwd=folder, env=env)
    program = folder / "words"
    result = run(program).out
    run("cfi2sframe", "--in-place", "--replace", "--from", "debug_frame", program, env=env)
    check_section(program, more_functions_than=MANY_FUNCTIONS, source="debug_frame")
    assert run(program, "0.3").out == result
    converted = program.read_bytes()
    run(*build, cwd=folder, env=env)
    assert program.read_bytes() == converted
    run("cfi2sframe", "dump", program, env=env)
    before = run("cfi2sframe", "dump", program, env=env).out
    run("strip", program)
    assert run("cfi2sframe", "dump", program, env=env).out == before
    assert run(program, "0.1").out == result
