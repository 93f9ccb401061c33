# SPDX-License-Identifier: Apache-2.0
"""String tables of files that may be hostile: overlapping names must not need much more memory than the table."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import ElfError
from cfi2sframe.intern import IdentityMap

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Bytes of memory for names for each byte of the table. Linkers share suffixes, so a byte may be part of two or three
#: names; and one character outside of ASCII doubles or quadruples the size of its name in memory.
_MAX_OVERLAP: Final = 16
_ALLOWANCE: Final = 4096
_EMPTY_SIZE: Final = sys.getsizeof("")
#: Characters of a name that messages show.
_MAX_SHOWN_SIZE: Final = 80


def shown_name(name: str) -> str:
    """Return a name for a message, cut where it is long: thousands of sections may share a name of any length."""
    return name if len(name) <= _MAX_SHOWN_SIZE else name[:_MAX_SHOWN_SIZE] + "..."


def shared_names(names: Iterable[str], others: Iterable[str]) -> tuple[str, ...]:
    """Intern names: return them with each name that equals one of `others` replaced by that object.

    Comparing equal names is then independent of their length.
    """
    known = {name: name for name in others}
    # A string table returns one object for one offset, so each is hashed once.
    interned: IdentityMap[str, str] = IdentityMap(lambda name: known.get(name, name))
    return tuple(interned[name] for name in names)


class StringTable:
    """The strings of a string table by offset in bytes, each decoded once. `name` is the section's, for errors."""

    def __init__(self, data: bytes, name: str) -> None:
        self._data = data
        self._name = name
        self._known: dict[int, str] = {}
        self._budget = _MAX_OVERLAP * len(data) + _ALLOWANCE

    def at(self, offset: int) -> str:
        """Return the string at an offset, up to its NUL or the table's end; empty when the offset leaves the table.

        Bytes that are not UTF-8 are escaped. Raises `ElfError` when names overlap far more than linkers make them.
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
