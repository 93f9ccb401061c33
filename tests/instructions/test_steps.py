# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions held to execution: each instruction of programs whose CFI is not read."""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.instructions.derive import derive
from tests.support.instructions.stepped import step
from tests.support.needs import need

pytestmark = pytest.mark.oracle

PROGRAMS: Final = Path(__file__).resolve().parents[1] / "support/instructions/programs"
OPTIONS: Final = (
    "-O0",
    "-O2",
    "-Os",
    "-O2 -fno-omit-frame-pointer",
    "-O2 -mstackrealign",
    "-O1 -fstack-clash-protection",
    "-O2 -mindirect-branch=thunk -fcf-protection=none",
    "-O2 -fsplit-stack",
)


def compiled(compiler: str, options: Sequence[str], folder: Path) -> Path:
    program = folder / "stepped"
    command = [need(compiler), *options, "-w", str(PROGRAMS / "stepped.c"), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"{compiler} cannot compile it: {done.stderr.splitlines()[-1]}")
    return program


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.slow
def test_compiled_programs(compiler: str, options: str, tmp_path: Path) -> None:
    found = step([compiled(compiler, options.split(), tmp_path)], limit=3000)
    assert (found.wrong, found.shown) == (0, ())
    assert found.compared > 200


def test_a_threaded_interpreter(tmp_path: Path) -> None:
    """Its labels are words of data, and each ends in a jump to a function of the file."""
    options = ["-O2", "-mindirect-branch=thunk", "-fcf-protection=none", "-fno-asynchronous-unwind-tables"]
    found = step([compiled("gcc", options, tmp_path)], limit=3000)
    assert (found.wrong, found.shown) == (0, ())
    assert found.compared > 200


@pytest.mark.parametrize(
    ("compiler", "option"),
    [
        ("gcc", "-O2"),
        *(pytest.param(f"{arch}-linux-gnu-gcc", "-static", marks=pytest.mark.slow) for arch in ("aarch64", "s390x")),
    ],
)
def test_a_wrong_row_is_seen(compiler: str, option: str, tmp_path: Path) -> None:
    """What the other tests rely on."""
    found = step([compiled(compiler, [option], tmp_path)], limit=100, shift=8)
    assert found.wrong == found.compared == 100


def test_symbols_of_functions_on_code_that_is_none(tmp_path: Path) -> None:
    linked = tmp_path / "linked"
    source = PROGRAMS / "no_functions.s"
    subprocess.run([need("gcc"), "-nostdlib", "-static", source, "-o", linked], check=True)
    image = load(linked)
    functions = derive(image, ()).functions
    names = image.names_of({function.start_vaddr for function in functions})
    assert set(names.values()) == {"handler", "_start"}


@pytest.mark.parametrize("options", ["-O0", "-O2", "-O2 -fno-omit-frame-pointer"])
@pytest.mark.parametrize("arch", ["aarch64", "s390x"])
@pytest.mark.slow
def test_programs_of_other_abis(arch: str, options: str, tmp_path: Path) -> None:
    """Most of the steps are of the C library's; signed return addresses are the compiler's default in none of it."""
    signed = ["-mbranch-protection=standard"] if arch == "aarch64" else []
    program = compiled(f"{arch}-linux-gnu-gcc", ["-static", *signed, *options.split()], tmp_path)
    found = step([program], limit=3000)
    assert (found.wrong, found.shown) == (0, ())
    assert found.places > 500
