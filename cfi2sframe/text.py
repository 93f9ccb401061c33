# SPDX-License-Identifier: Apache-2.0
"""Names and texts that come from files, made safe to print."""

from typing import Final

#: Characters of a name that messages show.
_MAX_SHOWN_SIZE: Final = 80
#: Characters of a path that a file's content gives.
_MAX_SHOWN_PATH_SIZE: Final = 256


def printable(text: str) -> str:
    """Return a text with every character escaped that a terminal would act on or that would break a line."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown_name(name: str) -> str:
    """Return a name for a message, cut where it is long: thousands of sections may share a name of any length."""
    return name if len(name) <= _MAX_SHOWN_SIZE else name[:_MAX_SHOWN_SIZE] + "..."


def shown_path(path: str) -> str:
    """Return a path that a file's content gives, cut at its start where it is long: its end tells it from others."""
    return path if len(path) <= _MAX_SHOWN_PATH_SIZE else "..." + path[3 - _MAX_SHOWN_PATH_SIZE :]


def counted(count: int, noun: str) -> str:
    """Return a count of things, such as `1 row` or `1,024 rows`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
