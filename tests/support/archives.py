# SPDX-License-Identifier: Apache-2.0
"""Static archives, put together by a few lines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def ar(members: Iterable[tuple[bytes, bytes]], magic: bytes = b"!<arch>\n") -> bytes:
    """Return an archive of members: raw names (up to 16 bytes) and contents."""
    parts = [magic]
    for name, data in members:
        parts.append(ar_header(name, len(data)))
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def ar_header(name: bytes, size: int) -> bytes:
    """Return the 60 bytes before a member."""
    return b"%-16s%-12s%-6s%-6s%-8s%-10d`\n" % (name, b"0", b"0", b"0", b"644", size)
