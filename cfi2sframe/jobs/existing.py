# SPDX-License-Identifier: Apache-2.0
"""Whether a file already is what would be written: then there is nothing to do, and its times stay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.elf.contents import is_equal
from cfi2sframe.elf.image import ElfImage

if TYPE_CHECKING:
    from cfi2sframe.emit import Emitted

_NAMES = (".sframe", ".rela.sframe")


def is_same(image: ElfImage, emitted: Emitted) -> bool:
    """Whether a file, rewritten so that its old section gave way, says what it said before.

    A linked file has to be the same to the byte. A rewritten object has its new sections behind the old end, so that
    its section headers, but for where they point, and the bytes of `.sframe` and `.rela.sframe` have to be the same.
    """
    if emitted.plan is not None:
        return emitted.plan.strategy == "existing-section" and is_equal(image.data, emitted.chunks)
    rewritten = ElfImage(emitted.chunks, image.name, image.budget)
    return len(image.sections) == len(rewritten.sections) and all(
        old._replace(file_offset=0) == new._replace(file_offset=0)
        and (old.name not in _NAMES or image.section_bytes(old) == rewritten.section_bytes(new))
        for old, new in zip(image.sections, rewritten.sections, strict=True)
    )
