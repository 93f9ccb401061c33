# SPDX-License-Identifier: Apache-2.0
"""The members of static archives, as GNU's and BSD's ar write them (ar(5)), and the files that thin archives name.

Each header is read once, and of a name no more than a path can have: members may share a table of names of any length.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Final, NamedTuple

from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.load import open_regular, read_open, read_part
from cfi2sframe.errors import ArchiveError, reason_of
from cfi2sframe.files.find import THIN_MAGIC, closed_after
from cfi2sframe.files.source import Source
from cfi2sframe.text import shown_path

#: The size and the end of a member's header, and the members that are tables (of symbols, of long names).
_HEADER_SIZE: Final = 60
_HEADER_END: Final = b"`\n"
_NAMES: Final = b"//"
_TABLES: Final = (b"/", b"/SYM64/", _NAMES, b"__.SYMDEF", b"__.SYMDEF SORTED", b"__.SYMDEF_64", b"__.SYMDEF_64 SORTED")
_BSD_NAME: Final = b"#1/"
#: The most bytes of a name that are read: no path that can be opened is as long (PATH_MAX).
_MAX_NAME_SIZE: Final = 4096


class Member(NamedTuple):
    """The bytes from `start` to `end` of an archive or, if `path` is not empty, of the file there.

    `name` is for messages. A file that is meant as a whole has `start` 0, whatever size the archive gives.
    """

    name: str
    path: str
    start: int
    end: int

    def content(self, data: FileData) -> FileData:
        """Return the member's bytes, given those of the file that has them."""
        return read_part(data, self.start, self.end if self.start else len(data))


def is_thin(data: FileData) -> bool:
    """Return whether an archive names files instead of having them."""
    return bytes(data[: len(THIN_MAGIC)]) == THIN_MAGIC


def members_of(data: FileData) -> Iterator[Member]:
    """Yield the members of an archive that are no tables. Raises `ArchiveError` for damage."""
    is_apart, names_start, names_end = is_thin(data), 0, 0
    offset, end = len(THIN_MAGIC), len(data)
    while offset < end:
        header = bytes(data[offset : offset + _HEADER_SIZE])
        name, digits, start = header[:16].rstrip(), header[48:58].strip(), offset + _HEADER_SIZE
        is_inside = not is_apart or name in _TABLES
        if header[58:] != _HEADER_END or not digits.isdigit() or (is_inside and start + int(digits) > end):
            raise ArchiveError(f"the archive is truncated or damaged at 0x{offset:x}")
        size = int(digits)
        offset = start + size + size % 2 if is_inside else start
        if name == _NAMES:
            names_start, names_end = start, start + size
        name_offset, _, inner = name[1:].partition(b":")
        if name[:1] == b"/" and name_offset.isdigit():
            first = names_start + int(name_offset)
            name = bytes(data[first : min(first + _MAX_NAME_SIZE, names_end)]).partition(b"\n")[0]
        elif name.startswith(_BSD_NAME) and name[len(_BSD_NAME) :].isdigit():
            length = min(int(name[len(_BSD_NAME) :]), size)
            name = bytes(data[start : start + min(length, _MAX_NAME_SIZE)]).rstrip(b"\0")
            start, size = start + length, size - length
        path = os.fsdecode(name.removesuffix(b"/"))
        if not is_inside:
            # After a colon, thin archives have the offset of a member's header in an archive that was put into them.
            shown_inner, start = (f":{int(inner)}", int(inner) + _HEADER_SIZE) if inner.isdigit() else ("", 0)
            yield Member(shown_path(path) + shown_inner, path, start, start + size)
        elif name not in _TABLES:
            yield Member(shown_path(path), "", start, start + size)


def files_named_in(data: FileData, archive: Source) -> Iterator[tuple[Source, list[Member]]]:
    """Yield the files that a thin archive names, each once, with its members in them; missing files come first.

    Empty files, and those that are not regular, are left out. Raises `ArchiveError`.
    """
    folder = os.path.dirname(os.path.realpath(archive.path))
    files: dict[tuple[int, int], tuple[Source, dict[int, Member]]] = {}
    for member in members_of(data):
        source = Source(os.path.join(folder, member.path), f"{archive.name}({member.name})", is_found=True)
        try:
            status = os.stat(source.path)
        except (OSError, ValueError) as error:
            # A path with a zero byte is a `ValueError`.
            fault = reason_of(error) if isinstance(error, OSError) else "not a path"
            yield source._replace(fault=fault), []
            continue
        if stat.S_ISREG(status.st_mode) and status.st_size:
            source = source._replace(size=status.st_size)
            # Neither another name nor another size makes another file of it.
            files.setdefault((status.st_dev, status.st_ino), (source, {}))[1].setdefault(member.start, member)
    yield from ((source, list(members.values())) for source, members in files.values())


def open_named(source: Source) -> AbstractContextManager[FileData]:
    """Give the bytes of a file that a thin archive names, if it is a regular one. Raises `InputError`, `OSError`."""
    source.raise_fault()
    descriptor = open_regular(source.path)
    try:
        return closed_after(read_open(descriptor))
    finally:
        os.close(descriptor)
