# SPDX-License-Identifier: Apache-2.0
"""Linked files whose headers ask for much: sections, segments, notes and names by the thousands keep to the promise."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from tests.support.bounds import run_within_bound
from tests.support.linked_by_hand import noted_file, notes_of, with_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

_EMPTY_NOTES: Final = struct.pack("<III", 0, 0, 1) * 3000
_LONG_NAME: Final = "n" * 400_000


def many_notes() -> bytes:
    """Sections of one name, all of which move to make room for program headers."""
    return noted_file(notes_of(9000))


def many_segments() -> bytes:
    """Read-only segments, each with room after it, and many sections."""
    return noted_file(notes_of(6000), loads=1000)


def notes_over_and_over() -> bytes:
    """Segments that lead to the same thousands of notes."""
    return noted_file([_EMPTY_NOTES, *notes_of(1)], note_segments=200)


def one_long_name() -> bytes:
    """A name of 400,000 characters, which thousands of sections share."""
    data = noted_file(notes_of(5000))
    return with_names(data, {".note.package": _LONG_NAME})


@pytest.mark.parametrize(
    ("make", "status"), [(many_notes, 0), (many_segments, 0), (notes_over_and_over, 3), (one_long_name, 0)]
)
def test_linked_files(make: Callable[[], bytes], status: int, tmp_path: Path) -> None:
    data = make()
    path, out = tmp_path / "in.elf", tmp_path / "out.elf"
    path.write_bytes(data)
    converted = run_within_bound(path, "-o", out, input_size=len(data))
    assert converted.status == status, converted.err[-300:]
    if status == 0:
        removed = run_within_bound("remove", out, "-o", tmp_path / "bare.elf", input_size=len(data))
        assert removed.status == 0, removed.err[-300:]
        assert (tmp_path / "bare.elf").read_bytes() == data
    assert run_within_bound("coverage", path, input_size=len(data)).status == 0
