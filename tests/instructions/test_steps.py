# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions held to execution: each instruction of programs whose CFI is not read."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.instructions.derive import derive
from tests.support.instructions import emulated, stepped
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Sequence

pytestmark = pytest.mark.oracle

PROGRAMS: Final = Path(stepped.__file__).with_name("programs")
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


@pytest.fixture(scope="module")
def stepper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stepped.stepper(tmp_path_factory.mktemp("stepper"))


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
def test_compiled_programs(compiler: str, options: str, stepper: Path, tmp_path: Path) -> None:
    found = stepped.step(stepper, [compiled(compiler, options.split(), tmp_path)])
    assert (found.wrong, found.shown) == (0, ())
    assert found.compared > 200


def test_a_threaded_interpreter(stepper: Path, tmp_path: Path) -> None:
    """Its labels are words of data, and each ends in a jump to a function of the file."""
    options = ["-O2", "-mindirect-branch=thunk", "-fcf-protection=none", "-fno-asynchronous-unwind-tables"]
    found = stepped.step(stepper, [compiled("gcc", options, tmp_path)])
    assert (found.wrong, found.shown) == (0, ())
    assert found.compared > 200


def test_a_wrong_row_is_seen(stepper: Path, tmp_path: Path) -> None:
    """What the other tests rely on."""
    found = stepped.step(stepper, [compiled("gcc", ["-O2"], tmp_path)], shift=8)
    assert found.wrong == found.compared > 0


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
def test_programs_in_an_emulator(arch: str, options: str, tmp_path: Path) -> None:
    """Most of the steps are of the C library's; signed return addresses are the compiler's default in none of it."""
    signed = ["-mbranch-protection=standard"] if arch == "aarch64" else []
    program = compiled(f"{arch}-linux-gnu-gcc", ["-static", *signed, *options.split()], tmp_path)
    found = emulated.step([program], limit=3000)
    assert (found.wrong, found.shown) == (0, ())
    assert found.places > 500


@pytest.mark.parametrize("arch", ["aarch64", "s390x"])
@pytest.mark.slow
def test_a_wrong_row_is_seen_in_an_emulator(arch: str, tmp_path: Path) -> None:
    found = emulated.step([compiled(f"{arch}-linux-gnu-gcc", ["-static"], tmp_path)], limit=100, shift=8)
    assert found.wrong == found.compared == 100
