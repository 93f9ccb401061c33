# SPDX-License-Identifier: Apache-2.0
"""The raw bytes of a section, which some verbs take instead of an ELF file."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.constants import ELF_MAGIC

if TYPE_CHECKING:
    from typing import BinaryIO

#: The first two bytes of a section in either byte order.
_MAGICS: Final = (b"\xe2\xde", b"\xde\xe2")


def is_section(data: bytes) -> bool:
    """Whether bytes begin as those of a section do."""
    return data[:2] in _MAGICS


def read_section(stream: BinaryIO) -> bytes:
    """Return the bytes of a section or of an ELF file; of anything else, only the first: some devices never end."""
    head = stream.read(len(ELF_MAGIC))
    return head + stream.read() if is_section(head) or head == ELF_MAGIC else head


def section_in(path: str) -> bytes | None:
    """Return the content of a file if it is the raw bytes of a section; otherwise None."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return None
        with open(path, "rb") as file:
            head = file.read(2)
            return head + file.read() if is_section(head) else None
    except OSError:
        return None
