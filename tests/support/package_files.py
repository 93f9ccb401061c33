# SPDX-License-Identifier: Apache-2.0
"""Static archives and packages, put together by a few lines each."""

from __future__ import annotations

import io
import struct
import tarfile
import zlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_BLOCK_SIZE: Final = 512


def ar(members: Iterable[tuple[bytes, bytes]], magic: bytes = b"!<arch>\n") -> bytes:
    """Return an archive of members: raw names (up to 16 bytes) and contents."""
    parts = [magic]
    for name, data in members:
        parts.append(ar_header(name, len(data)))
        parts.append(data + b"\n" * (len(data) % 2))
    return b"".join(parts)


def ar_header(name: bytes, size: int) -> bytes:
    """Return the 60 bytes before a member."""
    return b"%-16s%-12s%-6s%-6s%-8s%-10d`\n" % (name, b"0", b"0", b"0", b"644", size)


def deb(data: bytes, suffix: str = "") -> bytes:
    """Return a Debian package with that `data.tar`."""
    return ar([(b"debian-binary", b"2.0\n"), (b"control.tar.xz", b""), (b"data.tar" + suffix.encode(), data)])


def tar(files: Mapping[str, bytes]) -> bytes:
    """Return a tar file of regular files, and of a symbolic link."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as made:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            made.addfile(entry, io.BytesIO(data))
        link = tarfile.TarInfo("./usr/lib/link.so")
        link.type, link.linkname = tarfile.SYMTYPE, "x.so"
        made.addfile(link)
    return out.getvalue()


def tar_header(name: bytes, size: int, kind: bytes = b"0", more: bytes = b"") -> bytes:
    """Return a header of 512 bytes, whatever it claims; `more` follows the link's name."""
    digits = b"%011o\0" % size if size < 1 << 33 else b"\x80" + size.to_bytes(11, "big")
    head = name.ljust(100, b"\0") + b"0000644\0" + b"0000000\0" * 2 + digits + b"%011o\0" % 0
    tail = kind + bytes(100) + more.ljust(255, b"\0")
    return head + b"%06o\0 " % sum(head + b" " * 8 + tail) + tail


def tar_padded(data: bytes) -> bytes:
    """Return contents as they follow a header."""
    return data + bytes(-len(data) % _BLOCK_SIZE)


def cpio_header(name: bytes, size: int, mode: int = 0o100644) -> bytes:
    """Return what precedes a file's content in a cpio archive."""
    raw = name + b"\0"
    fields = (0, mode, 0, 0, 1, 0, size, 0, 0, 0, 0, len(raw), 0)
    head = b"070701" + b"".join(b"%08x" % field for field in fields) + raw
    return head + bytes(-len(head) % 4)


def cpio(files: Mapping[str, bytes]) -> bytes:
    """Return a cpio archive of regular files."""
    parts = []
    for name, data in {**files, "TRAILER!!!": b""}.items():
        parts += [cpio_header(name.encode(), len(data)), data + bytes(-len(data) % 4)]
    return b"".join(parts)


def rpm_header(tags: Mapping[int, bytes]) -> bytes:
    """Return a header of an RPM package, of strings (type 6)."""
    index = b""
    store = b""
    for number, text in tags.items():
        index += struct.pack(">IIII", number, 6, len(store), 1)
        store += text + b"\0"
    return b"\x8e\xad\xe8\x01" + bytes(4) + struct.pack(">II", len(tags), len(store)) + index + store


def rpm(payload: bytes, header: bytes | None = None) -> bytes:
    """Return an RPM package with that payload."""
    lead = b"\xed\xab\xee\xdb\x03\x00" + bytes(90)
    signature = rpm_header({1000: b"s"})
    signature += bytes(-len(signature) % 8)
    return lead + signature + (rpm_header({1000: b"name", 1124: b"cpio"}) if header is None else header) + payload


def stored_gzip(data: bytes) -> bytes:
    """Return a gzip file that compresses nothing: its bytes do not depend on a library's version."""
    encoder = zlib.compressobj(0, wbits=-zlib.MAX_WBITS)
    body = encoder.compress(data) + encoder.flush()
    return b"\x1f\x8b\x08" + bytes(6) + b"\xff" + body + struct.pack("<II", zlib.crc32(data), len(data))


def stored_zstd(data: bytes, window_log: int = 17) -> bytes:
    """Return a zstd frame of raw blocks, with a window of 1 << window_log bytes."""
    size = 1 << 17
    pieces = [data[at : at + size] for at in range(0, len(data), size)] or [b""]
    blocks = [
        ((len(piece) << 3) | (number == len(pieces) - 1)).to_bytes(3, "little") + piece
        for number, piece in enumerate(pieces)
    ]
    return b"\x28\xb5\x2f\xfd\x00" + bytes([(window_log - 10) << 3]) + b"".join(blocks)
