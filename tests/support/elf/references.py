# SPDX-License-Identifier: Apache-2.0
"""All that may refer to some addresses, in order, each once."""

from collections.abc import Iterable

from cfi2sframe.elf import referrers as search
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.referrers import Referrer


def referrers(image: ElfImage, spans: Iterable[tuple[int, int]], *, rare: bool = True) -> list[Referrer]:
    """Return what `cfi2sframe.elf.referrers` yields."""
    return sorted(set(search.referrers(image, spans, rare=rare)))
