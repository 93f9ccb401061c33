# SPDX-License-Identifier: Apache-2.0
"""Whether a file already is what would be written. Then there is nothing to do, and its times stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.contents import is_equal
from cfi2sframe.elf.image import ElfImage

if TYPE_CHECKING:
    from cfi2sframe.emit import Emitted

_NAMES = (".sframe", ".rela.sframe")


def is_same(image: ElfImage, emitted: Emitted) -> bool:
    """Whether a file holds the section already that it was rewritten with.

    A linked file must be the same to the byte. The new sections of a rewritten object follow the old end of the file,
    so its section headers may differ in their file offsets; `.sframe` and `.rela.sframe` must have the same bytes.
    """
    if emitted.plan is not None:
        return is_equal(image.data, emitted.chunks)
    rewritten = ElfImage(emitted.chunks, image.name)
    return len(image.sections) == len(rewritten.sections) and all(
        old._replace(file_offset=0) == new._replace(file_offset=0)
        and (old.name not in _NAMES or image.section_bytes(old) == rewritten.section_bytes(new))
        for old, new in zip(image.sections, rewritten.sections, strict=True)
    )
