# SPDX-License-Identifier: Apache-2.0
"""Writing a whole file or none."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli import PROGRAM

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
    """Write to a temporary file in the same folder, then rename it. `-` is standard output.

    The mode is that of the file `like` (with owner and extended attributes as far as permitted, and with `keep_times`
    its times), else of the file that is replaced, else what the umask leaves. `check` may look at the temporary file
    and raise. What is there and is no regular file (a device, a pipe) is written to directly. Raises `OSError`.
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
    descriptor, temporary = _make_temporary(os.path.dirname(target))
    try:
        with open(descriptor, "wb") as file:
            file.writelines(chunks)
        if check is not None:
            check(temporary)
        _set_attributes(temporary, target, like, keep_times=keep_times)
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise


def _make_temporary(folder: str) -> tuple[int, str]:
    """Make a file that nobody else has, readable by its owner alone; return its descriptor and path.

    The standard library's way would double what a small conversion loads.
    """
    while True:
        path = os.path.join(folder, f".{PROGRAM}-{os.urandom(6).hex()}")
        try:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600), path
        except FileExistsError:
            continue


def _set_attributes(temporary: str, target: str, like: str | None, *, keep_times: bool) -> None:
    if like is None:
        os.chmod(temporary, _mode_of(target))
        return
    status = os.stat(like)
    try:
        os.chown(temporary, status.st_uid, status.st_gid)
    except PermissionError:
        mine = os.stat(temporary)
        if (mine.st_uid, mine.st_gid) != (status.st_uid, status.st_gid):
            # A set-user-ID bit must not come to mean another user.
            status_mode = stat.S_IMODE(status.st_mode) & ~(stat.S_ISUID | stat.S_ISGID)
            os.chmod(temporary, status_mode)
            return
    _copy_extended_attributes(like, temporary)
    # After chown, which clears the set-ID bits.
    os.chmod(temporary, stat.S_IMODE(status.st_mode))
    if keep_times:
        os.utime(temporary, ns=(status.st_atime_ns, status.st_mtime_ns))


def _copy_extended_attributes(source: str, destination: str) -> None:
    """Copy what can be copied, capabilities among it; not every file system has such attributes."""
    try:
        names = os.listxattr(source)
    except OSError:
        return
    for name in names:
        try:
            os.setxattr(destination, name, os.getxattr(source, name))
        except OSError:
            continue


def _mode_of(target: str) -> int:
    """Return the mode that a file written in place would have: its own, or what the umask leaves."""
    try:
        return stat.S_IMODE(os.stat(target).st_mode)
    except FileNotFoundError:
        mask = os.umask(0)
        os.umask(mask)
        return 0o666 & ~mask
