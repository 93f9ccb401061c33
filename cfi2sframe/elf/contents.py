# SPDX-License-Identifier: Apache-2.0
"""The bytes of a large file, read range by range when they are asked for; and files put together of such ranges.

Nothing is mapped: a file that somebody truncates gives an error, where a page that is gone would end the process.
"""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf.records import Buffer
from cfi2sframe.errors import ChangedError, InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from _typeshed import WriteableBuffer

    from cfi2sframe.elf.records import FileData

#: What is copied at once: larger blocks leave the processor's cache, smaller ones cost more calls.
_BLOCK_SIZE: Final = 1 << 18


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

    def close(self) -> None:
        """Close the file, if there is one, without waiting for the last that refers to it."""

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
    """An open file, closed with the last that refers to it."""

    __slots__ = ("_descriptor",)

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __del__(self) -> None:
        self.close()

    def close(self, close: Callable[[int], None] = os.close) -> None:
        """Close it now; whatever reads from then on raises `InputError`."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def read(self, start: int, size: int) -> bytes:
        """Return `size` bytes. The position is the call's own, not the file's, which forked processes would share."""
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
