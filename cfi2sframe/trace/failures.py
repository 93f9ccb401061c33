# SPDX-License-Identifier: Apache-2.0
"""The last line of defence: what nobody foresaw costs one file or one thread of a trace, and never the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cfi2sframe.errors import Cfi2SFrameError

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def guarded(work: Callable[[], _T], otherwise: Callable[[str], _T]) -> _T:
    """Return what `work` returns; or what `otherwise` makes of the reason why it failed, whatever was raised."""
    try:
        return work()
    except Exception as error:  # noqa: BLE001 - as the module says
        return otherwise(failure(error))


def failure(error: Exception) -> str:
    """Return an error in words: one that nobody foresaw is called a bug."""
    if isinstance(error, Cfi2SFrameError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"internal error: {type(error).__name__}: {error}; please report it"
