# SPDX-License-Identifier: Apache-2.0
"""The record of a conversion restores the original, whatever a later release does when it inserts a section."""

import os
import struct
from contextlib import suppress
from hashlib import sha256
from itertools import cycle
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Final, NamedTuple

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_INTERP
from cfi2sframe.elf.contents import Splice, digest_of, overwrite, spliced
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import blocks, header_room, linked, moving, place
from cfi2sframe.placing.removal import proven_original, remove
from cfi2sframe.placing.undo import (
    NOWHERE,
    Extract,
    Kept,
    NoOriginal,
    Original,
    UndoRecord,
    _unpacked,
    _unpatched,
    original_of,
    record_span,
    with_record,
)
from cfi2sframe.range_map import Span
from tests.support.cli import ROOT
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import Section, Symbol, elf_file
from tests.support.jobs import OBJECT
from tests.support.needs import attempt
from tests.support.placing.embedded import KINDS, LARGE, SMALL, converted, embedded, linked_program, take_out, write

#: What another release may do differently: a name of a module of `placing`, and another value.
OTHER_RELEASES: Final = {
    "alignment": (blocks, "SECTION_ALIGNMENT", 16),
    "small page": (blocks, "PAGE_SIZE", 64),
    "page": (blocks, "PAGE_SIZE", 1 << 15),
    "large page": (blocks, "LARGEST_PAGE_SIZE", 1 << 21),
    "zeros that end something": (header_room, "END_SIZE", 64),
    "only a new segment": (blocks, "WAYS", [way for way in blocks.WAYS if way.make_block is blocks._after_last]),
    "the heap": (place, "may_be_saved_image", lambda _file: True),
    "interpreters": (blocks, "may_be_interpreter", lambda _file: True),
    "slack": (header_room, "slack_end", lambda _file, load: load.file_span.end),
    "the repeated note": (place, "repeated_note", lambda _file: None),
    "alignment of segments": (header_room, "alignment_of", lambda _file: 1 << 14),
    "following segments": (moving, "FOLLOWING_TYPES", frozenset({PT_INTERP})),
}


def _change(patch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object) -> None:
    """Change a name in its module, and in those that have imported it."""
    for each in (module, blocks, linked, place, header_room, moving):
        if hasattr(each, name):
            patch.setattr(each, name, value)


