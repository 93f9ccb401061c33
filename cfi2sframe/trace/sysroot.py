# SPDX-License-Identifier: Apache-2.0
"""Paths below another root directory, resolved as if it were the root: no link leads out of it."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

#: Linux's own limits: of links in one path, and of a path's bytes.
_MAX_LINKS: Final = 40
_MAX_PATH_SIZE: Final = 4096


def open_inside(root: str, path: str) -> int:
    """Return a descriptor (O_PATH) of the file at a path of another root directory.

    Each component is opened in the folder before it, so a link that is replaced meanwhile does not lead out
    either. Raises `OSError` as the kernel would, `ValueError` for a path with a NUL.
    """
    if not hasattr(os, "O_PATH"):
        raise OSError(errno.ENOTSUP, "another root directory needs Linux")
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    opened = [os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)]
    try:
        waiting = _components(path)
        links = 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                # The root is its own parent.
                if len(opened) > 1:
                    os.close(opened.pop())
                continue
            found = os.open(part, flags, dir_fd=opened[-1])
            opened.append(found)
            if not stat.S_ISLNK(os.fstat(found).st_mode):
                continue
            links += 1
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            target = os.readlink("", dir_fd=found)
            while opened[1:] if target.startswith("/") else opened[-1] == found:
                os.close(opened.pop())
            waiting += _components(target)
        return opened.pop()
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _components(path: str) -> list[str]:
    """Return the names in a path, the first one last."""
    if len(os.fsencode(path)) >= _MAX_PATH_SIZE:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]
