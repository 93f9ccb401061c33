# SPDX-License-Identifier: Apache-2.0
"""The rows of a conversion equal what two independent readers make of the same CFI, on large libraries."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support import known_wrong
from tests.support.oracle.rows import Printer, Reader, compare_rows, fdes_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.oracle.tools import Binutils, BinutilsVersion, CorpusArch, Tool

pytestmark = [pytest.mark.oracle, pytest.mark.corpus]

# Library -> fewest FDEs that it must have, because an empty answer of a tool is no success.
LIBRARIES = {
    "libc.so.6": 3_000,
    "libstdc++.so.6": 4_000,
    "libcrypto.so.3": 10_000,
    "libpython3.13.so.1.0": 6_000,
    "machine's libc": 3_000,
}
MACHINE_LIBC = Path("/lib/x86_64-linux-gnu/libc.so.6")
# Left out in these versions: nearly nothing, and never a function that default rows can express.
MAX_LEFT_OUT = {2: 250, 3: 150}


@pytest.fixture(autouse=True)
def _no_collection() -> Iterator[None]:
    """Millions of tuples without a cycle: collecting would be half of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def library(request: pytest.FixtureRequest, corpus: Callable[[CorpusArch], Path]) -> Path:
    name: str = request.param
    if name == "machine's libc":
        if not MACHINE_LIBC.exists():
            pytest.skip(f"no {MACHINE_LIBC}")
        return MACHINE_LIBC
    return corpus("amd64") / "usr/lib/x86_64-linux-gnu" / name


@pytest.mark.parametrize("printer", ["readelf", "llvm-dwarfdump"])
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("library", LIBRARIES, indirect=True)
def test_rows_are_those_of_another_reader(
    library: Path,
    printer: Printer,
    version: int,
    request: pytest.FixtureRequest,
    binutils: Callable[[BinutilsVersion], Binutils],
    llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
) -> None:
    if printer == "readelf":
        tools = binutils("newest")
        tool, tool_version = tools.tool("readelf"), tools.version
    else:
        tool, tool_version = str(llvm_dwarfdump("newest").path), llvm_dwarfdump("newest").version
    name = request.node.callspec.params["library"]
    known_wrong.expect_failure(request, f"rows-{name}", printer, tool_version)
    reader = Reader(printer, tool)
    assert len(fdes_of(reader, library, "amd64")) >= LIBRARIES[name]
    found = compare_rows(reader, library, version, "amd64")
    assert found.problems == []
    assert found.left_out <= MAX_LEFT_OUT[version]
    assert found.points > 2 * found.described
