# SPDX-License-Identifier: Apache-2.0
"""Records of what is found in files, folders and containers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.errors import ErrorKind

if TYPE_CHECKING:
    from cfi2sframe.elf.contents import FileData

ELF_MAGIC: Final = b"\x7fELF"
AR_MAGIC: Final = b"!<arch>\n"
THIN_MAGIC: Final = b"!<thin>\n"
#: What Debian and RPM packages begin with. They are not read.
PACKAGE_MAGICS: Final = (AR_MAGIC + b"debian-binary", b"\xed\xab\xee\xdb")
#: The path that stands for standard input; a file of this name is `./-`.
STANDARD_INPUT: Final = "-"
#: No file has a longer name (bytes): PATH_MAX, with the terminating NUL byte.
MAX_NAME_SIZE: Final = 4096

SourceKind = Literal["elf", "archive"]


class Source(NamedTuple):
    """A file to open. `name` is what reports call it, `size` its bytes, holes included.

    `is_in_folder`: it was found in a folder, not named; then it must still be a regular file when it is opened.
    """

    path: str
    name: str
    kind: SourceKind
    size: int
    is_in_folder: bool = False


class Unusable(NamedTuple):
    """What cannot be opened, or read to the end: why, for people and for programs."""

    name: str
    reason: str
    kind: ErrorKind = ErrorKind.UNUSABLE


class Member(NamedTuple):
    """A member of a static archive, with its bytes."""

    name: str
    data: FileData


def text_of(name: bytes) -> str:
    """Return a member's name as text; bytes that are not UTF-8 are escaped."""
    return name.decode("utf-8", "backslashreplace")
