# SPDX-License-Identifier: Apache-2.0
"""Files with odd or damaged headers: refused by name, and not refused for what is only unusual."""

from __future__ import annotations

import struct

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.emit import check, check_removal, emit, remove
from cfi2sframe.errors import EmbedError
from tests.support import cfi_asm as asm
from tests.support.linked_by_hand import noted_file, notes_of
from tests.support.samples import object_file, push_fp

pytestmark = pytest.mark.fuzz

END = (1 << 64) - 1
#: A local section symbol, whose section may move.
LOCAL = 0x03


def put_in(data: bytes) -> bytes:
    """Convert a file; what is written is checked."""
    emitted = emit(convert(load(data)))
    out = b"".join(emitted.chunks)
    check(emitted, load(out))
    return out


def take_out(data: bytes) -> bytes:
    image = load(data)
    out = b"".join(remove(image))
    check_removal(image, load(out))
    return out


def with_symbol(value: int) -> bytes:
    return noted_file(notes_of(6), symbols=(asm.Symbol("s", value, 0, LOCAL, "n0"),))


def test_sections_of_one_name_move() -> None:
    data = noted_file(notes_of(20))
    out = put_in(data)
    addresses = {s.vaddr for s in load(data).sections if s.name == ".note.package"}
    moved = [s.vaddr for s in load(out).sections if s.name == ".note.package" and s.vaddr not in addresses]
    assert moved
    assert take_out(out) == data


def test_a_symbol_that_would_leave_the_addresses_is_refused() -> None:
    start = next(s.vaddr for s in load(with_symbol(0)).sections if s.index == 1)
    assert take_out(put_in(with_symbol(start))) == with_symbol(start)
    with pytest.raises(EmbedError, match="far outside"):
        put_in(with_symbol(END))


def test_a_section_in_a_group_stays() -> None:
    out = bytearray(put_in(object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".group": (push_fp(AMD64, 0),)})))
    image = load(bytes(out))
    number = next(s.index for s in image.sections if s.is_sframe)
    group = next(s for s in image.sections if s.name == ".group")
    place = image.header.section_headers_offset + 64 * group.index
    member = len(out) + -len(out) % 4
    out += bytes(-len(out) % 4) + struct.pack("<II", 1, number)
    struct.pack_into("<IQQQQ", out, place + 4, 17, 0, 0, member, 8)
    with pytest.raises(EmbedError, match="section group"):
        take_out(bytes(out))
