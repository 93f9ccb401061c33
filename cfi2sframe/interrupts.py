# SPDX-License-Identifier: Apache-2.0
"""What a signal's handler raises ends the run, wherever the interpreter was when the signal came.

A handler runs between any two instructions, thus also in what the interpreter calls by itself: the callback of a weak
reference (imports have one for their locks), a finaliser. An exception cannot leave those; Python prints "Exception
ignored in", with a traceback, and goes on as if nobody had asked it to end.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

#: The interpreter has left the callback by then.
_RETRY_SECONDS: Final = 0.001


def keep_interrupts() -> None:
    """Have this process raise again what ends it and was lost; SIGALRM is taken for that when it happens.

    For programs, at their beginning: the hook for exceptions that cannot be raised is the whole process's.
    """
    sys.unraisablehook = _look_at_lost


def _look_at_lost(lost: UnraisableHookArgs) -> None:
    error = lost.exc_value
    if not isinstance(error, (KeyboardInterrupt, SystemExit)):
        sys.__unraisablehook__(lost)
        return
    # One that has been an exception already would keep alive what it has passed through.
    again = type(error)(*error.args)

    def end(_number: int, _frame: FrameType | None) -> None:
        raise again

    import signal

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
