# SPDX-License-Identifier: Apache-2.0
"""The table of FDEs in `.eh_frame_hdr`, to which PT_GNU_EH_FRAME leads (LSB, "Exception Frame Header")."""

import struct
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError

#: Encodings of the pointer, the count and the table that every linker writes: DW_EH_PE_pcrel | DW_EH_PE_sdata4,
#: DW_EH_PE_udata4, DW_EH_PE_datarel | DW_EH_PE_sdata4.
_POINTER: Final = 0x1B
_TABLE: Final = (0x03, 0x3B)


class FrameHeader(NamedTuple):
    """The addresses of the header and of `.eh_frame`, and of each function's start and FDE, as the table has them."""

    vaddr: int
    frame_vaddr: int
    table: list[tuple[int, int]]


def frame_header(image: ElfImage) -> FrameHeader | None:
    """Return the header, without a table where that has another encoding; None without PT_GNU_EH_FRAME.

    Raises `ElfError` where the segment holds no header.
    """
    segment = next((segment for segment in image.segments if segment.type == c.PT_GNU_EH_FRAME), None)
    if segment is None:
        return None
    vaddr, data = segment.vaddr, image.bytes_at(segment.vaddr, segment.file_size)
    if data is None or len(data) < 8 or data[0] != 1:
        raise ElfError("the PT_GNU_EH_FRAME segment holds no frame header")
    if data[1] != _POINTER:
        raise ElfError(f"unknown encoding 0x{data[1]:x} of the .eh_frame pointer", "PT_GNU_EH_FRAME", 1)
    frame_vaddr = vaddr + 4 + struct.unpack_from(image.byte_order + "i", data, 4)[0]
    table: list[tuple[int, int]] = []
    if (data[2], data[3]) == _TABLE and len(data) >= 12:
        count = struct.unpack_from(image.byte_order + "I", data, 8)[0]
        pairs = memoryview(data)[12 : 12 + 8 * count]
        pairs = pairs[: len(pairs) // 8 * 8]
        table = [(vaddr + start, vaddr + fde) for start, fde in struct.iter_unpack(image.byte_order + "ii", pairs)]
    return FrameHeader(vaddr, frame_vaddr, table)
