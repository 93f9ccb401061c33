# SPDX-License-Identifier: Apache-2.0
"""Functions cut and joined (-O2): every reader takes them, and every PC keeps its row.

Readers of sections: GNU readelf of three releases, and strict ones as in kernels. Readers of the CFI: pyelftools and
llvm-dwarfdump, with whose rows those of the sections are compared.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.api import decode
from cfi2sframe.conversion import Options
from tests.sframe.test_readelf_accepts import READERS, check_file
from tests.support.kernel_reader import code_of, complaints
from tests.support.oracle.rows import compare_rows
from tests.support.sums import check_sums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = [pytest.mark.oracle, pytest.mark.corpus, pytest.mark.sampled]

LIBRARIES = {
    "amd64": "usr/lib/x86_64-linux-gnu/libc.so.6",
    "arm64": "usr/lib/aarch64-linux-gnu/libc.so.6",
    "s390x": "usr/lib/s390x-linux-gnu/libc.so.6",
}
#: A small program for every day, and two files that take longer. All have this name for each architecture.
PROGRAM = "usr/bin/ls"
NAMES = [PROGRAM, *(pytest.param(name, marks=pytest.mark.slow) for name in ("usr/bin/bash", "libc"))]


def path_of(name: str, arch: CorpusArch, corpus: Callable[[CorpusArch], Path]) -> Path:
    """Return one of the files."""
    return corpus(arch) / (LIBRARIES[arch] if name == "libc" else name)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reader", READERS)
def test_readelf_prints_what_dump_prints(
    name: str,
    reader: str,
    tmp_path: Path,
    corpus: Callable[[CorpusArch], Path],
    binutils: Callable[[BinutilsVersion], Binutils],
) -> None:
    version, options = READERS[reader]
    found = binutils(version), options._replace(level=2)
    assert check_file(path_of(name, "amd64", corpus), found, tmp_path) > (1_500 if name == PROGRAM else 10_000)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", LIBRARIES)
@pytest.mark.parametrize("version", [2, 3])
def test_strict_readers_are_content(
    arch: CorpusArch, name: str, version: int, corpus: Callable[[CorpusArch], Path]
) -> None:
    image = load(str(path_of(name, arch, corpus)))
    options = Options(version, level=2)
    conversion = convert(image, **options._asdict())
    assert complaints(conversion.data, conversion.section_vaddr, code_of(image)) == []
    assert verify(image, decode(conversion.data, conversion.section_vaddr), source=options.source).is_clean
    check_sums(conversion, may_join=True)
    assert len(conversion.data) < len(convert(image, **options._replace(level=1)._asdict()).data)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("arch", LIBRARIES)
def test_rows_are_those_of_another_reader_of_the_cfi(
    arch: CorpusArch,
    name: str,
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    corpus: Callable[[CorpusArch], Path],
) -> None:
    """At every boundary of either, in both versions."""
    for version in (2, 3):
        found = compare_rows(path_of(name, arch, corpus), version, 2, str(llvm_dwarfdump("newest").path))
        assert found.problems == [], version
        assert found.points > 2 * found.described
