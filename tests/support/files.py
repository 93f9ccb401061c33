# SPDX-License-Identifier: Apache-2.0
"""Static archives, made by hand: headers may say anything of what follows them."""

from typing import Final

ARCHIVE: Final = b"!<arch>\n"
THIN: Final = b"!<thin>\n"


def member(name: bytes, content: bytes = b"", size: int | None = None, *, is_apart: bool = False) -> bytes:
    """Return a member with its header, which says that it has `size` bytes; one that `is_apart` is only named."""
    stated = str(len(content) if size is None else size).encode()
    header = name.ljust(16) + b"0".ljust(12) + b"0".ljust(6) + b"0".ljust(6) + b"644".ljust(8) + stated.ljust(10)
    return header + b"`\n" + (b"" if is_apart else content + b"\n" * (len(content) % 2))


def named(name: bytes, size: int = 0) -> bytes:
    """Return the header with which a thin archive names a file."""
    return member(name, size=size, is_apart=True)
