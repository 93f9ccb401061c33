# SPDX-License-Identifier: Apache-2.0
"""Rows of large libraries of other architectures equal those of two independent readers of the same CFI."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support.oracle.rows import Printer, Reader, compare_rows, fdes_of
from tests.support.targets import AARCH64, S390, Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = [pytest.mark.oracle, pytest.mark.corpus]

# Library -> fewest FDEs that it must have, because an empty answer of a tool is no success.
LIBRARIES = {
    "libc.so.6": 3_000,
    "libstdc++.so.6": 4_000,
    "libcrypto.so.3": 10_000,
    "libpython3.13.so.1.0": 6_000,
}
# In version 2: libc's functions on AArch64 that keep RA in another register.
MAX_LEFT_OUT = {(AARCH64, "libc.so.6", 2): 20}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: collecting would be half of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture(params=["newest", "2.44", "llvm-dwarfdump"])
def reader(
    request: pytest.FixtureRequest,
    binutils: Callable[[BinutilsVersion], Binutils],
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
) -> Callable[[Target], Reader]:
    if request.param == "llvm-dwarfdump":
        path = str(llvm_dwarfdump("newest").path)
        return lambda _target: Reader("llvm-dwarfdump", path)
    tools = binutils(request.param)
    printer: Printer = "readelf"
    return lambda target: Reader(printer, tools.tool("readelf", target.name))


@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.parametrize("target", [AARCH64, S390], ids=lambda target: target.name)
def test_rows_are_those_of_another_reader(
    target: Target, name: str, reader: Callable[[Target], Reader], corpus: Callable[[CorpusArch], Path]
) -> None:
    library = corpus(target.corpus) / "usr/lib" / target.triplet / name
    asked = reader(target)
    assert len(fdes_of(asked, library, target.name)) >= LIBRARIES[name]
    for version in (2, 3):
        found = compare_rows(asked, library, version, target.name)
        assert found.problems == [], version
        assert found.left_out <= MAX_LEFT_OUT.get((target, name, version), 0)
        assert found.points > 2 * found.described
