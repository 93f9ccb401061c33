# SPDX-License-Identifier: Apache-2.0
"""Truncation at every byte, and changes of every single byte: a clear error, or a right conversion."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.abi import AMD64, S390X
from tests.fuzz import seeds, target_file, target_sframe
from tests.fuzz.harness import timed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.fuzz

#: Values that a byte is replaced by, and masks that change it.
VALUES: Final = (0x00, 0xFF, 0x7F)
MASKS: Final = (0x01, 0x80, 0x10)
#: Of all changes, one in so many is made: all of them take an hour.
SAMPLE: Final = 149
CUT_SAMPLE: Final = 41

FILES: Final = {
    "amd64-object": seeds.small_object(AMD64),
    "s390x-object": seeds.small_object(S390X),
    "amd64-linked": seeds.linked_file(AMD64),
    "s390x-linked": seeds.linked_file(S390X),
    "amd64-no-sections": seeds.linked_file(AMD64, section_headers=False),
}
SECTIONS: Final = dict(seeds.sframe_sections())


def changed(data: bytes) -> Iterator[bytes]:
    """Yield the data with each byte changed in each way."""
    for place, byte in enumerate(data):
        for value in {*VALUES, *(byte ^ mask for mask in MASKS)} - {byte}:
            yield data[:place] + bytes((value,)) + data[place + 1 :]


def cut(data: bytes) -> Iterator[bytes]:
    """Yield every beginning of the data."""
    return (data[:size] for size in range(len(data)))


def feed(inputs: Iterator[bytes], run: Callable[[bytes], None], step: int = 1) -> int:
    chosen = list(islice(inputs, 0, None, step))
    for data in chosen:
        timed(run, data)
    return len(chosen)


@pytest.mark.parametrize("name", FILES)
def test_truncated_files(name: str) -> None:
    assert feed(cut(FILES[name]), target_file.run, CUT_SAMPLE) > 20


@pytest.mark.parametrize("name", FILES)
def test_changed_bytes(name: str) -> None:
    assert feed(changed(FILES[name]), target_file.run, SAMPLE) > 30


@pytest.mark.parametrize("name", SECTIONS)
def test_every_truncated_section(name: str) -> None:
    assert feed(cut(SECTIONS[name]), target_sframe.run) == len(SECTIONS[name])


@pytest.mark.parametrize("name", SECTIONS)
def test_changed_bytes_of_a_section(name: str) -> None:
    assert feed(changed(SECTIONS[name]), target_sframe.run, 3) > len(SECTIONS[name])
