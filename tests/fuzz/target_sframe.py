# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a foreign `.sframe`, decoded, dumped, checked and looked up in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.read import read_section
from tests.fuzz import seeds as make
from tests.fuzz.checks import check_decoded
from tests.support.kernel_reader import complaints

if TYPE_CHECKING:
    from collections.abc import Iterator

_VADDR = 0x30000


def run(data: bytes) -> None:
    """Decode a section as that of a linked file and as that of an object; a strict reader must survive it too."""
    for is_object in (False, True):
        try:
            decoded = read_section(data, _VADDR, is_object=is_object)
        except SFrameError:
            continue
        check_decoded(decoded)
    complaints(data, _VADDR, [(0x20000, 0x30000)])


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield sections of all versions and ABIs."""
    yield from make.sframe_sections()
