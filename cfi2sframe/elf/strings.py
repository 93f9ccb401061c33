# SPDX-License-Identifier: Apache-2.0
"""String tables."""

from __future__ import annotations

from typing import Final

#: Characters of a name that messages show.
_MAX_SHOWN_SIZE: Final = 80


def shown_name(name: str) -> str:
    """Return a name for a message, cut where it is long: thousands of sections may share a name of any length."""
    return name if len(name) <= _MAX_SHOWN_SIZE else name[:_MAX_SHOWN_SIZE] + "..."


class StringTable:
    """The strings of a string table by offset in bytes, each decoded once."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._known: dict[int, str] = {}

    def at(self, offset: int) -> str:
        """Return the string at an offset, up to its NUL or the table's end; empty when the offset leaves the table.

        Bytes that are not UTF-8 are escaped.
        """
        known = self._known.get(offset)
        if known is not None:
            return known
        end = self._data.find(b"\0", offset)
        raw = self._data[offset:] if end < 0 else self._data[offset:end]
        text = self._known[offset] = raw.decode("utf-8", "backslashreplace")
        return text
