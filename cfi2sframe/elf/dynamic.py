# SPDX-License-Identifier: Apache-2.0
"""The dynamic section of a linked file, found as the dynamic loader finds it (gABI, "Dynamic Section")."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from cfi2sframe.elf import constants as c

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage


def dynamic_entries(image: ElfImage) -> dict[int, int]:
    """Return the entries of the dynamic section by tag; a tag that repeats keeps its last value."""
    for segment in image.segments:
        if segment.type == c.PT_DYNAMIC:
            data = image.bytes_at(segment.vaddr, segment.file_size) or b""
            usable = data[: len(data) // 16 * 16]
            return dict(struct.iter_unpack(image.byte_order + "QQ", usable))
    return {}
