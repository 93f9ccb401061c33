# SPDX-License-Identifier: Apache-2.0
"""References to a few addresses, found by the upper halves of distances, are those that the whole search finds."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.elf.constants import EM_X86_64
from cfi2sframe.elf.ranges import Span
from cfi2sframe.instructions.references import Reference, references_in, references_to, wanted_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

pytestmark = pytest.mark.property

_VADDR = 0x401000
_SIZE = 0x21000
#: What is put into the code: an opcode, or bytes in front of the distance that are none.
_HEADS = (b"\xe8", b"\xe9", b"\x48\x8d\x05", b"\x4c\x8d\x3d", b"\x8d\x05", b"\x90")


def _among(references: Iterable[Reference], spans: Sequence[Span]) -> set[Reference]:
    return {each for each in references if any(span.start <= each.target < span.end for span in spans)}


@given(
    places=st.lists(
        st.tuples(st.integers(0, _SIZE - 7), st.sampled_from(_HEADS), st.integers(0, 3), st.integers(-2, 20)),
        max_size=40,
    ),
    starts=st.lists(st.integers(_VADDR - 0x200000, _VADDR + 0x200000), min_size=1, max_size=30),
)
def test_all_references_are_found(places: list[tuple[int, bytes, int, int]], starts: list[int]) -> None:
    spans = [Span(start, start + 16) for start in sorted(starts)]
    data = bytearray(_SIZE)
    for offset, head, which, delta in places:
        target = spans[which % len(spans)].start + delta
        distance = target - (_VADDR + offset + len(head) + 4)
        data[offset : offset + len(head) + 4] = head + struct.pack("<i", distance)
    code = bytes(data[:_SIZE])
    every = references_in(EM_X86_64, code, _VADDR, is_fixed=False)
    found = references_to(EM_X86_64, code, _VADDR, wanted_in(spans), is_fixed=False)
    assert _among(found, spans) == _among(every, spans)


def test_a_reference_between_two_pieces() -> None:
    code = bytearray(0x20000)
    code[0xFFFD:0x10002] = b"\xe8" + struct.pack("<i", -0x10002)
    found = set(references_to(EM_X86_64, bytes(code), 0x10000, wanted_in([Span(0x10000, 0x10001)]), is_fixed=False))
    assert Reference(0x1FFFD, 0x10000, is_call=True) in found
