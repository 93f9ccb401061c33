# SPDX-License-Identifier: Apache-2.0
"""What is found, what is opened, and what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData

ELF_MAGIC: Final = b"\x7fELF"
AR_MAGIC: Final = b"!<arch>\n"
THIN_MAGIC: Final = b"!<thin>\n"
RPM_MAGIC: Final = b"\xed\xab\xee\xdb"
#: Longer names (bytes) name no file: PATH_MAX, with the NUL byte that ends it.
MAX_NAME_SIZE: Final = 4096

SourceKind = Literal["elf", "archive", "deb", "rpm"]


class Source(NamedTuple):
    """A file to open. `name` is what reports call it, `size` its bytes, holes included.

    `is_in_folder`: a folder gave it, and nobody named it; then it has to be a regular file still when it is opened.
    """

    path: str
    name: str
    kind: SourceKind
    size: int
    is_in_folder: bool = False


class Unusable(NamedTuple):
    """What cannot be opened, or read to the end, and why."""

    name: str
    reason: str


class Member(NamedTuple):
    """A member of a static archive, with its bytes."""

    name: str
    data: FileData


class Entry(NamedTuple):
    """A regular file in a package, with its size in bytes; its content is what the payload gives next."""

    name: str
    size: int


def text_of(name: bytes) -> str:
    """Return a member's name as text; bytes that are no UTF-8 are escaped."""
    return name.decode("utf-8", "backslashreplace")
