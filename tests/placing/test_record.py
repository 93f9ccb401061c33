# SPDX-License-Identifier: Apache-2.0
"""The record of a conversion restores the original, whatever a later release does when it inserts a section."""

from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing
from cfi2sframe.elf.contents import Splice, spliced
from cfi2sframe.elf.spans import Span
from cfi2sframe.jobs.records import Settings
from cfi2sframe.placing import place
from cfi2sframe.placing.record import (
    Kept,
    Patch,
    UndoRecord,
    _unpacked,
    _unpatched,
    digest_of,
    original_of,
    record_span,
    with_record,
)
from cfi2sframe.placing.remove import remove_section
from tests.support.cli import ROOT
from tests.support.elf.elf_asm import Section, Symbol, elf_file
from tests.support.jobs import OBJECT, convert_one
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    KINDS,
    converted,
    embedded,
    emitted,
    linked_program,
    take_out,
    without_section_headers,
    write,
)

LARGE = 1 << 16
ROUNDS = 50


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("constant", "value"), [("_PAGE_SIZE", 64), ("_PAGE_SIZE", 1 << 15), ("_LARGEST_PAGE_SIZE", 1 << 21)]
)
def test_another_placement_restores_it(kind: str, constant: str, value: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = linked_program(kind=kind).read_bytes()
    full = embedded(data, LARGE)[1]
    monkeypatch.setattr(place, constant, value)
    assert embedded(data, LARGE)[1] != full
    removal = remove_section(full)
    assert (bytes(removal.content), removal.lost) == (data, "")


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
    body = _unpatched(full, order, record.pieces, record.tables, record.indices)
    return b"".join(body[patch.span.start : patch.span.end] for patch in record.patches)


@pytest.mark.parametrize("kind", [*KINDS, "no section headers", "object"])
def test_rounds_do_not_grow_a_file(kind: str) -> None:
    data = OBJECT if kind == "object" else linked_program(kind=kind if kind in KINDS else "pie").read_bytes()
    if kind == "no section headers":
        data = without_section_headers(data)
    full = converted(data)
    for _ in range(ROUNDS):
        assert take_out(full) == data
        again = converted(data)
        assert again == full
        full = again


@pytest.mark.parametrize("kind", KINDS)
def test_rounds_with_strip_in_between_do_not_grow_a_file(kind: str, tmp_path: Path) -> None:
    """The record is gone then; the next section goes where the zeros of the one before are."""
    need("strip")
    data = linked_program(kind=kind).read_bytes()
    sizes, path = [], tmp_path / "program"
    for _ in range(6):
        write(path, converted(data))
        assert attempt("strip", path).status == 0
        data = take_out(path.read_bytes())
        sizes.append(len(data))
    assert len(set(sizes[1:])) == 1
    assert attempt(write(path, data)).status == attempt(linked_program(kind=kind)).status


def test_a_change_since_is_kept() -> None:
    """As chrpath makes one: not where headers or moved sections are."""
    data = linked_program().read_bytes()
    full = bytearray(embedded(data, LARGE)[1])
    text = next(section for section in load(bytes(full)).sections if section.name == ".text")
    full[text.file_offset] ^= 1
    removal = remove_section(bytes(full))
    changed = bytearray(data)
    changed[text.file_offset] ^= 1
    assert bytes(removal.content) == changed
    assert "changed after the conversion" in removal.lost


def test_a_change_of_headers_since_is_not_lost() -> None:
    """The record no longer fits: restoring the old program headers would undo what another tool did."""
    full = bytearray(embedded(linked_program().read_bytes(), LARGE)[1])
    image = load(bytes(full))
    number = next(n for n, segment in enumerate(image.segments) if segment.type == 0x6474E551)
    full[image.header.program_headers_offset + 56 * number + 4] ^= 1
    removal = remove_section(bytes(full))
    assert "no record" in removal.lost
    (stack,) = (s for s in load(bytes(removal.content)).segments if s.type == 0x6474E551)
    assert stack.flags & 1


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
    # An object keeps what is dead in it.
    assert len(sizes) < 3 or kind == "object"


def test_the_section_of_another_producer_is_back_after_a_change(tmp_path: Path) -> None:
    data = emitted(convert(load(linked_program().read_bytes()), version=2))
    span = record_span(data)
    assert span is not None
    other = data[: span.start]
    full = bytearray(emitted(convert(load(other))))
    text = next(section for section in load(bytes(full)).sections if section.name == ".text")
    full[text.file_offset] ^= 1
    path = write(tmp_path / "program", bytes(full))
    outcome = convert_one(path, Settings(removes=True))
    assert "changes are kept" in outcome.warnings[0]
    assert "is back" in outcome.warnings[1]
    assert decode_existing(path).version == 2
    assert load(path).section_bytes(text)[:1] == bytes(full[text.file_offset : text.file_offset + 1])


def test_a_note_changed_since_is_not_mixed_up() -> None:
    """The PT_NOTE that the conversion dropped would not repeat PT_GNU_PROPERTY any more: zeros are left instead."""
    data = without_section_headers(linked_program().read_bytes())
    full = converted(data)
    place = full.index(b"GNU\0")
    changed = full[:place] + b"GNV" + full[place + 3 :]
    bare = take_out(changed)
    assert not load(bare).has_sframe
    assert b"GNV\0" in bare


def test_a_record_at_the_end_of_another_file_is_not_followed() -> None:
    full = embedded(linked_program().read_bytes(), LARGE)[1]
    span = record_span(full)
    assert span is not None
    other = linked_program("lld").read_bytes()
    assert original_of(other + full[span.start :]) is None
    assert original_of(full + full[span.start :]) is None


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
    patch = Patch(text.file_offset, b"\xeb\xfe")
    evil = data[: patch.span.start] + patch.content + data[patch.span.end :]
    forged = found._replace(original_digest=digest_of(evil), patches=(*found.patches, patch))
    body = full[: found.rewritten_size]
    image = load(full)
    code = next(section for section in image.sections if section.name == ".text")
    old = full[code.file_offset : code.file_offset + 2]
    forged = forged._replace(replaced_digest=sha256(_replaced(full, found) + old).digest())
    attacked = body + forged.pack()
    restored = original_of(attacked)
    assert restored is not None
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
    assert restored is not None
    assert restored.is_exact
    assert bytes(restored.content) == FILE


@given(st.integers(0, 1 << 64), st.binary(min_size=1, max_size=8), st.booleans())
def test_a_damaged_record_restores_the_original_or_nothing(at: int, noise: bytes, is_cut: bool) -> None:  # noqa: FBT001
    full = bytes(with_record(FILE, FILE + b"tail", [Kept(0, len(FILE), 0)], [Span(0, 64)], ()))
    start = len(FILE) + 4 + at % (len(full) - len(FILE) - 4)
    changed = full[:start] if is_cut else full[:start] + noise + full[start + len(noise) :]
    restored = original_of(changed)
    assert restored is None or not restored.is_exact or bytes(restored.content) == FILE
