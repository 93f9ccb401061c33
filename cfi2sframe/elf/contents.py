# SPDX-License-Identifier: Apache-2.0
"""The bytes of large files: read on demand, joined and edited without copying, and compared.

Files are not mapped into memory. A read of a file that somebody has truncated raises an exception; a mapping would send
SIGBUS, which a handler in Python cannot answer: it would return to the same access.
"""

import os
from abc import abstractmethod
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from cfi2sframe.elf.headers import Buffer
from cfi2sframe.errors import ChangedError, EmbedError, InputError
from cfi2sframe.range_map import Span

#: Bytes copied at once: larger blocks leave the processor's cache, smaller ones need more calls.
_BLOCK_SIZE: Final = 1 << 18


class LazyBytes:
    """Bytes that are read on demand: `data[start:end]` returns `bytes`, iteration yields all of them, in blocks.

    The size is fixed. Reading raises `ChangedError` when the file was truncated, `InputError` when the system fails to
    read it.
    """

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """The number of bytes."""

    @abstractmethod
    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, which are within the size."""

    @abstractmethod
    def part(self, start: int, end: int) -> "LazyBytes":
        """Return the bytes from `start` to `end` without reading them."""

    def close(self) -> None:
        """Close the underlying file now, if there is one."""

    def __getitem__(self, wanted: slice) -> bytes:
        start, end, _ = wanted.indices(len(self))
        return self.read(start, end) if start < end else b""

    def __bytes__(self) -> bytes:
        return self.read(0, len(self))

    def __iter__(self) -> Iterator[bytes]:
        for start in range(0, len(self), _BLOCK_SIZE):
            yield self[start : start + _BLOCK_SIZE]


#: A file's bytes, in memory or read range by range: both have a length, and give bytes for a slice.
FileData = Buffer | LazyBytes


class OpenFile:
    """An open file, closed with the last reference to it."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the file now; reading from then on raises `InputError`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`. Does not use the file's position, which forked processes share."""
        data = b""
        try:
            # One call returns at most 2 GiB.
            while len(data) < end - start:
                more = os.pread(self._descriptor, end - start - len(data), start + len(data))
                if not more:
                    raise ChangedError("the file was changed while it was being read")
                data = data + more if data else more
        except OSError as error:
            raise InputError(error.strerror or str(error)) from None
        return data


class FileBytes(LazyBytes):
    """An open file, or a part of it. `stored_size` are the bytes of the file that are not in holes."""

    __slots__ = ("_file", "_size", "_start", "stored_size")

    def __init__(self, file: OpenFile, start: int, size: int, stored_size: int) -> None:
        self._file = file
        self._start = start
        self._size = size
        self.stored_size = stored_size

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Close the file, for all of its parts."""
        self._file.close()

    def read(self, start: int, end: int) -> bytes:
        """Return bytes by their offsets in this part."""
        return self._file.read(self._start + start, self._start + end)

    def part(self, start: int, end: int) -> "FileBytes":
        """Return a part of the same file."""
        start, end, _ = slice(start, end).indices(self._size)
        return FileBytes(self._file, self._start + start, max(0, end - start), self.stored_size)


class Joined(LazyBytes):
    """Buffers and lazy bytes one after the other; nothing is copied."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Iterable[FileData]) -> None:
        self._parts = tuple(part for part in parts if len(part))
        self._ends = tuple(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes from `start` to `end`, joined."""
        return b"".join(bytes(part[first:last]) for part, first, last in self._pieces(start, end))

    def part(self, start: int, end: int) -> "Joined":
        """Return the bytes from `start` to `end`, as the parts that hold them."""
        start, end, _ = slice(start, end).indices(len(self))
        return Joined(part_of(part, first, last) for part, first, last in self._pieces(start, end))

    def _pieces(self, start: int, end: int) -> Iterator[tuple[FileData, int, int]]:
        """Yield the parts that hold a range, each with the start and end of the range in it."""
        index = bisect_right(self._ends, start)
        while start < end:
            part, part_end = self._parts[index], self._ends[index]
            begin = part_end - len(part)
            yield part, start - begin, min(end, part_end) - begin
            start, index = part_end, index + 1


def part_of(data: FileData, start: int, end: int) -> FileData:
    """Return the bytes from `start` to `end` without copying or reading them."""
    return memoryview(data)[start:end] if isinstance(data, Buffer) else data.part(start, end)


class Splice(NamedTuple):
    """At `file_offset`, `content` replaces `removed_size` bytes."""

    file_offset: int
    removed_size: int
    content: bytes

    @property
    def span(self) -> Span:
        """The file offsets of the bytes that are replaced."""
        return Span(self.file_offset, self.file_offset + self.removed_size)


def overwrite(file_offset: int, content: bytes) -> Splice:
    """Return the splice that replaces bytes by as many bytes."""
    return Splice(file_offset, len(content), content)


def spliced(data: FileData, splices: Iterable[Splice]) -> Joined:
    """Return an edited copy of a file, without copying the bytes that stay.

    What is inserted at an offset comes before the byte that was there, whether or not that one is replaced. Raises
    `EmbedError` when two splices replace the same bytes, which a consistent plan never does.
    """
    ordered = sorted(splices, key=lambda splice: (splice.file_offset, splice.removed_size > 0))
    for before, after in pairwise(ordered):
        if before.span.end > after.file_offset:
            raise EmbedError(f"two changes overlap at file offset 0x{after.file_offset:x}")
    chunks: list[FileData] = []
    position = 0
    for splice in ordered:
        chunks += [part_of(data, position, splice.file_offset), splice.content]
        position = splice.span.end
    return Joined([*chunks, part_of(data, position, len(data))])


def is_equal(one: FileData, other: FileData) -> bool:
    """Return whether the bytes of two files are equal."""
    return len(one) == len(other) and have_same(one, other, Span(0, len(one)))


def have_same(first: FileData, second: FileData, span: Span, second_start: int | None = None) -> bool:
    """Return whether two files have the same bytes in a span; `second_start` is its start in the second, if different.

    Spans past a file's end differ.
    """
    distance = 0 if second_start is None else second_start - span.start
    if span.end > len(first) or span.end + distance > len(second):
        return False
    blocks = ((at, min(at + _BLOCK_SIZE, span.end)) for at in range(*span, _BLOCK_SIZE))
    # bytes compare by memcmp, memoryviews element by element; small slices keep the copies in the cache.
    return all(bytes(first[at:end]) == bytes(second[at + distance : end + distance]) for at, end in blocks)


def is_zero(data: FileData, span: Span) -> bool:
    """Return whether a span has no byte but zeros."""
    blocks = (bytes(data[at : min(at + _BLOCK_SIZE, span.end)]) for at in range(*span, _BLOCK_SIZE))
    return not any(block.strip(b"\0") for block in blocks)


def digest_of(*parts: FileData) -> bytes:
    """Return the SHA-256 of some bytes, one part after the other."""
    # This loads OpenSSL, which takes 2.3 ms; a raw section needs no digest.
    from hashlib import sha256

    digest = sha256()
    for part in parts:
        for block in part if isinstance(part, LazyBytes) else (part,):
            digest.update(block)
    return digest.digest()
