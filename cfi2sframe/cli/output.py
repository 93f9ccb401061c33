# SPDX-License-Identifier: Apache-2.0
"""Where input comes from, and where output goes: standard streams, a device, or a file that is written whole or not."""

from __future__ import annotations

import errno
import os
import stat
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from cfi2sframe.cli.common import ended_by_signals, read_image
from cfi2sframe.elf.load import load_open
from cfi2sframe.errors import ChangedError, InputError
from cfi2sframe.files.source import source_of
from cfi2sframe.files.write import write_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.source import Source


@contextmanager
def open_image(path: str) -> Iterator[tuple[ElfImage, Source | None]]:
    """Load a file, or standard input for `-`; what is no regular file is no source. Raises `InputError`."""
    if path == "-":
        yield read_image(path), None
        return
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise InputError(error.strerror or str(error)) from None
    try:
        # Before anything is read: what is changed from here on is noticed.
        source = source_of(descriptor)
        yield load_open(descriptor, path), source
    finally:
        os.close(descriptor)


def write_output(
    path: str,
    content: FileData,
    *,
    source: Source | None = None,
    is_copy: bool = False,
    in_place: bool = False,
    check: Callable[[FileData], None] | None = None,
) -> tuple[str, ...]:
    """Write to a file as `batch.write.write_file` does, through a symbolic link; `-` is standard output.

    What is there and is no regular file (a device, a pipe) is written to directly, after all of the content has been
    read and checked in memory. Returns what has to be said. Raises `OSError`, `ChangedError` when `source` is not as it
    was, and what `check` raises.
    """
    if path != "-" and not _is_special(path):
        with ended_by_signals():
            targets = [os.path.realpath(path)]
            _, warnings = write_file(targets, content, source=source, is_copy=is_copy, in_place=in_place, check=check)
        return warnings
    # Nothing that has gone out can be taken back, and a file may be changed after the check.
    data = bytes(content)
    if check is not None:
        check(data)
    if source is not None:
        source.check()
    if path == "-":
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    else:
        with open(_open_special(path), "wb") as device:
            device.write(data)
    return ()


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


def _open_special(path: str) -> int:
    """Open a device or a pipe by its own name: what a link in /proc seems to lead to may have no name at all."""
    descriptor = os.open(path, os.O_WRONLY | os.O_NOCTTY | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise ChangedError("a device or a pipe was replaced by a file")
    return descriptor
