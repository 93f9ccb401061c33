# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions against the CFI of compilers, which is hidden from the analysis: none is wrong."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from tests.support.instructions.hidden import compare
from tests.support.needs import need

pytestmark = pytest.mark.oracle

SOURCE: Final = Path(__file__).resolve().parents[1] / "support/instructions/programs/whole_functions.c"
COMPILERS: Final = ("gcc", "clang", "aarch64-linux-gnu-gcc", "s390x-linux-gnu-gcc")
OPTIONS: Final = ("-O0", "-O2", "-Os", "-O2 -fno-omit-frame-pointer", "-O3 -fstack-protector-all")
SEEDS: Final = (None, 1, 2, 3)
#: What makes the file, and by what seeds its CFI is hidden: of objects, in which nothing is linked yet, all of it.
KINDS: Final[dict[str, tuple[list[str], tuple[int | None, ...]]]] = {
    "symbols": (["-fPIC", "-shared", "-nostdlib"], SEEDS),
    "stripped": (["-fPIC", "-shared", "-nostdlib", "-s"], SEEDS),
    "object": (["-c"], (None,)),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("compiler", COMPILERS)
def test_compiled_functions(compiler: str, options: str, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "compiled"
    flags, seeds = KINDS[kind]
    subprocess.run([need(compiler), *options.split(), *flags, "-w", str(SOURCE), "-o", str(path)], check=True)
    for seed in seeds:
        found = compare(load(path), seed)
        assert found.wrong == ()
        # Most of what is not derived ends in a jump to an import.
        assert found.derived > found.hidden // 3
