# SPDX-License-Identifier: Apache-2.0
"""Who reads which FDEs of a large section, and what is sent."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.dwarf.ahead import ReadAhead, read_later
from cfi2sframe.dwarf.entries import EntryWalk
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.elf.cfi import find_cfi
from cfi2sframe.errors import CfiError
from tests import cfi_asm as asm
from tests.children import children
from tests.samples import TEXT_VADDR, cie_of, linked

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 100


@pytest.fixture(name="walk")
def _walk() -> EntryWalk:
    """Make a section of functions with a string of their own each."""
    cie = cie_of(AMD64)
    strings = [(asm.advance(1), asm.def_cfa_offset(8 * number)) for number in range(1, COUNT + 1)]
    fdes = [asm.Fde(cie, TEXT_VADDR + 16 * n, 16, string) for n, string in enumerate(strings)]
    (section,) = find_cfi(linked(AMD64, *fdes))
    return EntryWalk(section, PointerBases("<", section.table_vaddr, lambda _: None))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    before = children()
    yield
    assert children() == before


def test_both_have_their_share(walk: EntryWalk) -> None:
    offsets = [fields[0] for fields in walk.fdes()]
    ahead = ReadAhead(walk)
    later = ahead.result()
    assert later is not None
    assert [*later.offsets] == [offset for offset in offsets if offset >= ahead.first_offset]
    assert COUNT // 2 < len(later.offsets) < COUNT * 3 // 4


@pytest.mark.parametrize("number", [0, 1, COUNT // 2, COUNT - 1])
def test_fdes_from_an_offset_on(walk: EntryWalk, number: int) -> None:
    fdes = list(walk.fdes())
    for first_offset, first in ((fdes[number][0], number), (fdes[number][0] + 1, number + 1)):
        later = read_later(walk, first_offset)
        assert list(zip(later.offsets, later.starts, later.sizes, later.programs, strict=True)) == [
            (offset, start, size, n) for n, (offset, _, start, size, *_) in enumerate(fdes) if n >= first
        ]
        assert later.first_fdes == [fields[0] for fields in fdes]
        assert later.first_fdes_of_cie == [fdes[0][0]] * COUNT
        assert [string is not None for string in later.strings] == [n >= first for n in range(COUNT)]


def test_a_string(walk: EntryWalk) -> None:
    (*_, string) = read_later(walk, 0).strings
    assert string is not None
    codes, starts = string
    assert starts == (0, 1)
    # Padding behind instructions is instructions.
    assert [code.strip(b"\0") for code in codes] == [b"\x0e\xa0\x06"]


def test_damage_is_for_the_caller() -> None:
    fdes = (asm.Fde(cie_of(AMD64), TEXT_VADDR, 16), asm.Raw(b"\x08\0\0\0\x77\x77\x77\x77\0\0\0\0"))
    (section,) = find_cfi(linked(AMD64, *fdes))
    walk = EntryWalk(section, PointerBases("<", section.table_vaddr, lambda _: None))
    with pytest.raises(CfiError, match="damaged"):
        read_later(walk, 0)
    assert ReadAhead(walk).result() is None


def test_stopping(walk: EntryWalk, monkeypatch: pytest.MonkeyPatch) -> None:
    fork = os.fork

    def fork_slowly() -> int:
        process = fork()
        if process == 0:
            time.sleep(60)
        return process

    monkeypatch.setattr(os, "fork", fork_slowly)
    began = time.monotonic()
    ahead = ReadAhead(walk)
    ahead.stop()
    assert ahead.result() is None
    assert time.monotonic() - began < 30


def test_without_another_process(walk: EntryWalk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert ReadAhead(walk).result() is None
