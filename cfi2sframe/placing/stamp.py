# SPDX-License-Identifier: Apache-2.0
"""The stamp of a rewritten file: a digest by which the next run knows it as unchanged, and the outcome to report then.

It stands right before the section headers, where no header describes anything, so files without these have none. It is
no proof: whoever forges one only keeps the file from being converted again.
"""

import struct
from typing import Final, NamedTuple

from cfi2sframe.elf.contents import FileData, LazyBytes, digest_of, overwrite, part_of, spliced
from cfi2sframe.elf.headers import FILE_HEADER_SIZE, parse_file_header

_MAGIC: Final = b"c2sstmp2"
_DIGEST_SIZE: Final = 32
#: After the text: the numbers of a `Stamp`, the digest, the size of all of this, the magic number.
_FIXED: Final = struct.Struct(f"<QQQQ{_DIGEST_SIZE}sQ8s")
#: From the end of the stamp to the start and the end of the digest.
_DIGEST_START, _DIGEST_END = _DIGEST_SIZE + 16, 16
#: More bytes than all warnings together need.
_MAX_SIZE: Final = 1 << 16


class Stamp(NamedTuple):
    """The outcome of a conversion: `section_size` in bytes, numbers of functions, and the warnings."""

    section_size: int
    described_count: int
    left_out_count: int
    in_part_count: int
    warnings: tuple[str, ...]

    def pack(self) -> bytes:
        """Return the bytes of the stamp, a multiple of eight, without its digest; empty where it would be too large."""
        text = "\0".join(self.warnings).encode("utf-8", "surrogateescape")
        text = text.rjust(-(-len(text) // 8) * 8, b"\0")
        size = len(text) + _FIXED.size
        fixed = _FIXED.pack(*self[:-1], bytes(_DIGEST_SIZE), size, _MAGIC)
        return text + fixed if size <= _MAX_SIZE else b""


def sealed(rewritten: LazyBytes, request: bytes) -> LazyBytes:
    """Return a rewritten file with the digest in its stamp: of `request` and of all other bytes."""
    end = _end_of(rewritten)
    if end is None:
        return rewritten
    return spliced(rewritten, [overwrite(end - _DIGEST_START, _digest(rewritten, end, request))])


def stamp_of(data: FileData, request: bytes) -> Stamp | None:
    """Return the stamp of a file that nobody has changed since the same `request`; None in any other case.

    Raises what reading the file raises.
    """
    end = _end_of(data)
    if end is None:
        return None
    section_size, described, left_out, in_part, digest, _, _ = _FIXED.unpack(data[end - _FIXED.size : end])
    size = stamp_size(data)
    if not size or digest != _digest(data, end, request):
        return None
    text = bytes(data[end - size : end - _FIXED.size]).decode("utf-8", "surrogateescape")
    warnings = tuple(text.lstrip("\0").split("\0")) if text else ()
    return Stamp(section_size, described, left_out, in_part, warnings)


def stamp_size(data: FileData) -> int:
    """Return the size (bytes) of what looks like a stamp, also of another file; 0 where there is none."""
    end = _end_of(data)
    if end is None:
        return 0
    *_, size, _ = _FIXED.unpack(data[end - _FIXED.size : end])
    return size if _FIXED.size <= size <= min(end, _MAX_SIZE) else 0


def _end_of(data: FileData) -> int | None:
    """Return the file offset of the stamp's end; None without a stamp."""
    end = parse_file_header(data).section_headers_offset
    is_inside = FILE_HEADER_SIZE + _FIXED.size <= end <= len(data)
    return end if is_inside and bytes(data[end - len(_MAGIC) : end]) == _MAGIC else None


def _digest(data: FileData, end: int, request: bytes) -> bytes:
    """Return the SHA-256 of the request and of all bytes of a file but its digest."""
    return digest_of(request, part_of(data, 0, end - _DIGEST_START), part_of(data, end - _DIGEST_END, len(data)))
