# SPDX-License-Identifier: Apache-2.0
"""The rights of PT_PHDR, which mean nothing to loaders and something to a reader of `.sframe`.

Nothing is mapped by PT_PHDR. Linux, glibc and musl read its address at most, never its flags. Older GNU ld wrote PF_X
there. The SFrame code that is proposed for Linux registers a section for each program header with PF_X: first for
the program headers themselves, and then no longer for the segment with the code, because the ranges overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.constants import PF_X, PT_PHDR

if TYPE_CHECKING:
    from cfi2sframe.elf.headers import ProgramHeader


def without_execution(segment: ProgramHeader) -> ProgramHeader:
    """Return a PT_PHDR without PF_X; any other program header as it is. PT_GNU_STACK's PF_X has a meaning."""
    return segment._replace(flags=segment.flags & ~PF_X) if segment.type == PT_PHDR else segment
