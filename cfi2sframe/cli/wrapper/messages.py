# SPDX-License-Identifier: Apache-2.0
"""What a wrapper says: messages on standard error, and a log of what became of each file."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from cfi2sframe.cli.wrapper.roles import Role


def is_set(variable: str) -> bool:
    """Whether a variable is neither empty nor 0."""
    return os.environ.get(variable, "0") not in ("", "0")


def message(role: Role, kind: str, text: str, file: str = "") -> str:
    """Return a message in the GNU style, with its line end."""
    place = f"{printable(file)}: " if file else ""
    return f"{role.program}: {place}{kind}: {printable(text)}\n"


def write(text: str) -> None:
    """Write to standard error. That nobody reads it does not change the result of a build."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # The interpreter would write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def log(text: str) -> None:
    """Append lines to the log, if there is one, in one piece: builds run many wrappers at the same time."""
    path = os.environ.get("CFI2SFRAME_LOG")
    if not path:
        return
    try:
        with open(path, "ab", buffering=0) as file:
            file.write(text.encode(errors="surrogateescape"))
    except (OSError, ValueError) as error:
        if is_set("CFI2SFRAME_VERBOSE"):
            write(f"cfi2sframe: CFI2SFRAME_LOG: {error}\n")


def without_section(role: Role, file: str, reason: str = "") -> int:
    """Report a file that has no section although the real program has succeeded; return the build step's status."""
    verdict = "no .sframe section was put in" + (reason and f": {reason}")
    log(message(role, "warning", verdict, from_root(file)))
    if is_set("CFI2SFRAME_STRICT"):
        write(message(role, "error", f"{verdict} (CFI2SFRAME_STRICT)", file))
        return 1
    if is_set("CFI2SFRAME_VERBOSE"):
        write(message(role, "warning", verdict, file))
    return 0


def from_root(file: str) -> str:
    """Return a file's name from the root: a log has files of many folders."""
    try:
        return os.path.abspath(file)
    except OSError:
        # Somebody has removed the current folder.
        return file
