# SPDX-License-Identifier: Apache-2.0
"""A file of a run, in a module of its own: to convert a single file, no walk over directories is loaded."""

import errno
import os
import stat
from typing import Final, NamedTuple

#: The path that stands for standard input; a file of this name is `./-`.
STANDARD_INPUT: Final = "-"


class Source(NamedTuple):
    """A file to work on, once, whatever names it has.

    `path` opens it, `name` is what messages call it, and `size` its bytes, holes included (0: unknown). `targets` are
    the resolved paths of all its names, to rewrite it, and `other_names` the given ones besides `name`.

    `is_found`: it was found in a directory or an archive, not named; then it must be a regular file when it is opened.
    `is_listed`: a list of files names it. `is_archive`: questions about it are asked of the ELF files in it.
    `is_stream`: it can be read only once. `fault` is the reason why it cannot be read at all, empty if none is known.
    """

    path: str
    name: str
    size: int = 0
    targets: tuple[str, ...] = ()
    other_names: tuple[str, ...] = ()
    is_found: bool = False
    is_listed: bool = False
    is_archive: bool = False
    is_stream: bool = False
    fault: str = ""

    @property
    def may_be_unfit(self) -> bool:
        """True if the user has not named the file itself: then it is no failure if it lacks what is asked for."""
        return self.is_found or self.is_listed

    def raise_fault(self) -> None:
        """Raise `OSError` if the file is known to be unreadable."""
        if self.fault:
            raise OSError(errno.EINVAL, self.fault, self.name)


def named_source(path: str) -> Source:
    """Return a file that a user has named, unread; links are resolved here, once. A FIFO, which may not end, fails."""
    if path == STANDARD_INPUT:
        return Source(path, "<stdin>", is_stream=True)
    target = os.path.realpath(path)
    try:
        # A shell's process substitution has no name in the file system.
        is_fifo = stat.S_ISFIFO(os.stat(target).st_mode)
    except OSError:
        is_fifo = False
    return Source(path, path, targets=(target,), fault="a FIFO: redirect standard input from it (-)" if is_fifo else "")
