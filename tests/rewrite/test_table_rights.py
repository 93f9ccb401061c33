# SPDX-License-Identifier: Apache-2.0
"""PT_PHDR with PF_X, as older GNU ld wrote it: cleared where a section is put in, and nothing else is allowed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.elf.constants import PF_R, PF_X, PT_PHDR
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite import choose
from cfi2sframe.rewrite.linked import check_removal, plan_embedding, self_check, write_embedding
from tests.support.embedded import LARGE, SMALL, embed, run, sframe, take_out, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.oracle

PT_GNU_STACK = 0x6474E551
#: Where in Elf64_Phdr the flags are.
P_FLAGS = 4


def flags_place(data: bytes, kind: int) -> int:
    """File offset of the flags of the only program header of a type."""
    image = load(data)
    (number,) = (number for number, segment in enumerate(image.segments) if segment.type == kind)
    return image.header.program_headers_offset + 56 * number + P_FLAGS


def flags(data: bytes, kind: int) -> int:
    return int(struct.unpack_from("<I", data, flags_place(data, kind))[0])


def with_flags(data: bytes, kind: int, value: int) -> bytes:
    changed = bytearray(data)
    struct.pack_into("<I", changed, flags_place(data, kind), value)
    return bytes(changed)


@pytest.fixture
def old(program: Callable[..., Path], tmp_path: Path) -> Path:
    """A program whose headers and code share a segment, with the rights of PT_PHDR that older GNU ld wrote."""
    path = tmp_path / "old"
    write(path, with_flags(program("bfd", "pie", "noseparate").read_bytes(), PT_PHDR, PF_R | PF_X))
    return path


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_it_is_cleared_and_the_program_runs(old: Path, tmp_path: Path, size: int) -> None:
    embed(old, tmp_path / "converted", size)
    converted = (tmp_path / "converted").read_bytes()
    assert flags(converted, PT_PHDR) == PF_R
    assert run(tmp_path / "converted") == run(old)
    # Removal cannot know that it was there; this is the only difference.
    assert take_out(converted) == with_flags(old.read_bytes(), PT_PHDR, PF_R)


def test_a_table_at_the_end_gets_it_back(old: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The old table, which stays, still has it."""
    for name in ("_with_moving", "_without_moving"):
        monkeypatch.setattr(choose, name, lambda *_words, **_options: None)
    embed(old, tmp_path / "converted", LARGE, may_move_table=True)
    converted = (tmp_path / "converted").read_bytes()
    assert flags(converted, PT_PHDR) == PF_R
    assert run(tmp_path / "converted") == run(old)
    assert take_out(converted) == old.read_bytes()


def test_a_section_that_is_replaced(old: Path, tmp_path: Path) -> None:
    """A file with a section from a version that left PF_X alone."""
    embed(old, tmp_path / "converted", LARGE)
    before = with_flags((tmp_path / "converted").read_bytes(), PT_PHDR, PF_R | PF_X)
    plan = plan_embedding(before, SMALL, replace=True)
    assert plan.strategy == "existing-section"
    after = b"".join(write_embedding(before, plan, sframe(SMALL)))
    self_check(before, after, plan, sframe(SMALL))
    assert flags(after, PT_PHDR) == PF_R
    with pytest.raises(EmbedError, match="something else changed"):
        self_check(before, with_flags(after, PT_PHDR, 0), plan, sframe(SMALL))


def test_the_reread_allows_nothing_else(old: Path, tmp_path: Path) -> None:
    embed(old, tmp_path / "converted", SMALL)
    data, converted = old.read_bytes(), (tmp_path / "converted").read_bytes()
    plan = plan_embedding(data, SMALL)
    for value in (PF_X, 0, PF_R | 2, PF_R | 2 | PF_X):
        with pytest.raises(EmbedError, match="the rights of PT_PHDR changed"):
            self_check(data, with_flags(converted, PT_PHDR, value), plan)
    with pytest.raises(EmbedError, match="fails its re-read"):
        self_check(data, with_flags(converted, PT_GNU_STACK, 7), plan)
    # Removal only ever gives it back where it was.
    bare = take_out(converted)
    check_removal(converted, with_flags(bare, PT_PHDR, PF_R | PF_X))
    with pytest.raises(EmbedError, match="the rights of PT_PHDR changed"):
        check_removal(with_flags(converted, PT_PHDR, PF_R | PF_X), bare)
