# SPDX-License-Identifier: Apache-2.0
"""The program's name, its messages on standard error, and its exit statuses."""

import os
import sys
from collections.abc import Iterable
from typing import Final

from cfi2sframe.errors import ErrorKind, OutputError, kind_of, reason_of
from cfi2sframe.text import printable

PROGRAM: Final = "cfi2sframe"
#: Colors of ANSI terminals, as compilers use them.
_COLORS: Final = {"error": "1;31", "warning": "1;35"}

EXIT_SUCCESS: Final = 0
EXIT_DIFFERENCE: Final = 1
EXIT_USAGE: Final = 2
EXIT_UNUSABLE: Final = 3
EXIT_INCOMPLETE: Final = 4
EXIT_UNCOMPARED: Final = 5
#: Exit statuses from best to worst: of several files, the worst counts.
_EXIT_ORDER: Final = (EXIT_SUCCESS, EXIT_UNCOMPARED, EXIT_DIFFERENCE, EXIT_INCOMPLETE, EXIT_USAGE, EXIT_UNUSABLE)


class MessageStyle:
    """The style of this process's messages: only errors (`--quiet`); with `color` auto, always or never."""

    is_quiet = False
    color = "auto"


def is_dumb() -> bool:
    """Return whether the terminal prints control sequences instead of obeying them."""
    return os.environ.get("TERM") == "dumb"


def _colored(kind: str) -> str:
    is_plain = bool(os.environ.get("NO_COLOR")) or is_dumb() or not sys.stderr.isatty()
    if kind not in _COLORS or MessageStyle.color == "never" or (MessageStyle.color == "auto" and is_plain):
        return f"{kind}:"
    return f"\033[{_COLORS[kind]}m{kind}:\033[0m"


def say(kind: str, text: str, file: str = "") -> None:
    """Print a message on standard error: `cfi2sframe: FILE: error: TEXT`."""
    if MessageStyle.is_quiet and kind != "error":
        return
    prefix = f"{PROGRAM}: " + (f"{printable(file)}: " if file else "")
    sys.stdout.flush()
    print(f"{prefix}{_colored(kind)} {printable(text)}", file=sys.stderr)


def fail(error: Exception, file: str) -> int:
    """Report an error of a file, or of the output that it names itself; return its exit status."""
    if isinstance(error, OutputError):
        say("error", error.reason, error.where)
    else:
        say("error", reason_of(error), "<stdin>" if file == "-" else file)
    return exit_status_of(kind_of(error))


def exit_status_of(kind: ErrorKind) -> int:
    """Return the exit status of a failure."""
    if kind is ErrorKind.REQUEST:
        return EXIT_USAGE
    return EXIT_INCOMPLETE if kind is ErrorKind.INCOMPLETE else EXIT_UNUSABLE


def worst(statuses: Iterable[int]) -> int:
    """Return the worst of some exit statuses; success of none."""
    return max(statuses, key=_EXIT_ORDER.index, default=EXIT_SUCCESS)
