# SPDX-License-Identifier: Apache-2.0
"""The payload of a package, decompressed and counted block by block: no field in it decides how much is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from cfi2sframe.budget import BASE_MEMORY, MEMORY_PER_BYTE
from cfi2sframe.elf.contents import stream_of
from cfi2sframe.errors import ContainerError, InputError

if TYPE_CHECKING:
    from bz2 import BZ2Decompressor
    from collections.abc import Callable
    from lzma import LZMADecompressor
    from typing import IO

    from cfi2sframe.budget import Budget
    from cfi2sframe.elf.contents import FileData

#: How much is decompressed at once, and read at once (bytes).
_BLOCK_SIZE: Final = 1 << 16
_COMPRESSED_SIZE: Final = 1 << 14
#: Bytes that the slowest decompressor makes in a microsecond, where little input makes much output.
_BYTES_PER_STEP: Final = 32
#: The largest window (bytes) that `zstd` accepts by default.
_ZSTD_WINDOW_SIZE: Final = 1 << 27
_GZIP_MAGIC: Final = b"\x1f\x8b"
_BZIP2_MAGIC: Final = b"BZh"
#: xz, and the older lzma format as its encoders write it: lc=3, lp=0, pb=2, a dictionary of a multiple of 64 KiB.
_LZMA_MAGICS: Final = (b"\xfd7zXZ\0", b"\x5d\0\0")
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
#: The last three bytes of the magic numbers of skippable frames; parallel compressors write one first.
_ZSTD_SKIPPED_MAGIC: Final = b"\x2a\x4d\x18"


class Readable(Protocol):
    """A stream of bytes that can be read from start to end."""

    def read(self, size: int, /) -> bytes:
        """Return at most `size` bytes; an empty result only at the end."""


class Payload:
    """The bytes of a payload from start to end; `position` counts those that were read or skipped.

    `where` names the payload in messages. The first bytes identify the compression. Reading raises `ContainerError`
    when the payload is damaged or truncated, `BudgetError` when it grows out of proportion to the package.
    """

    def __init__(self, data: FileData, where: str, budget: Budget) -> None:
        self.where: Final = where
        self.budget: Final = budget
        self.position = 0
        self._errors = _codec_errors()
        self._stream = _decompressed(data, budget)
        self._block = b""
        self._used_size = 0

    def read(self, size: int) -> bytes:
        """Return the next `size` bytes."""
        if self._used_size + size <= len(self._block):
            data = self._block[self._used_size : self._used_size + size]
            self._used_size += size
            self.position += size
            return data
        return bytes(self.read_after(b"", size))

    def read_after(self, start: bytes, size: int) -> bytearray:
        """Return `start` and the next `size` bytes; memory is allocated only for bytes that are there."""
        data = bytearray(start)
        end = self.position + size
        while self.position < end:
            data += self._piece(end - self.position)
        return data

    def skip_to(self, position: int) -> None:
        """Skip to a position."""
        while self.position < position:
            self._piece(position - self.position)

    def damaged(self, reason: str) -> ContainerError:
        """Return the error to raise for this payload."""
        return ContainerError(f"damaged package: {reason}", self.where, self.position)

    def _piece(self, size: int) -> bytes:
        """Return the next bytes, at least one and at most `size`."""
        if self._used_size == len(self._block):
            self._block, self._used_size = self._next_block(), 0
            if not self._block:
                raise self.damaged("truncated")
        piece = self._block[self._used_size : self._used_size + size]
        self._used_size += len(piece)
        self.position += len(piece)
        return piece

    def _next_block(self) -> bytes:
        try:
            block = self._stream.read(_BLOCK_SIZE)
        except self._errors as error:
            raise self.damaged(str(error)) from None
        self.budget.spend(len(block) // _BYTES_PER_STEP + 1, "its contents, decompressed,")
        return block


class _Streams:
    """Concatenated compressed streams, as `bzip2` and `xz` read them; `LZMAFile` has no limit of memory."""

    def __init__(self, compressed: IO[bytes], decoder: Callable[[], BZ2Decompressor | LZMADecompressor]) -> None:
        self._compressed = compressed
        self._new_decoder = decoder
        self._decoder = decoder()

    def read(self, size: int) -> bytes:
        while True:
            data = b""
            if self._decoder.eof:
                # Streams of xz may be followed by zero padding.
                data = self._decoder.unused_data.lstrip(b"\0")
                while not data:
                    more = self._compressed.read(_COMPRESSED_SIZE)
                    if not more:
                        return b""
                    data = more.lstrip(b"\0")
                self._decoder = self._new_decoder()
            elif self._decoder.needs_input:
                data = self._compressed.read(_COMPRESSED_SIZE)
                if not data:
                    raise EOFError("truncated")
            block = self._decoder.decompress(data, size)
            if block:
                return block


def _decompressed(data: FileData, budget: Budget) -> Readable:
    start = bytes(data[:8])
    compressed = stream_of(data)
    if start.startswith(_GZIP_MAGIC):
        import gzip

        return gzip.GzipFile(fileobj=compressed)
    if start.startswith(_BZIP2_MAGIC):
        import bz2

        return _Streams(compressed, bz2.BZ2Decompressor)
    if start.startswith(_LZMA_MAGICS):
        import lzma

        limit = BASE_MEMORY + MEMORY_PER_BYTE * budget.input_size
        return _Streams(compressed, lambda: lzma.LZMADecompressor(memlimit=limit))
    if start.startswith(_ZSTD_MAGIC) or start[1:4] == _ZSTD_SKIPPED_MAGIC:
        return _zstd_reader(compressed)
    return compressed


def _zstd_reader(compressed: IO[bytes]) -> Readable:
    try:
        import zstandard
    except ImportError:
        raise InputError("compressed with zstd; pip install 'cfi2sframe[packages]' reads it") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_SIZE)
    reader: Readable = decompressor.stream_reader(compressed, read_across_frames=True)
    return reader


def _codec_errors() -> tuple[type[Exception], ...]:
    """Return the exceptions of the decompressors for damaged streams; reading the file raises `InputError`."""
    from lzma import LZMAError
    from zlib import error as zlib_error

    errors = (EOFError, OSError, LZMAError, zlib_error)
    try:
        from zstandard import ZstdError
    except ImportError:
        return errors
    return (*errors, ZstdError)
