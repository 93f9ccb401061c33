# SPDX-License-Identifier: Apache-2.0
"""Where a report was made: the machine, the time, the program with its options, and what was measured."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

#: So many of the paths are named; the others are counted.
_NAMED_PATHS: Final = 5


class Origin(NamedTuple):
    """What a page says of itself, each as a text."""

    program: str
    options: str
    paths: str
    machine: str
    time: str


def origin_of(program: str, paths: Sequence[str], options: Sequence[str]) -> Origin:
    """Return the origin of a report that is made now, or at SOURCE_DATE_EPOCH where that is set."""
    named = " ".join(paths[:_NAMED_PATHS])
    if len(paths) > _NAMED_PATHS:
        named += f" and {len(paths) - _NAMED_PATHS:,} more"
    seconds = os.environ.get("SOURCE_DATE_EPOCH", "")
    moment = time.gmtime(int(seconds)) if seconds.isdecimal() else time.gmtime()
    return Origin(program, " ".join(options), named, _machine(), time.strftime("%Y-%m-%d %H:%M UTC", moment))


def _machine() -> str:
    """Return the name of this machine, its system and its architecture."""
    import platform

    uname = os.uname()
    try:
        system = platform.freedesktop_os_release().get("PRETTY_NAME", uname.sysname)
    except OSError:
        system = uname.sysname
    return f"{uname.nodename} ({system}, {uname.machine})"
