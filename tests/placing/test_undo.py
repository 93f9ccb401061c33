# SPDX-License-Identifier: Apache-2.0
"""The record of a conversion restores the original, whatever a later release does when it inserts a section."""

from hashlib import sha256
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.elf.contents import Splice, overwrite, spliced
from cfi2sframe.placing import place
from cfi2sframe.placing.removal import remove
from cfi2sframe.placing.undo import (
    Kept,
    NoOriginal,
    Original,
    UndoRecord,
    _unpacked,
    _unpatched,
    digest_of,
    original_of,
    record_span,
    with_record,
)
from cfi2sframe.range_map import Span
from tests.support.cli import ROOT
from tests.support.elf.elf_asm import Section, Symbol, elf_file
from tests.support.jobs import OBJECT
from tests.support.placing.embedded import KINDS, LARGE, converted, embedded, linked_program, take_out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("constant", "value"), [("_PAGE_SIZE", 64), ("_PAGE_SIZE", 1 << 15), ("_LARGEST_PAGE_SIZE", 1 << 21)]
)
def test_another_placement_restores_it(kind: str, constant: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = linked_program(kind=kind).read_bytes()
    full = embedded(data, LARGE)[1]
    monkeypatch.setattr(place, constant, value)
    assert embedded(data, LARGE)[1] != full
    restored = remove(full)
    assert (bytes(restored.content), restored.lost) == (data, "")


def kept() -> dict[str, str]:
    """Return the files of `testdata/converted`, each with the SHA-256 of its original."""
    lines = (ROOT / "testdata/converted/SHA256SUMS").read_text().split("\n")[:-1]
    return {name: digest for digest, name in map(str.split, lines)}


@pytest.mark.parametrize("name", kept())
def test_files_of_earlier_commits_are_restored(name: str) -> None:
    """Three ABIs, each way of placement: whatever is placed differently since."""
    data = (ROOT / "testdata/converted" / name).read_bytes()
    assert sha256(take_out(data)).hexdigest() == kept()[name]


def test_each_way_of_placement_is_kept() -> None:
    assert len(kept()) > 10
    assert {name.partition("-")[0] for name in kept()} == {"amd64", "aarch64", "s390x"}


def _replaced(full: bytes, record: UndoRecord) -> bytes:
    """Return what the patches of a record replace."""
    order = load(full).byte_order
    body = _unpatched(full, order, record)
    return b"".join(body[patch.span.start : patch.span.end] for patch in record.patches)


def test_a_record_at_the_end_of_another_file_is_not_followed() -> None:
    full = embedded(linked_program().read_bytes(), LARGE)[1]
    span = record_span(full)
    assert span is not None
    other = linked_program("lld").read_bytes()
    assert original_of(other + full[span.start :]) is NoOriginal.OTHER_FILE
    assert original_of(full + full[span.start :]) is NoOriginal.OTHER_FILE


@pytest.mark.parametrize("kind", ["program", "object"])
def test_a_forged_record_changes_no_code(kind: str) -> None:
    """Its digests are right, but the original that it restores is another program."""
    data = OBJECT if kind == "object" else linked_program().read_bytes()
    full = converted(data)
    span = record_span(full)
    assert span is not None
    found = _unpacked(full[span.start :])
    assert found is not None
    text = next(section for section in load(data).sections if section.name == ".text")
    patch = overwrite(text.file_offset, b"\xeb\xfe")
    evil = data[: patch.span.start] + patch.content + data[patch.span.end :]
    forged = found._replace(original_digest=digest_of(evil), patches=(*found.patches, patch))
    body = full[: found.rewritten_size]
    image = load(full)
    code = next(section for section in image.sections if section.name == ".text")
    old = full[code.file_offset : code.file_offset + 2]
    forged = forged._replace(replaced_digest=sha256(_replaced(full, found) + old).digest())
    attacked = body + forged.pack()
    restored = original_of(attacked)
    assert isinstance(restored, Original)
    assert restored.is_exact
    bare = take_out(attacked)
    (after,) = (section for section in load(bare).sections if section.name == ".text")
    assert bare[after.file_offset : after.file_offset + 2] == old
    assert not load(bare).has_sframe


class Edit(NamedTuple):
    """Bytes that replace others; where they are."""

    start: int
    removed: int
    content: bytes


FILE = elf_file(62, (Section(".text", bytes(range(256)) * 2),), symbols=(Symbol("f"), Symbol("g", value=8)))


@st.composite
def edits(draw: st.DrawFn) -> list[Edit]:
    cuts = sorted(draw(st.sets(st.integers(64, len(FILE)), min_size=2, max_size=8)))
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return [Edit(start, draw(st.sampled_from((0, end - start))), draw(st.binary(max_size=40))) for start, end in pairs]


@given(edits(), st.data())
def test_any_change_is_undone(changes: list[Edit], data: st.DataObject) -> None:
    """Whatever the sources say, as long as they are named as such: what differs is recorded."""
    rewritten = b"".join(spliced(FILE, [Splice(*change) for change in changes]))
    size = len(rewritten)
    assume(2 * size >= len(FILE))
    kept: list[Kept] = []
    position = new_position = 0
    for start, removed, content in (*changes, Edit(len(FILE), 0, b"")):
        kept.append(Kept(position, start - position, new_position))
        new_position += start - position + len(content)
        position = start + removed
    for _ in range(data.draw(st.integers(0, 3))):
        start = data.draw(st.integers(64, len(FILE) - 1))
        length = data.draw(st.integers(1, min(size, len(FILE) - start)))
        kept.append(Kept(start, length, data.draw(st.integers(0, size - length))))
    full = with_record(FILE, rewritten, kept, [Span(0, 64)], [Span(64, len(FILE))])
    restored = original_of(bytes(full))
    assert isinstance(restored, Original)
    assert restored.is_exact
    assert bytes(restored.content) == FILE


@given(st.integers(0, 1 << 64), st.binary(min_size=1, max_size=8), st.booleans())
def test_a_damaged_record_restores_the_original_or_nothing(at: int, noise: bytes, is_cut: bool) -> None:  # noqa: FBT001
    full = bytes(with_record(FILE, FILE + b"tail", [Kept(0, len(FILE), 0)], [Span(0, 64)], ()))
    start = len(FILE) + 4 + at % (len(full) - len(FILE) - 4)
    changed = full[:start] if is_cut else full[:start] + noise + full[start + len(noise) :]
    restored = original_of(changed)
    assert isinstance(restored, NoOriginal) or not restored.is_exact or bytes(restored.content) == FILE
