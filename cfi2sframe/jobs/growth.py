# SPDX-License-Identifier: Apache-2.0
"""The padding that a file gets beside the section."""

from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.errors import EmbedError


def padding_size(conversion: Conversion) -> int:
    """Return how many zeros (bytes) a file gets in place of .bss when the section is put into it.

    There are none in objects and in files that are refused. Raises `InputError` when the file cannot be read.
    """
    image = conversion.image
    if image.is_relocatable:
        return 0
    from cfi2sframe.placing.linked import plan_insertion

    try:
        return plan_insertion(image.data, max(len(conversion.data), 1), replaces=True).padding_size
    except EmbedError:
        return 0
