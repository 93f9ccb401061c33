# SPDX-License-Identifier: Apache-2.0
"""String tables, of files that may lie: names that overlap one another must not cost more than the table's size."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of memory that names may take for each byte of the table. Linkers share the ends of names, so that a byte is
#: part of two or three; in memory a single character outside of ASCII makes its name two or four times as large.
_MAX_OVERLAP: Final = 16
_ALLOWANCE: Final = 4096
_EMPTY_SIZE: Final = sys.getsizeof("")
#: Messages show so many characters of a name.
_MAX_SHOWN_SIZE: Final = 80


def shown_name(name: str) -> str:
    """Return the beginning of a name for a message: thousands of sections may share a name of any length."""
    return name if len(name) <= _MAX_SHOWN_SIZE else name[:_MAX_SHOWN_SIZE] + "..."


def shared_names(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Return names with those that equal some others replaced by these.

    Equal names are one object then, and comparing them does not cost their length each time.
    """
    known = {name: name for name in others}
    # A string table gives one object for one offset.
    replaced: dict[int, str] = {}
    result = []
    for name in names:
        if id(name) not in replaced:
            replaced[id(name)] = known.get(name, name)
        result.append(replaced[id(name)])
    return tuple(result)


class StringTable:
    """The names of a string table, by offset in bytes; each is read once. `name` is the section's."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._known: dict[int, str] = {}
        self._budget = _MAX_OVERLAP * len(data) + _ALLOWANCE

    def at(self, offset: int) -> str:
        """Return the string at an offset, up to its NUL or the table's end; empty when the offset leaves the table.

        Bytes that are no UTF-8 are escaped. Raises `ElfError` when names overlap far more often than they can in good
        faith.
        """
        known = self._known.get(offset)
        if known is not None:
            return known
        end = self._data.find(b"\0", offset)
        raw = self._data[offset:] if end < 0 else self._data[offset:end]
        text = raw.decode("utf-8", "backslashreplace")
        self._budget -= sys.getsizeof(text) - _EMPTY_SIZE
        if self._budget < 0:
            raise ElfError("the names in the string table overlap one another over and over", self._name)
        self._known[offset] = text
        return text
