# SPDX-License-Identifier: Apache-2.0
"""Where stubs are in a file without section headers: the sizes that its dynamic section states, and one past each."""

import struct
from typing import Final

import pytest

from cfi2sframe.constants.elf import DT_JMPREL, DT_PLTRELSZ, DT_RELA, DT_RELASZ
from cfi2sframe.stubs.places import find_stubs
from cfi2sframe.stubs.scan import scan_stubs
from tests.support.stubs.handmade import GOT_VADDR, PLT_VADDR, file_with, got_stub, lazy_stubs

COUNT: Final = 3
RELA_SIZE: Final = 24
#: The slots of `lazy_stubs`, which the stubs use relative to themselves, and where the GOT ends.
SLOTS: Final = tuple(PLT_VADDR + 16 + 6 + 0x3000 + 8 * n for n in range(COUNT))
GOT_SIZE: Final = SLOTS[-1] + 8 - GOT_VADDR


def described(tags: dict[int, int], table_offset: int = 0) -> int:
    """Return how many bytes of stubs are described; relocations of the slots are at an offset in the GOT."""
    got = bytearray(GOT_SIZE + RELA_SIZE * COUNT)
    for n, slot in enumerate(SLOTS):
        struct.pack_into("<Q", got, slot - GOT_VADDR, PLT_VADDR + 16 * (n + 1) + 6)
        struct.pack_into("<QQq", got, table_offset + RELA_SIZE * n, slot, 7, 0)
    dynamic = b"".join(struct.pack("<QQ", tag, value) for tag, value in tags.items()) + bytes(16)
    image = file_with((".plt", PLT_VADDR, lazy_stubs(COUNT)), got=bytes(got), dynamic=dynamic, section_headers=False)
    return sum(function.size for function in scan_stubs(image, 3).functions)


def test_long_runs_of_what_fills_space_are_no_stubs() -> None:
    """But for the bytes that an operand may end with."""
    data = lazy_stubs(1) + b"\xcc" * 512
    for more, others in ((b"", ()), (got_stub(), ((len(data), len(data) + 8),))):
        ranges, left_out = find_stubs(file_with((".plt", PLT_VADDR, data + more)))
        found = [(each.start_vaddr - PLT_VADDR, each.end_vaddr - PLT_VADDR) for each in ranges]
        assert (found, left_out) == ([(0, 48), *others], ())


@pytest.mark.parametrize(
    ("size", "is_found"), [(0, False), (23, False), (24, True), (25, True), (47, True), (71, True), (72, True)]
)
def test_part_of_a_record_is_none(size: int, *, is_found: bool) -> None:
    """Any slot of lazy binding tells where the stubs are."""
    expected = 16 * (COUNT + 1) * is_found
    assert described({DT_JMPREL: GOT_VADDR, DT_PLTRELSZ: size}) == expected
    for other in (23, 24, 25, 1 << 63):
        tags = {DT_RELA: GOT_VADDR, DT_RELASZ: other, DT_JMPREL: GOT_VADDR, DT_PLTRELSZ: size}
        assert described(tags) == expected
    assert described({DT_RELA: GOT_VADDR, DT_RELASZ: size}) == 0


def test_a_table_up_to_the_end_of_its_segment() -> None:
    place = {DT_JMPREL: GOT_VADDR + GOT_SIZE}
    assert described(place | {DT_PLTRELSZ: RELA_SIZE * COUNT}, GOT_SIZE) > 0
    assert described(place | {DT_PLTRELSZ: RELA_SIZE * COUNT + 1}, GOT_SIZE) == 0
