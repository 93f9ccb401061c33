# SPDX-License-Identifier: Apache-2.0
"""The rows of every FDE of large files equal those of an evaluator that shares nothing with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.sources import find_cfi
from tests.support import cfi_asm as asm
from tests.support import naive
from tests.support.naive_compare import problems_of
from tests.support.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.oracle.tools import CorpusArch

#: Where a file is, and the fewest FDEs that it must have.
OF_CORPUS = {
    "libc.so.6": 3_000,
    "libstdc++.so.6": 4_000,
    "libcrypto.so.3": 10_000,
    "libpython3.13.so.1.0": 6_000,
}
OF_MACHINE = {
    "/lib/x86_64-linux-gnu/libc.so.6": 3_000,
    "/usr/lib/x86_64-linux-gnu/libgcrypt.so.20": 1_000,
    "/usr/aarch64-linux-gnu/lib/libc.so.6": 2_000,
    "/usr/s390x-linux-gnu/lib/libc.so.6": 2_000,
    "/usr/aarch64-linux-gnu/lib/libstdc++.so.6": 3_000,
    "/usr/s390x-linux-gnu/lib/libstdc++.so.6": 3_000,
}


def compare(path: Path) -> tuple[int, int, list[str]]:
    """Return how many FDEs and rows were compared, and every difference."""
    image = load(str(path))
    cfi = read_programs(image, *find_cfi(image, "eh_frame"))
    assert cfi.damaged == ()
    numbers = {offset: number for number, offset in enumerate(cfi.entries.offsets)}
    rows, problems, fdes = 0, [], 0
    for fde in naive.fdes_of(path):
        number = numbers.pop(fde.offset)
        fdes += 1
        table = cfi.programs[cfi.entries.program_numbers[number]].table
        place = f"{fde.start_vaddr:#x}"
        if (cfi.entries.starts[number], cfi.entries.sizes[number]) != (fde.start_vaddr, fde.size):
            problems.append(f"{place}: another range")
        own = [row for row in fde.rows if row.start < max(fde.size, 1)]
        rows += len(own)
        problems += [place + text for text in problems_of(table, own, fde.ra_column, image.arch)]
    return fdes, rows, problems + [f"+{offset:#x}: only here" for offset in numbers]


@pytest.mark.corpus
@pytest.mark.parametrize("name", OF_CORPUS)
def test_rows_of_the_corpus(name: str, corpus: Callable[[CorpusArch], Path]) -> None:
    found = compare(corpus("amd64") / "usr/lib/x86_64-linux-gnu" / name)
    assert found[2] == []
    assert found[0] >= OF_CORPUS[name]
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("name", OF_MACHINE)
def test_rows_of_the_machine(name: str) -> None:
    if not Path(name).exists():
        pytest.skip(f"no {name}")
    found = compare(Path(name))
    assert found[2] == []
    assert found[0] >= OF_MACHINE[name]
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize(
    "spoiled",
    [asm.def_cfa_offset(24), asm.offset(6, 3), asm.undefined(16), asm.advance(1)],
    ids=["CFA", "FP", "RA", "location"],
)
def test_differences_are_seen(spoiled: asm.Instruction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cfi2sframe.abi import AMD64

    good = (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2), asm.advance(3), asm.def_cfa_register(6))
    files = []
    for name, instructions in (("good", good), ("spoiled", (*good[:3], spoiled, *good[3:]))):
        files.append(tmp_path / name)
        files[-1].write_bytes(linked_file(AMD64, [asm.Fde(cie_of(AMD64), TEXT_VADDR, 32, instructions)]))
        assert compare(files[-1])[2] == []
    theirs = list(naive.fdes_of(files[1]))
    monkeypatch.setattr(naive, "fdes_of", lambda _path: iter(theirs))
    assert compare(files[0])[2] != []
