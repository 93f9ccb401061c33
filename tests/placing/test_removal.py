# SPDX-License-Identifier: Apache-2.0
"""Removal from a file that has changed since the conversion; and rounds of conversion and removal."""

from pathlib import Path

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing
from cfi2sframe.constants.elf import PF_X, PT_GNU_STACK
from cfi2sframe.placing.removal import remove
from tests.support.elf.edit import File
from tests.support.jobs import OBJECT, remove_one
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    HEADER_SIZE,
    KINDS,
    LARGE,
    SMALL,
    converted,
    embed,
    embedded,
    emitted,
    linked_program,
    take_out,
    without_record,
    without_section_headers,
    write,
)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", KINDS)
def test_rounds_with_strip_in_between_do_not_grow_a_file(kind: str, size: int, tmp_path: Path) -> None:
    """Strip takes the record away, so zeros are left; the next section goes there."""
    need("strip")
    original = linked_program(kind=kind)
    path = write(tmp_path / "program", original.read_bytes())
    sizes = []
    for _ in range(4):
        embed(path, path, size)
        assert attempt("strip", path).status == 0
        write(path, take_out(path.read_bytes()))
        assert attempt(path) == attempt(original)
        sizes.append(path.stat().st_size)
    assert len(set(sizes[1:])) == 1


def test_a_change_since_is_kept() -> None:
    """As chrpath makes one: not where headers or moved sections are."""
    data = linked_program().read_bytes()
    full, changed = File(embedded(data, LARGE)[1]), File(data)
    for file in (full, changed):
        file.flip(file.section(".text").offset)
    restored = remove(bytes(full))
    assert bytes(restored.content) == bytes(changed)
    assert "changed after the conversion" in restored.lost


def test_a_change_of_headers_since_is_not_lost() -> None:
    """The record no longer fits: restoring the old program headers would undo what another tool did."""
    full = File(embedded(linked_program().read_bytes(), LARGE)[1])
    full.segment(PT_GNU_STACK).flags |= PF_X
    restored = remove(bytes(full))
    assert "its record no longer fits" in restored.lost
    assert File(bytes(restored.content)).segment(PT_GNU_STACK).flags & PF_X


@pytest.mark.parametrize("kind", ["program", "object"])
def test_a_record_that_does_not_fit_goes(kind: str) -> None:
    """As after elfedit: the next conversion succeeds, its removal gives that file, and rounds do not grow it."""
    data = OBJECT if kind == "object" else linked_program().read_bytes()
    full = bytearray(converted(data))
    full[7] = 3
    again = converted(bytes(full), 2)
    assert decode_existing(load(again)).version == 2
    sizes = set()
    for osabi in (0, 3, 0, 3, 0, 3):
        full[7] = osabi
        bare = take_out(bytes(full))
        assert bare[7] == osabi
        full = bytearray(converted(bare))
        sizes.add(len(bare))
    assert len(sizes) < 3


def test_the_section_of_another_producer_is_back_after_a_change(tmp_path: Path) -> None:
    full = File(converted(without_record(converted(linked_program().read_bytes(), 2))))
    text = full.section(".text").offset
    full.flip(text)
    path = write(tmp_path / "program", full)
    outcome = remove_one(path)
    assert "changes are kept" in outcome.warnings[0]
    assert "is restored" in outcome.warnings[1]
    assert decode_existing(path).version == 2
    assert path.read_bytes()[text] == full[text]


def test_of_an_empty_section_that_is_back_nothing_is_said(tmp_path: Path) -> None:
    other = without_record(embedded(linked_program().read_bytes(), HEADER_SIZE)[1])
    path = write(tmp_path / "program", emitted(convert(load(other))))
    outcome = remove_one(path)
    assert (outcome.status, outcome.warnings) == ("removed", ())
    assert path.read_bytes() == other


def test_a_note_changed_since_is_not_mixed_up() -> None:
    """The PT_NOTE that the conversion dropped would not repeat PT_GNU_PROPERTY any more: zeros are left instead."""
    data = without_section_headers(linked_program().read_bytes())
    full = converted(data)
    place = full.index(b"GNU\0")
    changed = full[:place] + b"GNV" + full[place + 3 :]
    bare = take_out(changed)
    assert not load(bare).has_sframe
    assert b"GNV\0" in bare
