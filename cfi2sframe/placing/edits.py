# SPDX-License-Identifier: Apache-2.0
"""Replace parts of a file in a copy of it; the bytes that stay are not copied in memory."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.contents import Joined, part_of
from cfi2sframe.errors import EmbedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.contents import FileData


class Splice(NamedTuple):
    """At `file_offset`, `content` replaces `removed_size` bytes of the original.

    `content` is None for the section to embed: its `section_size` bytes are not known before it has an address.
    """

    file_offset: int
    removed_size: int
    content: bytes | None
    section_size: int = 0


def overwrite(file_offset: int, content: bytes) -> Splice:
    """Return the splice that replaces bytes by as many bytes."""
    return Splice(file_offset, len(content), content)


def ordered(splices: Iterable[Splice]) -> tuple[Splice, ...]:
    """Sort splices by file offset, at each offset first those that only insert; otherwise they keep their order.

    What is inserted at an offset comes before the byte that was there, whether or not that one is replaced. Raises
    `EmbedError` when two of them replace the same bytes, which a consistent plan never does.
    """
    result = tuple(sorted(splices, key=lambda splice: (splice.file_offset, splice.removed_size > 0)))
    for before, after in pairwise(result):
        if before.file_offset + before.removed_size > after.file_offset:
            raise EmbedError(f"two changes overlap at file offset 0x{after.file_offset:x}")
    return result


def apply(data: FileData, splices: tuple[Splice, ...], section: bytes = b"") -> Joined:
    """Return the edited file; `splices` are `ordered`, `section` are the bytes of the section to embed."""
    chunks: list[FileData] = []
    position = 0
    for splice in splices:
        if splice.file_offset > position:
            chunks.append(part_of(data, position, splice.file_offset))
        chunks.append(section if splice.content is None else splice.content)
        position = splice.file_offset + splice.removed_size
    chunks.append(part_of(data, position, len(data)))
    return Joined(chunks)