@pytest.mark.parametrize("other", OTHER_RELEASES)
def test_another_release_restores_it(other: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever it does differently, either restores the files of the other, of each kind and with large sections."""
    module, name, value = OTHER_RELEASES[other]
    originals = [data for kind in KINDS for data in [linked_program(kind=kind).read_bytes()] * 2]
    ours = [embedded(data, size)[1] for data, size in zip(originals, cycle((SMALL, LARGE)))]
    theirs = list[tuple[bytes, bytes]]()
    with monkeypatch.context() as patch:
        _change(patch, module, name, value)
        for data, size in zip(originals, cycle((SMALL, LARGE))):
            with suppress(EmbedError):
                theirs.append((data, embedded(data, size)[1]))
        for data, full in zip(originals, ours, strict=True):
            assert (bytes(remove(full).content), remove(full).lost) == (data, "")
    assert theirs
    assert [full for _, full in theirs] != ours
    for data, full in theirs:
        assert (bytes(remove(full).content), remove(full).lost) == (data, "")


def _forged(draw: Random, full: bytes, record: UndoRecord) -> bytes:
    """Return a converted file with a record that somebody has changed, and whose digests are right again."""
    pieces, patches = list(record.pieces), list(record.patches)
    for _ in range(draw.randint(1, 3)):
        what = draw.randrange(4)
        number = draw.randrange(len(pieces))
        start, size = pieces[number]
        if what == 0:
            pieces[number] = Extract(draw.choice((NOWHERE, start, max(start + draw.randint(-64, 64), 0))), size)
        elif what == 1 and size > 1:
            cut = draw.randrange(1, size)
            moved = draw.choice((NOWHERE, start + cut, draw.randrange(record.rewritten_size - (size - cut))))
            pieces[number : number + 1] = [Extract(start, cut), Extract(moved, size - cut)]
        elif what == 2 and patches:
            at = draw.randrange(len(patches))
            content = bytearray(patches[at].content)
            content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
            patches[at] = overwrite(patches[at].file_offset, bytes(content))
        else:
            patches.append(overwrite(draw.randrange(record.original_size - 8), draw.randbytes(draw.randint(1, 8))))
    forged = record._replace(pieces=tuple(pieces), patches=tuple(sorted(patches)))
    forged = forged._replace(replaced_digest=sha256(_replaced(full, forged)).digest())
    attacked = full[: record.rewritten_size] + forged.pack()
    made = original_of(attacked)
    digest = digest_of(made.content) if isinstance(made, Original) else record.original_digest
    return full[: record.rewritten_size] + forged._replace(original_digest=digest).pack()


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_that_lies_changes_nothing_that_a_program_does(kind: str, tmp_path: Path) -> None:
    """Removal is refused, or what it leaves runs as before; CFI2SFRAME_FORGED_RECORDS sets how many are tried."""
    data = linked_program(kind=kind).read_bytes()
    before = attempt(write(tmp_path / "program", data))
    draw = Random(kind)  # noqa: S311 - the same ones each time
    count = int(os.environ.get("CFI2SFRAME_FORGED_RECORDS", "40"))
    followed = refused = number = 0
    # Few lies are in bytes that nobody reads: which ones are drawn depends on what the compiler made.
    fulls = [embedded(data, size)[1] for size in (SMALL, LARGE)]
    while number < count or (not followed and number < 10 * count):
        number += 1
        full = draw.choice(fulls)
        span = record_span(full)
        assert span is not None
        record = _unpacked(full[span.start :])
        assert record is not None
        try:
            attacked = _forged(draw, full, record)
            bare = take_out(attacked)
        except (EmbedError, struct.error, OverflowError):
            refused += 1
            continue
        followed += isinstance(proven_original(attacked), Original)
        assert not load(bare).has_sframe, number
        assert attempt(write(tmp_path / "program", bare)) == before, number
    assert 0 < followed < number / 2, (followed, refused)
    assert refused < number / 2


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
    assert {name.partition("-")[0] for name in kept()} == {"amd64", "aarch64", "s390x", "static"}
    # Programs that read PT_PHDR, or their ELF header before the program headers, are converted otherwise since.
    assert {name for name in kept() if name.startswith("static")} == {"static-moved-headers", "static-no-phdr"}


def _replaced(full: bytes, record: UndoRecord) -> bytes:
    """Return what the patches of a record replace."""
    order = load(full).byte_order
    body = _unpatched(full, order, record)
    return b"".join(body[patch.span.start : patch.span.end] for patch in record.patches)


def test_a_record_that_other_bytes_follow_is_found_after_an_offset() -> None:
    data = converted(linked_program().read_bytes())
    span = record_span(data)
    assert span is not None
    for size in (1, 1 << 20):
        longer = data + b"\1" * size
        assert record_span(longer) is None
        for start in (0, span.start - 1, span.start):
            assert record_span(longer, start) == span
        assert record_span(longer, span.start + 1) is None


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
    patch = overwrite(File(data).section(".text").offset, b"\xeb\xfe")
    evil = data[: patch.span.start] + patch.content + data[patch.span.end :]
    forged = found._replace(original_digest=digest_of(evil), patches=(*found.patches, patch))
    at = File(full).section(".text").offset
    forged = forged._replace(replaced_digest=sha256(_replaced(full, found) + full[at : at + 2]).digest())
    attacked = full[: found.rewritten_size] + forged.pack()
    restored = original_of(attacked)
    assert isinstance(restored, Original)
    assert restored.is_exact
    bare = take_out(attacked)
    after = File(bare).section(".text").offset
    assert bare[after : after + 2] == full[at : at + 2]
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
