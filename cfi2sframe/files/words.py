# SPDX-License-Identifier: Apache-2.0
"""Lists of NUL-terminated names, as `find -print0` writes them."""

from __future__ import annotations

import os
import sys
from contextlib import nullcontext
from typing import Final

from cfi2sframe.errors import RequestError

#: The largest list (bytes): more than any real one, because some devices never end.
_MAX_LIST_SIZE: Final = 1 << 28
_BLOCK_SIZE: Final = 1 << 20


def names_from(path: str) -> list[str]:
    """Return the names in a list; `-` is standard input.

    Raises `OSError` when it cannot be read, `RequestError` when its names are lines, or when it is no list: an ELF file
    that is taken for one has strings that name files of the system.
    """
    with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        # In blocks: Python allocates all that a call of `read` may return.
        data = bytearray()
        while block := file.read(_BLOCK_SIZE):
            data += block
            if len(data) > _MAX_LIST_SIZE:
                raise RequestError(f"--files-from {path}: a list of more than {_MAX_LIST_SIZE >> 20:,} MiB")
    if b"\0" not in data and b"\n" in data:
        raise RequestError(
            f"--files-from {path}: names are to end with NUL bytes, as with find -print0, not with lines"
        )
    if b"\0\0" in data:
        raise RequestError(f"--files-from {path}: not a list of names, because it has an empty one")
    return [os.fsdecode(bytes(name)) for name in data.split(b"\0") if name]
