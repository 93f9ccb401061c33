# SPDX-License-Identifier: Apache-2.0
"""The bytes of a large file, read range by range when they are asked for; and files put together of such ranges.

Nothing is mapped: a file that somebody truncates gives an error, where a page that is gone would end the process.
Holes of a sparse file are neither copied nor compared, and counted when they are read: they are no input.
"""

from __future__ import annotations

import errno
import io
import os
from abc import abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.records import Buffer
from cfi2sframe.errors import ChangedError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from _typeshed import WriteableBuffer

    from cfi2sframe.budget import Budget
    from cfi2sframe.elf.records import FileData

    #: Where some bytes start and end.
    Range = tuple[int, int]

#: What is copied at once: larger blocks leave the processor's cache, smaller ones cost more calls.
_BLOCK_SIZE: Final = 1 << 18
#: Bytes of holes that are read for a step of the budget: what they are read for works on that many in a microsecond.
_HOLE_BYTES_PER_STEP: Final = 8


class LazyBytes:
    """Bytes that are read when they are asked for: `data[start:end]` is `bytes`, iteration gives all, in blocks.

    The size is known and stays. Whatever reads raises `ChangedError` when the file is shorter by now, and `InputError`
    when it cannot be read.
    """

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """How many bytes there are."""

    @abstractmethod
    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, which are there."""

    @abstractmethod
    def part(self, start: int, end: int) -> LazyBytes:
        """Return a part, of which nothing is read yet."""

    @abstractmethod
    def data_ranges(self) -> Iterator[Range]:
        """Yield, ascending, where there are stored bytes; elsewhere are holes, which read as zero."""

    def close(self) -> None:
        """Close the file, if there is one, without waiting for the last that refers to it."""

    def data_blocks(self) -> Iterator[tuple[int, Buffer]]:
        """Yield all bytes but those of holes, in blocks, each with the place where it starts."""
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
    """An open file, closed with the last that refers to it.

    `extents` are the ranges of a sparse file that are no holes; None stands for a file without holes. `budget` is the
    account of the input that the file is.
    """

    __slots__ = ("_descriptor", "_extents", "budget")

    def __init__(self, descriptor: int, budget: Budget, extents: Sequence[Range] | None = None) -> None:
        self._descriptor = descriptor
        self._extents = extents
        self.budget = budget

    def __del__(self) -> None:
        self.close()

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close it now; whatever reads from then on raises `InputError`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes. The position is the call's own, not the file's, which forked processes would share.

        Raises `BudgetError` when too many bytes of holes have been asked for.
        """
        if self._extents is not None:
            data_size = sum(last - first for first, last in self.data_ranges(start, start + size))
            self.budget.spend((size - data_size) // _HOLE_BYTES_PER_STEP, "the holes of the file")
        try:
            data = os.pread(self._descriptor, size, start)
            # One call gives 2 GiB at most.
            while len(data) < size:
                more = os.pread(self._descriptor, size - len(data), start + len(data))
                if not more:
                    raise ChangedError("the file was changed while it was being read")
                data += more
        except OSError as error:
            raise InputError(error.strerror or str(error)) from None
        return data

    def data_ranges(self, start: int, end: int) -> Iterator[Range]:
        """Yield the ranges between two places that are no holes."""
        extents = ((start, end),) if self._extents is None else self._extents
        for index in range(bisect_right(extents, start, key=lambda extent: extent[1]), len(extents)):
            first, last = extents[index]
            if first >= end:
                break
            yield max(first, start), min(last, end)


def extents_of(descriptor: int, size: int) -> list[Range]:
    """Return the ranges of a file's first `size` bytes that are no holes. Raises `OSError`.

    A file system that cannot tell has no holes.
    """
    found: list[Range] = []
    position = 0
    try:
        while position < size:
            start = os.lseek(descriptor, position, os.SEEK_DATA)
            position = os.lseek(descriptor, start, os.SEEK_HOLE)
            found.append((min(start, size), min(position, size)))
    except OSError as error:
        # ENXIO: nothing but a hole is left, or the file has just become shorter.
        if error.errno == errno.EINVAL:
            return [(0, size)]
        if error.errno != errno.ENXIO:
            raise
    return found


class FileBytes(LazyBytes):
    """A range of an open file."""

    __slots__ = ("_file", "_size", "_start")

    def __init__(self, file: OpenFile, start: int, size: int) -> None:
        self._file = file
        self._start = start
        self._size = size

    def __len__(self) -> int:
        return self._size

    def close(self) -> None:
        """Close the file, for all its ranges."""
        self._file.close()

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, counted in the range."""
        return self._file.read(self._start + start, size)

    @property
    def budget(self) -> Budget:
        """The account of the input that the file is."""
        return self._file.budget

    def data_ranges(self) -> Iterator[Range]:
        """Yield where there are no holes, counted in the range."""
        for start, end in self._file.data_ranges(self._start, self._start + self._size):
            yield start - self._start, end - self._start

    def part(self, start: int, end: int) -> FileBytes:
        """Return a range of the same file."""
        start, end, _ = slice(start, end).indices(self._size)
        return FileBytes(self._file, self._start + start, max(0, end - start))


class Joined(LazyBytes):
    """Buffers and lazy bytes one behind the other, without copying them together."""

    __slots__ = ("_ends", "_parts")

    def __init__(self, parts: Iterable[FileData]) -> None:
        self._parts = tuple(part for part in parts if len(part))
        self._ends = tuple(accumulate(map(len, self._parts)))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes from `start` on, copied together."""
        return b"".join(bytes(part[first:last]) for part, first, last in self._pieces(start, start + size))

    def part(self, start: int, end: int) -> Joined:
        """Return a range, made of as many parts as it needs."""
        start, end, _ = slice(start, end).indices(len(self))
        return Joined(part_of(part, first, last) for part, first, last in self._pieces(start, end))

    def data_ranges(self) -> Iterator[Range]:
        """Yield where there are no holes, part by part."""
        for part, part_end in zip(self._parts, self._ends, strict=True):
            begin = part_end - len(part)
            for start, end in data_ranges_of(part):
                yield begin + start, begin + end

    def __iter__(self) -> Iterator[Buffer]:
        for part in self._parts:
            if isinstance(part, Buffer):
                yield part
            else:
                yield from part

    def _pieces(self, start: int, end: int) -> Iterator[tuple[FileData, int, int]]:
        """Yield the parts that hold a range, and from where to where each does."""
        index = bisect_right(self._ends, start)
        while start < end:
            part, part_end = self._parts[index], self._ends[index]
            begin = part_end - len(part)
            yield part, start - begin, min(end, part_end) - begin
            start, index = part_end, index + 1


class _RawStream(io.RawIOBase):
    """A file's bytes, to be read from start to end or from anywhere."""

    def __init__(self, data: FileData) -> None:
        self._data = data
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        start = (0, self._position, len(self._data))[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer)
        chunk = self._data[self._position : self._position + len(into)]
        into[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)


def stream_of(data: FileData) -> io.BufferedReader:
    """Return a file's bytes as the binary file that others' readers ask for, without copying them."""
    return io.BufferedReader(_RawStream(data))


def part_of(data: FileData, start: int, end: int) -> FileData:
    """Return a part of a file's bytes without copying or reading it."""
    return memoryview(data)[start:end] if isinstance(data, Buffer) else data.part(start, end)


def data_ranges_of(data: FileData) -> Iterator[Range]:
    """Yield where a file's bytes are no holes; bytes in memory have none."""
    if not isinstance(data, Buffer):
        yield from data.data_ranges()
    elif len(data):
        yield 0, len(data)


def stored_steps(one: FileData, other: FileData) -> Iterator[Range]:
    """Yield, ascending, the ranges of two files of one size in which not both have a hole; of a block at most."""
    position = 0
    for first, end in sorted([*data_ranges_of(one), *data_ranges_of(other)]):
        for start in range(max(first, position), end, _BLOCK_SIZE):
            yield start, min(end, start + _BLOCK_SIZE)
        position = max(position, end)


def is_equal(one: FileData, other: FileData) -> bool:
    """Whether two files' bytes are the same; where both have a hole, nothing is read."""
    # Views compare byte by byte; copies as memory does.
    return len(one) == len(other) and all(
        bytes(one[start:end]) == bytes(other[start:end]) for start, end in stored_steps(one, other)
    )
