# SPDX-License-Identifier: Apache-2.0
"""Where output goes: standard output, a device, or a file that is written whole or not at all."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cfi2sframe.batch.write import write_file

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
) -> None:
    """Write to a file as `batch.write.write_file` does, through a symbolic link; `-` is standard output.

    What is there and is no regular file (a device, a pipe) is written to directly. Raises `OSError`.
    """
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.writelines(chunks)
        sys.stdout.buffer.flush()
        return
    target = os.path.realpath(path)
    if os.path.exists(target) and not os.path.isfile(target):
        with open(target, "wb") as device:
            device.writelines(chunks)
        return
    write_file(target, chunks, like=like, keep_times=keep_times, check=check)
