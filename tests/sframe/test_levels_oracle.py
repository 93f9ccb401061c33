# SPDX-License-Identifier: Apache-2.0
"""Functions cut and joined (-O2): GNU readelf prints them, a strict reader is content, and every PC keeps its row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe import Options, convert, decode, load, verify
from tests.sframe.test_readelf_accepts import READERS, check_file
from tests.support.kernel_reader import code_of, complaints
from tests.support.sums import check_sums

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch

pytestmark = [pytest.mark.oracle, pytest.mark.corpus]

FILES = {
    "amd64": ("usr/bin/bash", "usr/lib/x86_64-linux-gnu/libc.so.6"),
    "arm64": ("usr/bin/bash", "usr/lib/aarch64-linux-gnu/libc.so.6"),
}
NAMES = [(arch, name) for arch, names in FILES.items() for name in names]


@pytest.mark.parametrize("name", FILES["amd64"])
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
    assert check_file(corpus("amd64") / name, found, tmp_path) > 10_000


@pytest.mark.parametrize(("arch", "name"), NAMES)
@pytest.mark.parametrize("version", [2, 3])
def test_strict_readers_are_content(
    arch: CorpusArch, name: str, version: int, corpus: Callable[[CorpusArch], Path]
) -> None:
    image = load(str(corpus(arch) / name))
    options = Options(version, level=2)
    conversion = convert(image, options)
    assert complaints(conversion.data, conversion.section_vaddr, code_of(image)) == []
    assert verify(image, decode(conversion.data, conversion.section_vaddr), options).is_clean
    check_sums(conversion, may_join=True)
    assert len(conversion.data) < len(convert(image, options._replace(level=1)).data)
