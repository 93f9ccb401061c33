# SPDX-License-Identifier: Apache-2.0
"""PT_PHDR with PF_X, as older GNU ld wrote it: cleared where a section is put in, and nothing else is allowed."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.elf.constants import PF_R, PF_X, PT_PHDR
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import check_removal, plan_embedding, self_check
from tests.support.embedded import LARGE, SMALL, embed, run, take_out, write

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
    assert take_out(converted) == old.read_bytes()


def test_the_reread_allows_nothing_else(old: Path, tmp_path: Path) -> None:
    embed(old, tmp_path / "converted", SMALL)
    data, converted = old.read_bytes(), (tmp_path / "converted").read_bytes()
    plan = plan_embedding(data, SMALL)
    for value in (PF_X, 0, PF_R | 2, PF_R | 2 | PF_X):
        with pytest.raises(EmbedError, match="PT_PHDR changed"):
            self_check(data, with_flags(converted, PT_PHDR, value), plan)
    with pytest.raises(EmbedError, match="fails its re-read"):
        self_check(data, with_flags(converted, PT_GNU_STACK, 7), plan)
    # Removal gives it back where it was.
    bare = take_out(converted)
    with pytest.raises(EmbedError, match="PT_PHDR changed"):
        check_removal(with_flags(converted, PT_PHDR, PF_R | PF_X), with_flags(bare, PT_PHDR, PF_R))
