# SPDX-License-Identifier: Apache-2.0
"""Write a whole file or none; with all of its names, when it has several."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from cfi2sframe.elf.records import Buffer

_TEMPORARY_PREFIX: Final = ".cfi2sframe-"


def write_file(
    target: str,
    chunks: Iterable[Buffer],
    *,
    like: str | None = None,
    keep_times: bool = False,
    check: Callable[[str], None] | None = None,
    more_targets: Sequence[str] = (),
) -> None:
    """Write to a temporary file in the same folder, then rename it. `target` is no symbolic link.

    The mode is that of the file `like` (with owner and extended attributes as far as permitted, and with `keep_times`
    its times), else of the file that is replaced, else what the umask leaves. `check` may look at the temporary file
    and raise. `more_targets` become further hard links of the new file; each is exchanged atomically, and none before
    all are prepared. Raises `OSError`.
    """
    made: list[str] = []
    try:
        temporary = _temporary_beside(target, made)
        with open(_create(temporary), "wb") as file:
            file.writelines(chunks)
        if check is not None:
            check(temporary)
        _set_attributes(temporary, target, like, keep_times=keep_times)
        links = []
        for other in more_targets:
            link = _temporary_beside(other, made)
            os.link(temporary, link)
            links.append(link)
        os.replace(temporary, target)
        for link, other in zip(links, more_targets, strict=True):
            os.replace(link, other)
    except BaseException:
        for path in made:
            try:
                os.unlink(path)
            except FileNotFoundError:
                continue
        raise


def _temporary_beside(path: str, made: list[str]) -> str:
    """Return a name that nobody else uses, and note it before it is: an interrupt must find it.

    The standard library's way would double what a small conversion loads.
    """
    temporary = os.path.join(os.path.dirname(path), f"{_TEMPORARY_PREFIX}{os.urandom(12).hex()}")
    made.append(temporary)
    return temporary


def _create(path: str) -> int:
    """Make a file that was not there, readable by its owner alone; return its descriptor."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


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
