# SPDX-License-Identifier: Apache-2.0
"""The map between addresses and file offsets, compared with pyelftools."""

from io import BytesIO

import pytest
from elftools.elf.elffile import ELFFile

from cfi2sframe import load
from cfi2sframe.range_map import Span
from tests.support.elf.images import linked
from tests.support.placing.embedded import linked_program


def program() -> bytes:
    """Return a program whose data have another distance of addresses from file offsets than its code."""
    return linked_program().read_bytes()


@pytest.mark.parametrize("size", [1, 2, 16])
def test_offsets_are_those_of_pyelftools(size: int) -> None:
    """Also around the edges of segments: nothing is before the first, in zeros, or partly past what the file has."""
    data = program()
    found = load(data).segment_map
    edges = [at for p in found.loads for at in (p.vaddr, p.stored_vaddrs.end - size, p.stored_vaddrs.end, p.end_vaddr)]
    elf = ELFFile(BytesIO(data))
    for vaddr in [edge + distance for edge in edges for distance in (-1, 0, 1) if edge + distance >= 0]:
        assert found.offset_of(vaddr, size) == next(elf.address_offsets(vaddr, size), None), hex(vaddr)


def test_addresses_of_spans_lead_back() -> None:
    data = program()
    found = load(data).segment_map
    assert len({p.vaddr_of(0) for p in found.loads}) > 1
    for vaddrs in found.vaddrs_of([Span(0, len(data))]):
        start = found.offset_of(vaddrs.start, vaddrs.end - vaddrs.start)
        assert start is not None
        assert vaddrs in found.vaddrs_of([Span(start, start + vaddrs.end - vaddrs.start)])


def test_a_span_may_be_mapped_in_part_or_not() -> None:
    found = load(linked()).segment_map
    last = found.loads[-1]
    assert found.vaddrs_of([Span(last.file_span.end - 2, last.file_span.end + 2)]) == [
        Span(last.stored_vaddrs.end - 2, last.stored_vaddrs.end)
    ]
    assert found.vaddrs_of([Span(last.file_span.end, last.file_span.end + 2)]) == []
