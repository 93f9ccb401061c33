# SPDX-License-Identifier: Apache-2.0
"""Debian packages: an archive with a compressed tar file of the files that a package installs (deb(5)).

The tar file is read here, because `tarfile` keeps long names and extended headers of any size, recurses as deeply as
they nest, and searches them in quadratic time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import ContainerError
from cfi2sframe.files.ar import members_of
from cfi2sframe.files.payload import Payload
from cfi2sframe.files.records import MAX_NAME_SIZE, Entry, text_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.budget import Budget
    from cfi2sframe.elf.contents import FileData

_BLOCK_SIZE: Final = 512
#: The cost of a header in microseconds.
_STEPS_PER_HEADER: Final = 16
_USTAR_MAGIC: Final = b"ustar\0"
_REGULAR: Final = (b"0", b"\0", b"7")
#: Links, devices, folders and FIFOs: no content follows, whatever their size field holds.
_WITHOUT_CONTENT: Final = b"123456"
_SPARSE: Final = b"S"
_LONG_NAME: Final = b"L"
_EXTENDED: Final = b"x"
#: The largest extended header (bytes): a name, and what else POSIX allows, such as extended attributes.
_MAX_EXTENDED_SIZE: Final = 1 << 16
#: The most digits of a record's length in an extended header.
_MAX_DIGITS: Final = 5


def payload_of_deb(data: FileData, budget: Budget) -> Payload:
    """Return the tar file of a package's files. Raises `ContainerError` if there is none."""
    for member in members_of(data, budget):
        if member.name.startswith("data.tar"):
            return Payload(member.data, member.name, budget)
    raise ContainerError("a Debian package without data.tar")


def tar_entries(payload: Payload) -> Iterator[Entry]:
    """Yield the regular files of a tar file: ustar, with the long names of GNU and POSIX.

    Raises `ContainerError` when it is damaged.
    """
    long_name: bytes | None = None
    long_size: int | None = None
    while True:
        header = payload.read(_BLOCK_SIZE)
        payload.budget.spend(_STEPS_PER_HEADER, "the headers of its files")
        if not header.strip(b"\0"):
            return
        if _number(payload, header[148:156]) != sum(header) - sum(header[148:156]) + 8 * ord(" "):
            raise payload.damaged("the checksum of a tar header is wrong")
        kind = header[156:157]
        size = 0 if kind in _WITHOUT_CONTENT else _number(payload, header[124:136])
        if kind == _SPARSE:
            # Its size is out of proportion to its content. dpkg refuses it, too.
            raise payload.damaged("a sparse file")
        if kind in (_LONG_NAME, _EXTENDED):
            end = payload.position + _padded(size)
            if size > _MAX_EXTENDED_SIZE:
                raise payload.damaged("an extended tar header is too long")
            content = payload.read(size)
            payload.skip_to(end)
            if kind == _LONG_NAME:
                long_name = content.split(b"\0", 1)[0]
            else:
                path, long_size = _extended(payload, content)
                long_name = path or long_name
            continue
        size = size if long_size is None else long_size
        end = payload.position + _padded(size)
        if kind in _REGULAR:
            name = _name(header) if long_name is None else long_name
            if len(name) > MAX_NAME_SIZE:
                raise payload.damaged("a name is too long")
            yield Entry(text_of(name), size)
        long_name = long_size = None
        payload.skip_to(end)


def _padded(size: int) -> int:
    return size + -size % _BLOCK_SIZE


def _number(payload: Payload, field: bytes) -> int:
    """Return a number: octal digits, or after a byte 0x80 binary, as GNU tar writes large ones."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if digits.strip(b"01234567"):
        raise payload.damaged("a number in a tar header is wrong")
    return int(digits or b"0", 8)


def _name(header: bytes) -> bytes:
    name = header[:100].split(b"\0", 1)[0]
    prefix = header[345:500].split(b"\0", 1)[0] if header[257:263] == _USTAR_MAGIC else b""
    return prefix + b"/" + name if prefix else name


def _extended(payload: Payload, content: bytes) -> tuple[bytes | None, int | None]:
    """Return the name and the size that an extended header sets for the next file, None for what it does not set.

    It is a list of `LENGTH KEY=VALUE` lines; the decimal length counts the whole line (pax(1)).
    """
    payload.budget.spend(len(content) // 4, "the headers of its files")
    name: bytes | None = None
    size: int | None = None
    start = 0
    while start < len(content):
        blank = content.find(b" ", start, start + _MAX_DIGITS + 1)
        length = content[start:blank] if blank > start else b""
        if not length.isdigit() or not blank < (end := start + int(length)) <= len(content):
            raise payload.damaged("an extended tar header is wrong")
        key, _, value = content[blank + 1 : end - 1].partition(b"=")
        if key == b"path":
            name = value
        elif key == b"size":
            if not value.isdigit() or len(value) > 20:
                raise payload.damaged("an extended tar header is wrong")
            size = int(value)
        start = end
    return name, size
