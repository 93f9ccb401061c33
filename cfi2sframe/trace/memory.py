# SPDX-License-Identifier: Apache-2.0
"""Copied memory of a process: pieces of the address space with their bytes."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.contents import FileData


class MemoryPiece(NamedTuple):
    """`size` bytes of memory from `start`, kept in `data` from `offset` on."""

    start: int
    size: int
    data: FileData
    offset: int = 0

    @property
    def end(self) -> int:
        """The first address past the piece."""
        return self.start + self.size


class Memory:
    """Pieces by address. Where pieces overlap, the one that starts first is used."""

    def __init__(self, pieces: Iterable[MemoryPiece]) -> None:
        self.pieces: list[MemoryPiece] = []
        end = 0
        for piece in sorted(pieces, key=lambda p: p.start):
            cut = max(0, end - piece.start)
            if cut < piece.size:
                self.pieces.append(MemoryPiece(piece.start + cut, piece.size - cut, piece.data, piece.offset + cut))
                end = piece.end
        self._starts = [piece.start for piece in self.pieces]

    @classmethod
    def at(cls, address: int, data: FileData) -> Memory:
        """Return memory of one piece, such as the copy of a stack from SP upwards."""
        return cls([MemoryPiece(address, len(data), data)])

    def piece_at(self, address: int) -> MemoryPiece | None:
        """Return the piece that holds an address."""
        index = bisect_right(self._starts, address) - 1
        if index >= 0 and address < self.pieces[index].end:
            return self.pieces[index]
        return None

    def read(self, address: int, size: int) -> bytes | None:
        """Return exactly `size` bytes at an address, or None where some are missing; they may span pieces."""
        parts: list[bytes] = []
        missing = size
        while missing > 0:
            piece = self.piece_at(address)
            if piece is None:
                return None
            begin = piece.offset + address - piece.start
            end = min(begin + missing, piece.offset + piece.size)
            part = bytes(piece.data[begin:end])
            if len(part) != end - begin:
                return None
            parts.append(part)
            address += len(part)
            missing -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)
