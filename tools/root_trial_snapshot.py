# SPDX-License-Identifier: Apache-2.0
"""What a tree of files is, to the last attribute, and how two trees differ."""

from __future__ import annotations

import hashlib
import os
import stat
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Entry(NamedTuple):
    """What a name in a tree stands for. Times and contents of folders are left out: their files say it all."""

    kind: str
    mode: int
    owner: tuple[int, int]
    size: int
    modified_ns: int
    device: int
    #: SHA-256 of a regular file, target of a link.
    content: str
    attributes: tuple[tuple[str, bytes], ...]
    #: The other names of the same file in the tree.
    links: tuple[str, ...]


def _content(path: str, status: os.stat_result) -> str:
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path)
    if stat.S_ISREG(status.st_mode):
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    return ""


def _entry(path: str, links: tuple[str, ...]) -> Entry:
    status = os.lstat(path)
    is_folder = stat.S_ISDIR(status.st_mode)
    return Entry(
        stat.filemode(status.st_mode)[0],
        stat.S_IMODE(status.st_mode),
        (status.st_uid, status.st_gid),
        0 if is_folder else status.st_size,
        0 if is_folder else status.st_mtime_ns,
        status.st_rdev,
        _content(path, status),
        tuple((name, os.getxattr(path, name, follow_symlinks=False)) for name in sorted(_names_of_attributes(path))),
        links,
    )


def _names_of_attributes(path: str) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError:  # a file system, or a kind of file, that has none
        return []


def snapshot(root: Path) -> dict[str, Entry]:
    """Return what is below a folder, by its path there. Raises `OSError` when something cannot be read."""
    names: dict[tuple[int, int], list[str]] = {}
    for name in _names_below(root):
        status = os.lstat(root / name)
        names.setdefault((status.st_dev, status.st_ino), []).append(name)
    return {
        name: _entry(str(root / name), tuple(other for other in group if other != name))
        for group in (sorted(group) for group in names.values())
        for name in group
    }


def _names_below(root: Path) -> Iterator[str]:
    def refuse(error: OSError) -> None:
        raise error

    for folder, folders, files in os.walk(root, onerror=refuse):
        for name in (*folders, *files):
            yield os.path.relpath(os.path.join(folder, name), root)


def differences(before: dict[str, Entry], after: dict[str, Entry]) -> list[str]:
    """Return a sentence for each name that two trees do not have alike, in the order of the names."""
    found = []
    for name in sorted(before.keys() | after.keys()):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            found.append(f"{name}: {'new' if old is None else 'missing'}")
        elif old != new:
            fields = (field for field, a, b in zip(Entry._fields, old, new, strict=True) if a != b)
            found.append(f"{name}: another {', '.join(fields)}")
    return found
