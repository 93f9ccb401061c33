# SPDX-License-Identifier: Apache-2.0
"""The bytes of large files: read on demand, joined without copying, and compared.

Files are not mapped into memory: reading a truncated file raises an exception, where a mapping would raise SIGBUS.
Holes of a sparse file are neither copied nor compared, because the size of the input does not include them.
"""

from __future__ import annotations

import errno
import os
from abc import abstractmethod
from bisect import bisect_right
from itertools import accumulate, groupby, zip_longest
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import ChangedError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import TypeAlias

    #: A file's bytes, in memory or read range by range: both have a length, and give bytes for a slice.
    FileData: TypeAlias = "Buffer | LazyBytes"

#: Bytes copied at once: larger blocks leave the processor's cache, smaller ones need more calls.
_BLOCK_SIZE: Final = 1 << 18
#: In two blocks that differ, equal parts are skipped in steps of this size.
_SMALL_STEP: Final = 1 << 12


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
    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on; the caller must keep within the size."""

    @abstractmethod
    def part(self, start: int, end: int) -> LazyBytes:
        """Return the bytes from `start` to `end` without reading them."""

    @abstractmethod
    def data_ranges(self) -> Iterator[Span]:
        """Yield, ascending, the spans of stored bytes; the rest are holes, which read as zeros."""

    def close(self) -> None:
        """Close the underlying file now, if there is one."""

    def data_blocks(self) -> Iterator[tuple[int, Buffer]]:
        """Yield all bytes except those of holes, in blocks, each with its offset."""
        for start, end in self.data_ranges():
            position = start
            for block in self.part(start, end):
                yield position, block
                position += len(block)

    def __getitem__(self, wanted: slice) -> bytes:
        start, end, step = wanted.indices(len(self))
        if step != 1:
            raise ValueError("a range has no step")
        return self.read(start, end - start) if start < end else b""

    def __bytes__(self) -> bytes:
        return self.read(0, len(self))

    def __iter__(self) -> Iterator[Buffer]:
        size = len(self)
        for start in range(0, size, _BLOCK_SIZE):
            yield self.read(start, min(_BLOCK_SIZE, size - start))


class OpenFile:
    """An open file, closed with the last reference to it.

    `extents` are the spans of a sparse file that are no holes; None: the file has no holes.
    """

    __slots__ = ("_descriptor", "_extents")

    def __init__(self, descriptor: int, extents: Sequence[Span] | None = None) -> None:
        self._descriptor = descriptor
        self._extents = extents

    def __del__(self) -> None:
        self.close()

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close the file now; reading from then on raises `InputError`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes. Does not use the file's position, which forked processes share."""
        try:
            data = os.pread(self._descriptor, size, start)
            # One call returns at most 2 GiB.
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), start + len(data))
                if not more:
                    raise ChangedError("the file was changed while it was being read")
                data += more
        except OSError as error:
            raise InputError(error.strerror or str(error)) from None
        return data

    def data_ranges(self, start: int, end: int) -> Iterator[Span]:
        """Yield the spans between two offsets that are no holes."""
        extents = (Span(start, end),) if self._extents is None else self._extents
        for index in range(bisect_right(extents, start, key=lambda extent: extent.end), len(extents)):
            first, last = extents[index]
            if first >= end:
                break
            yield Span(max(first, start), min(last, end))


def extents_of(descriptor: int, size: int) -> list[Span]:
    """Return the spans of a file's first `size` bytes that are no holes. Raises `OSError`.

    On a file system that does not support SEEK_DATA, the whole file is one span.
    """
    found: list[Span] = []
    position = 0
    try:
        while position < size:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            found.append(Span(min(start, size), min(position, size)))
    except OSError as error:
        # ENXIO: only a hole is left, or the file has just been truncated.
        if error.errno == errno.EINVAL:
            return [Span(0, size)]
        if error.errno != errno.ENXIO:
            raise
    return found


