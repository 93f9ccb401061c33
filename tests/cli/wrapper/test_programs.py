# SPDX-License-Identifier: Apache-2.0
"""The program that a wrapper stands in for: which one, how it is started, and what its failure means."""

import os
from pathlib import Path

import pytest

from cfi2sframe.cli.wrapper.programs import role_of
from tests.support.contrib import environment, run, wrapper_folder
from tests.support.needs import attempt, need

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize(
    ("name", "words", "variable", "names"),
    [
        ("/x/ld", [], "CFI2SFRAME_LD", ("ld",)),
        ("cfi2sframe-ld", [], "CFI2SFRAME_LD", ("ld",)),
        ("ld.lld", [], "CFI2SFRAME_LD", ("ld.lld",)),
        ("aarch64-linux-gnu-ld.bfd", [], "CFI2SFRAME_LD", ("aarch64-linux-gnu-ld.bfd",)),
        ("cfi2sframe-ld", ["-Wl,-z,now"], "CFI2SFRAME_CC", ("cc", "gcc", "clang")),
        ("cfi2sframe-cc", [], "CFI2SFRAME_CC", ("cc", "gcc", "clang")),
        ("cfi2sframe-g++-12", [], "CFI2SFRAME_CC", ("g++-12",)),
    ],
)
def test_role_of(name: str, words: list[str], variable: str, names: tuple[str, ...]) -> None:
    role = role_of(name, words)
    assert (role.variable, role.names) == (variable, names)


def test_the_linker_s_exit_status_counts(tmp_path: Path, programs: Path, objects: list[str]) -> None:
    result = attempt("cfi2sframe-ld", "-o", "words", objects[0], cwd=tmp_path, env=environment(programs))
    assert result.status == 1
    assert "undefined reference" in result.err
    assert "cfi2sframe" not in result.err.replace("cfi2sframe-ld", "")


def test_a_wrapper_is_not_its_own_linker(tmp_path: Path, programs: Path) -> None:
    """Neither under another name, nor in a folder of PATH, nor by its variable."""
    need("ld")
    folder = wrapper_folder(programs, tmp_path / "sframe-ld")
    env = environment(programs)
    env["PATH"] = os.pathsep.join([str(folder), env["PATH"]])
    assert "GNU ld" in run(folder / "ld", "--version", cwd=tmp_path, env=env).out
    env["CFI2SFRAME_LD"] = str(folder / "ld")
    assert attempt("cfi2sframe-ld", "--version", cwd=tmp_path, env=env).status == 127


def test_a_linker_that_cannot_be_started(tmp_path: Path, programs: Path) -> None:
    linker = tmp_path / "linker"
    linker.write_text("#!/no/such/interpreter\n")
    linker.chmod(0o755)
    result = attempt("cfi2sframe-ld", "x.o", cwd=tmp_path, env=environment(programs, CFI2SFRAME_LD=str(linker)))
    assert (result.status, f"{linker}: error: cannot be started" in result.err) == (126, True)
