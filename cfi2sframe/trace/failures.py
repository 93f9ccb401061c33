# SPDX-License-Identifier: Apache-2.0
"""The last line of defence: an unforeseen exception costs one file or one thread of a trace, never the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from cfi2sframe.errors import CostError, reason_of

if TYPE_CHECKING:
    from collections.abc import Callable

_T = TypeVar("_T")


def guarded(work: Callable[[], _T], otherwise: Callable[[str], _T], *passed: type[Exception]) -> _T:
    """Return what `work` returns; or what `otherwise` makes of the reason why it failed, whatever was raised.

    `CostError` and exceptions of the types `passed` are raised: they concern more than this piece of work.
    """
    try:
        return work()
    except CostError:
        raise
    except passed:
        raise
    except Exception as error:  # noqa: BLE001 - see the docstring of the module
        return otherwise(reason_of(error))
