# SPDX-License-Identifier: Apache-2.0
"""End the run when a signal handler raises an exception, wherever the interpreter is.

A handler may run inside a function that the interpreter calls by itself: a finaliser, or the callback of a weak
reference, such as import locks have. No exception can leave these: Python prints "Exception ignored in", with a
traceback, and continues as if there had been no signal.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from sys import UnraisableHookArgs
    from types import FrameType

#: The interpreter has left the callback by then.
_RETRY_SECONDS = 0.001


def keep_interrupts() -> None:
    """Raise lost interrupts again, from SIGALRM.

    Programs call this at their start: the hook for exceptions that cannot be raised belongs to the whole process.
    """
    sys.unraisablehook = _look_at_lost


def _look_at_lost(lost: "UnraisableHookArgs") -> None:
    error = lost.exc_value
    # Not imported here: an interrupt during the imports of this module is not caught.
    errors = sys.modules.get("cfi2sframe.errors")
    if errors is not None and isinstance(error, errors.CostError):
        # The timer that raised it fires again.
        return
    if isinstance(error, OSError) and error.errno is None and lost.object is None:
        # "Signal N ignored due to race condition": another signal's handler ignores it now, as intended.
        return
    if not isinstance(error, (KeyboardInterrupt, SystemExit)):
        sys.__unraisablehook__(lost)
        return
    # The same exception object would keep the frames alive that it has passed through.
    again = type(error)(*error.args)

    def end(_number: int, _frame: "FrameType | None") -> None:
        raise again

    import signal

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, _RETRY_SECONDS)
