# SPDX-License-Identifier: Apache-2.0
"""What a wrapper says: its messages on standard error, and the log of everything that was put in or was not."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import TextIO

    from cfi2sframe.cli.wrapper.roles import Role


def is_set(variable: str) -> bool:
    """Whether a variable is neither empty nor 0."""
    return os.environ.get(variable, "0") not in ("", "0")


def is_verbose() -> bool:
    """Whether messages are printed that are not about failures of the build."""
    return is_set("CFI2SFRAME_VERBOSE")


def is_logging() -> bool:
    """Whether there is a log."""
    return bool(os.environ.get("CFI2SFRAME_LOG"))


def say(role: Role, kind: str, text: str, status: int, file: str = "") -> int:
    """Print a message in the GNU style and return `status`."""
    write(message(role, kind, text, file))
    return status


def message(role: Role, kind: str, text: str, file: str = "") -> str:
    """Return a message in the GNU style, with its line end."""
    from cfi2sframe.printable import printable

    place = f"{printable(file)}: " if file else ""
    return f"{role.program}: {place}{kind}: {printable(text)}\n"


def write(text: str) -> None:
    """Write to standard error, as long as somebody reads it: that does not change the result of a build."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Keep the interpreter from writing to a stream again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def log(text: str) -> None:
    """Append lines to the log, if there is one, in one piece: builds run many wrappers at the same time."""
    path = os.environ.get("CFI2SFRAME_LOG")
    if not path:
        return
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, text.encode(errors="surrogateescape"))
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        if is_verbose():
            write(f"cfi2sframe: CFI2SFRAME_LOG: {error}\n")
