# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions against the CFI of compilers, which is hidden from the analysis: none is wrong."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from tests.support.instructions.hidden import compare
from tests.support.needs import need
from tests.support.oracle.tools import CorpusArch, corpus_directory

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


_FILES: Final = {
    "amd64": ("bin/bash", "bin/cp", "lib/x86_64-linux-gnu/libx264.so.164"),
    "arm64": ("bin/bash", "bin/cp", "lib/aarch64-linux-gnu/libstdc++.so.6"),
}


@pytest.mark.corpus
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("arch", _FILES)
def test_files_of_a_distribution(arch: CorpusArch, seed: int | None) -> None:
    for name in _FILES[arch]:
        found = compare(load(corpus_directory(arch) / "usr" / name), seed)
        assert found.wrong == ()
        assert found.derived > found.hidden // 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", ["libm.so.6", "libgomp.so.1", "libstdc++.so.6"])
def test_libraries_of_s390x(name: str, seed: int | None) -> None:
    path = Path("/usr/s390x-linux-gnu/lib") / name
    if not path.exists():
        pytest.skip("no C library of s390x: make packages")
    assert compare(load(path), seed).wrong == ()