class FileBytes(LazyBytes):
    """A part of an open file."""

    __slots__ = ("_file", "_size", "_start")

    def __init__(self, file: OpenFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Close the file, for all of its parts."""
        self._file.close()

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, an offset in this part."""
        return self._file.read(self._start + start, size)

    def data_ranges(self) -> Iterator[Span]:
        """Yield the spans that are no holes, as offsets in this part."""
        for start, end in self._file.data_ranges(self._start, self._start + self._size):
            yield Span(start - self._start, end - self._start)

    def part(self, start: int, end: int) -> FileBytes:
        """Return a part of the same file."""
        start, end, _ = slice(start, end).indices(self._size)
        return FileBytes(self._file, self._start + start, max(0, end - start))


class Joined(LazyBytes):
    """Buffers and lazy bytes one after the other; nothing is copied."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Iterable[FileData]) -> None:
        self._parts = tuple(part for part in parts if len(part))
        self._ends = tuple(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, joined."""
        return b"".join(bytes(part[first:last]) for part, first, last in self._pieces(start, start + size))

    def part(self, start: int, end: int) -> Joined:
        """Return the bytes from `start` to `end`, as the parts that hold them."""
        start, end, _ = slice(start, end).indices(len(self))
        return Joined(part_of(part, first, last) for part, first, last in self._pieces(start, end))

    def data_ranges(self) -> Iterator[Span]:
        """Yield the spans that are no holes, part by part."""
        for part, part_end in zip(self._parts, self._ends, strict=True):
            begin = part_end - len(part)
            for start, end in data_ranges_of(part):
                yield Span(begin + start, begin + end)

    def __iter__(self) -> Iterator[Buffer]:
        for part in self._parts:
            if isinstance(part, Buffer):
                yield part
            else:
                yield from part

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


def data_ranges_of(data: FileData) -> Iterator[Span]:
    """Yield the spans of a file's bytes that are no holes; bytes in memory have none."""
    if not isinstance(data, Buffer):
        yield from data.data_ranges()
    elif len(data):
        yield Span(0, len(data))


def stored_steps(one: FileData, other: FileData) -> Iterator[Span]:
    """Yield, ascending, the spans in which at least one of two files of one size has no hole, in blocks."""
    position = 0
    for first, end in sorted([*data_ranges_of(one), *data_ranges_of(other)]):
        for start in range(max(first, position), end, _BLOCK_SIZE):
            yield Span(start, min(end, start + _BLOCK_SIZE))
        position = max(position, end)


def is_equal(one: FileData, other: FileData) -> bool:
    """Whether the bytes of two files are equal; where both have a hole, nothing is read."""
    # Views compare byte by byte; copies as memory does.
    return len(one) == len(other) and all(
        bytes(one[start:end]) == bytes(other[start:end]) for start, end in stored_steps(one, other)
    )


def first_difference(first: FileData, second: FileData, span: Span, second_start: int | None = None) -> int | None:
    """Return where the first block starts in which a span of two files differs; None when the span is equal.

    In the second file the span starts at `second_start`; None: at the same offset. Spans past a file's end differ.
    """
    start, end = span
    distance = 0 if second_start is None else second_start - start
    if end > len(first) or end + distance > len(second):
        return start
    one, other = part_of(first, start, end), part_of(second, start + distance, end + distance)
    # bytes compare by memcmp, memoryviews element by element; small slices keep the copies in the cache.
    for at, after in stored_steps(one, other):
        if bytes(one[at:after]) != bytes(other[at:after]):
            return start + at
    return None


def differences(first: FileData, second: FileData, span: Span) -> Iterator[Span]:
    """Yield the runs of bytes of a span that differ between two files."""
    position, end = span
    while (at := first_difference(first, second, Span(position, end))) is not None:
        position = min(at + _BLOCK_SIZE, end)
        for start in range(at, position, _SMALL_STEP):
            stop = min(start + _SMALL_STEP, position)
            one, other = bytes(first[start:stop]), bytes(second[start:stop])
            if one != other:
                pairs = zip_longest(one, other)
                for differs, run in groupby(enumerate(pairs, start), key=lambda item: item[1][0] != item[1][1]):
                    if differs:
                        places = [number for number, _ in run]
                        yield Span(places[0], places[-1] + 1)


def is_zero(data: FileData, span: Span) -> bool:
    """Whether a span has no byte but zeros."""
    return not any(bytes(block).strip(b"\0") for _, block in Joined([part_of(data, *span)]).data_blocks())
