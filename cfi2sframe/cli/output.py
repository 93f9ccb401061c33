# SPDX-License-Identifier: Apache-2.0
"""Where output goes: standard output, a device, or a file that is written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
import sys
from typing import TYPE_CHECKING

from cfi2sframe.batch.write import Watched, write_file
from cfi2sframe.cli.common import ended_by_signals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.elf.records import Buffer


def write_output(
    path: str,
    chunks: Iterable[Buffer],
    *,
    like: str | None = None,
    keep_times: bool = False,
    check: Callable[[str], None] | None = None,
    source: Watched | None = None,
) -> None:
    """Write to a file as `batch.write.write_file` does, through a symbolic link; `-` is standard output.

    What is there and is no regular file (a device, a pipe) is written to directly. Raises `OSError`, and `ChangedError`
    when `source` is not as it was.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.writelines(chunks)
        sys.stdout.buffer.flush()
        return
    if _is_special(path):
        # By its own name: what a link in /proc seems to lead to may have no name at all.
        with open(path, "wb") as device:
            device.writelines(chunks)
        return
    with ended_by_signals():
        write_file(os.path.realpath(path), chunks, like=like, keep_times=keep_times, check=check, source=source)


def _is_special(path: str) -> bool:
    """Whether there is something that is no regular file. Raises `OSError` where no file can be."""
    try:
        return not stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        if not path:
            raise
        if path.endswith(os.sep):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path) from None
        return False
