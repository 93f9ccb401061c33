# SPDX-License-Identifier: Apache-2.0
"""Notes of any owner move to make room for program headers, unless something in them depends on their place."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.elf.constants import PT_NOTE
from cfi2sframe.elf.notes import may_be_elsewhere
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import open_linked
from cfi2sframe.placing.linked import plan_embedding, self_check
from tests.support.embedded import LARGE, SOURCES, embed, run, sframe, take_out
from tests.support.linked_by_hand import noted_file
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path


IMAGE: Final = range(0x400000, 0x500000)
VADDR: Final = 0x400300


def note(owner: bytes, content: bytes, kind: int = 1, order: str = "<") -> bytes:
    """A note, padded as in a section of alignment 4."""
    parts = struct.pack(order + "III", len(owner), len(content), kind), owner, content
    return b"".join(part + bytes(-len(part) % 4) for part in parts)


def stays_right(content: bytes, order: str = "<") -> bool:
    return may_be_elsewhere(content, "<" if order == "<" else ">", 4, VADDR, IMAGE)


@pytest.mark.parametrize("order", ["<", ">"])
def test_addresses_relative_to_the_note(order: str) -> None:
    """Crashpad's note: the distance of a variable from the descriptor."""
    at = VADDR + 12 + 12
    for target in (IMAGE.start, IMAGE.stop - 1, at - 25, at + 8):
        assert not stays_right(note(b"Crashpad\0", struct.pack(order + "q", target - at), order=order), order)
    for target in (IMAGE.start - 1, IMAGE.stop, at, 0x2032303236):
        assert stays_right(note(b"Crashpad\0", struct.pack(order + "q", target - at), order=order), order)


def _noted(*notes: bytes) -> bytes:
    return noted_file(notes, names=[f".note.test.{number}" for number in range(len(notes))])


def _moved_names(data: bytes) -> set[str]:
    return set(plan_embedding(data, LARGE).moved)


def test_unknown_names_move_and_return() -> None:
    data = _noted(*(note(b"Go\0\0", bytes([65 + number]) * 40) for number in range(4)))
    assert _moved_names(data)
    rewritten = _rewritten(data)
    assert take_out(rewritten) == data
    segments = [s for s in open_linked(rewritten).segments if s.type == PT_NOTE]
    assert sum(segment.file_size for segment in segments) == 4 * 56


def _rewritten(data: bytes) -> bytes:
    from cfi2sframe.placing.linked import write_embedding

    plan = plan_embedding(data, LARGE)
    rewritten = b"".join(write_embedding(plan, sframe(LARGE)))
    self_check(data, rewritten, plan, sframe(LARGE))
    return rewritten


def test_a_relative_address_stays() -> None:
    file = open_linked(_noted(note(b"Go\0\0", b"text" * 30)))
    vaddr = file.sections[1].vaddr
    content = struct.pack("<q", file.loads[1].vaddr - vaddr - 20)
    assert _moved_names(_noted(note(b"Go\0\0", b"text" * 32))) == {".note.test.0"}
    assert not _moved_names(_noted(note(b"Test\0", content + b"text" * 30)))


def test_the_re_read_knows_notes_that_may_not_move() -> None:
    """A relative address that was overlooked."""
    text = note(b"Go\0\0", b"text" * 30)
    data = _noted(text)
    plan = plan_embedding(data, LARGE)
    rewritten = _rewritten(data)
    file = open_linked(data)
    old, new = (s.vaddr for f in (file, open_linked(rewritten)) for s in f.sections if s.name == plan.moved[0])
    changed = []
    for whole, base in ((data, old), (rewritten, old)):
        at = whole.index(text) + 16
        changed.append(whole[:at] + struct.pack("<q", file.loads[1].vaddr - base - 16) + whole[at + 8 :])
    assert new != old
    with pytest.raises(EmbedError, match="addresses relative to itself"):
        self_check(changed[0], changed[1], plan)


PROGRAM: Final = SOURCES / "notes.c"
EXPECTED: Final = ["0123456789" * 4, "42"]


@pytest.mark.oracle
@pytest.mark.parametrize("linker", ["bfd", "gold", "lld", "mold"])
@pytest.mark.parametrize("kind", ["-pie", "-no-pie"])
@pytest.mark.parametrize("with_place", [False, True])
def test_a_program_finds_its_notes(linker: str, kind: str, *, with_place: bool, tmp_path: Path) -> None:
    """Where the note that may not move is in the way, there is no room."""
    need("gcc", "mold" if linker == "mold" else f"ld.{linker}")
    flags = ["-g", "-O1", f"-fuse-ld={linker}", kind, "-Wl,--build-id=sha1", *["-DPLACE"] * with_place]
    built = run("gcc", *flags, "-o", tmp_path / "program", PROGRAM)
    assert built.status == 0, built.errors
    expected = run(tmp_path / "program")
    assert sorted(expected.output.splitlines()) == EXPECTED[: 1 + with_place]
    try:
        plan = embed(tmp_path / "program", tmp_path / "converted", LARGE)
    except EmbedError as error:
        if not with_place or "cannot grow" not in str(error):
            raise
        return
    assert ".note.test.place" not in plan.moved
    assert run(tmp_path / "converted") == expected
    original = (tmp_path / "program").read_bytes()
    assert take_out((tmp_path / "converted").read_bytes()) == original
