# SPDX-License-Identifier: Apache-2.0
"""The record that a rewritten file keeps of its original. It does not depend on how a section gets its place.

The record ends the file. It restores the original in three steps, which a later release can do however it inserts
sections:

1. `pieces` of the rewritten file, and zeros, one after the other;
2. the symbols in `tables` get back the section indices that they had;
3. `patches`.

The digest of the bytes that the patches replace shows whether they fit; the other digest shows whether the result is
the original.
"""

import re
import struct
from collections.abc import Iterable, Sequence
from enum import Enum
from itertools import accumulate, pairwise
from typing import Final, NamedTuple

from cfi2sframe.elf.contents import FileData, Joined, LazyBytes, Splice, digest_of, overwrite, part_of, spliced
from cfi2sframe.elf.headers import SYMBOL_SIZE, ByteOrder, parse_file_header
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.range_map import Span

_MAGIC: Final = b"c2sfrec1"
#: The end of the record, after the parts of variable size: the sizes of both files, the digests, the parts' numbers of
#: items, the size of the record, and the magic number.
_FIXED: Final = struct.Struct("<QQ32s32sIIIIQ8s")
_PAIR: Final = struct.Struct("<QQ")
#: The `start` of a piece of zeros.
NOWHERE: Final = (1 << 64) - 1
_FORMS: Final = re.compile(rb"c2sfrec.\0*\Z", re.DOTALL)
_BLOCK_SIZE: Final = 1 << 20
#: The note of a removal that does not give the original.
CHANGED_SINCE: Final = "the file was changed after the conversion; the changes are kept"
#: Bytes that differ, with gaps of up to 15 that do not: one more patch would take more.
_DIFFERENT: Final = re.compile(rb"[^\0](?:.{0,15}[^\0])*", re.DOTALL)


class Extract(NamedTuple):
    """`size` bytes from the file offset `start` of the rewritten file on, or zeros where that is `NOWHERE`."""

    start: int
    size: int


class UndoRecord(NamedTuple):
    """The way back to an original of `original_size` bytes from a file of `rewritten_size` bytes, itself not counted.

    `tables` are the places of symbol tables in the original. Section `n` of the rewritten file is section `indices[n]`
    of the original; where `indices` is empty, each has the index that it had.
    """

    rewritten_size: int
    original_size: int
    original_digest: bytes
    replaced_digest: bytes
    pieces: tuple[Extract, ...]
    tables: tuple[Span, ...]
    indices: tuple[int, ...]
    patches: tuple[Splice, ...]

    def pack(self) -> bytes:
        """Return the bytes of the record; all numbers are little-endian."""
        pairs = [*self.pieces, *self.tables, *((patch.file_offset, patch.removed_size) for patch in self.patches)]
        parts = [_PAIR.pack(*pair) for pair in pairs]
        parts.append(struct.pack(f"<{len(self.indices)}I", *self.indices))
        body = b"".join([*parts, *(patch.content for patch in self.patches)])
        counts = (len(self.pieces), len(self.tables), len(self.patches), len(self.indices))
        sizes, digests = (self.rewritten_size, self.original_size), (self.original_digest, self.replaced_digest)
        return body + _FIXED.pack(*sizes, *digests, *counts, len(body) + _FIXED.size, _MAGIC)


class Original(NamedTuple):
    """A file as its record restores it, and the digest that it should have."""

    content: Joined
    digest: bytes

    @property
    def is_exact(self) -> bool:
        """True if these are the original's bytes; False if bytes that no patch replaces have been changed."""
        return digest_of(self.content) == self.digest

    def removal(self) -> "Removal":
        """Return the original as the outcome of a removal."""
        return Removal(self.content, "" if self.is_exact else CHANGED_SINCE)


class NoOriginal(Enum):
    """The reason why a file has no original: there is no record, or it cannot be used."""

    NO_RECORD = "the file has no record of its conversion"
    OTHER_FORM = "the record of the conversion has a form that this release does not know"
    OTHER_FILE = "the file was changed after the conversion, and its record no longer fits"
    NOT_EQUAL = "the record of the conversion describes another file"


class Removal(NamedTuple):
    """A file without its section. `lost` says what could not be restored; it is empty for the original's bytes.

    `is_cleared`: no record restored it, and the bytes of what headers call an SFrame section are zeros now.
    """

    content: LazyBytes
    lost: str = ""
    is_cleared: bool = False


# Restoring


def record_span(data: FileData, start: int | None = None) -> Span | None:
    """Return the file offsets of a file's record, after which there may be zeros. It may be for another file.

    None without one. With `start`, anything may follow a record that is after this offset.
    """
    end = len(data)
    while end:
        block = bytes(data[max(end - _BLOCK_SIZE, 0) : end]).rstrip(b"\0")
        if block:
            end = max(end - _BLOCK_SIZE, 0) + len(block)
            break
        end = max(end - _BLOCK_SIZE, 0)
    span = _record_before(data, end)
    if span is not None or start is None:
        return span
    for at in range(start, end, _BLOCK_SIZE):
        block = bytes(data[at : at + _BLOCK_SIZE + len(_MAGIC) - 1])
        for match in re.finditer(re.escape(_MAGIC), block):
            span = _record_before(data, at + match.end())
            if span is not None and span.start >= start:
                return span
    return None


def _record_before(data: FileData, end: int) -> Span | None:
    """Return the record that ends at a file offset."""
    if end < _FIXED.size:
        return None
    *_, size, magic = _FIXED.unpack(bytes(data[end - _FIXED.size : end]))
    if magic != _MAGIC or not _FIXED.size <= size <= end or _unpacked(bytes(data[end - size : end])) is None:
        return None
    return Span(end - size, end)


def original_of(data: FileData) -> Original | NoOriginal:
    """Return the original of a rewritten file, or why there is none; zeros after the record follow it.

    The record is no proof: callers have to compare the original with the file.
    """
    span = record_span(data)
    if span is None:
        is_other = _FORMS.search(bytes(data[max(len(data) - _BLOCK_SIZE, 0) : len(data)]))
        return NoOriginal.OTHER_FORM if is_other else NoOriginal.NO_RECORD
    record = _unpacked(bytes(data[span.start : span.end]))
    if record is None or not _is_for(record, span.start):
        return NoOriginal.OTHER_FILE
    try:
        order = parse_file_header(data).byte_order
        body = _unpatched(data, order, record)
        if _replaced_digest(body, record.patches) != record.replaced_digest:
            return NoOriginal.OTHER_FILE
        content = spliced(body, record.patches)
    except (ElfError, EmbedError):
        # It is no ELF file any more, or parts of the record overlap.
        return NoOriginal.OTHER_FILE
    return Original(Joined([content, part_of(data, span.end, len(data))]), record.original_digest)


def _unpacked(data: bytes) -> UndoRecord | None:
    """Parse a record; None where its numbers of items do not fit its size."""
    new_size, size, digest, replaced_digest, pieces, tables, patches, indices, _, _ = _FIXED.unpack(
        data[-_FIXED.size :]
    )
    pairs_end = _PAIR.size * (pieces + tables + patches)
    contents_start = pairs_end + 4 * indices
    if contents_start > len(data) - _FIXED.size:
        return None
    pairs = list(_PAIR.iter_unpack(data[:pairs_end]))
    places = pairs[pieces + tables :]
    ends = list(accumulate((length for _, length in places), initial=contents_start))
    if ends[-1] != len(data) - _FIXED.size:
        return None
    contents = (data[start:end] for start, end in pairwise(ends))
    return UndoRecord(
        new_size,
        size,
        digest,
        replaced_digest,
        tuple([Extract(*pair) for pair in pairs[:pieces]]),
        tuple([Span(*pair) for pair in pairs[pieces : pieces + tables]]),
        struct.unpack_from(f"<{indices}I", data, pairs_end),
        tuple([overwrite(start, content) for (start, _), content in zip(places, contents, strict=True)]),
    )


def _is_for(record: UndoRecord, size: int) -> bool:
    """Return whether a record is for a file of this size, with its parts inside, and no more zeros than the file."""
    end = record.original_size
    return (
        record.rewritten_size == size
        and 2 * size >= end == sum(piece.size for piece in record.pieces)
        and all(piece.start == NOWHERE or piece.start + piece.size <= size for piece in record.pieces)
        and all(first <= last <= end for first, last in (*record.tables, *(patch.span for patch in record.patches)))
        and sum(last - first for first, last in record.tables) <= end
    )


def _unpatched(data: FileData, order: ByteOrder, record: UndoRecord) -> Joined:
    """Return a rewritten file after the first two steps. Raises `EmbedError` where tables overlap."""
    body = Joined(
        bytes(size) if start == NOWHERE else part_of(data, start, start + size) for start, size in record.pieces
    )
    symbols = [(start, body[start:end]) for start, end in record.tables if record.indices]
    return spliced(body, [overwrite(start, _renumbered(table, order, record.indices)) for start, table in symbols])


def _renumbered(symbols: bytes, order: ByteOrder, indices: Sequence[int]) -> bytes:
    """Return a symbol table with other section indices."""
    content = bytearray(symbols)
    field = struct.Struct(order + "H")
    for at in range(6, len(content) - SYMBOL_SIZE + 7, SYMBOL_SIZE):
        (index,) = field.unpack_from(content, at)
        if index < len(indices):
            field.pack_into(content, at, indices[index] & 0xFFFF)
    return bytes(content)


def _replaced_digest(body: Joined, patches: Iterable[Splice]) -> bytes:
    return digest_of(*(body[patch.span.start : patch.span.end] for patch in patches))


# Recording


class Kept(NamedTuple):
    """`size` bytes at `file_offset` of the original, which are at `new_offset` of the rewritten file, or nearly so."""

    file_offset: int
    size: int
    new_offset: int


def with_record(
    original: FileData,
    rewritten: FileData,
    sources: Sequence[Kept],
    whole: Sequence[Span],
    changed: Iterable[Span],
    tables: Sequence[Span] = (),
    numbering: Sequence[int] = (),
) -> Joined:
    """Return a rewritten file with its record at the end.

    Of several `sources` for a byte, the last counts. Only in the spans `whole` and `changed` of the original may bytes
    differ from their sources; of the first all bytes are recorded, of the others those that differ. The symbols in
    `tables` of the original had other section indices: `numbering` has the new one for each old one.
    """
    indices = [0] * (max(numbering) + 1) if tables else []
    for old, new in enumerate(numbering if tables else ()):
        indices[new] = old
    pieces = tuple(_pieces(sources, len(original)))
    sizes, digest = (len(rewritten), len(original)), digest_of(original)
    record = UndoRecord(*sizes, digest, b"", pieces, tuple(tables), tuple(indices), ())
    body = _unpatched(rewritten, parse_file_header(original).byte_order, record)
    patches = [overwrite(start, bytes(original[start:end])) for start, end in whole]
    for start, end in changed:
        wanted = bytes(original[start:end])
        difference = int.from_bytes(wanted, "little") ^ int.from_bytes(body[start:end], "little")
        patches += [
            overwrite(start + match.start(), wanted[match.start() : match.end()])
            for match in _DIFFERENT.finditer(difference.to_bytes(len(wanted), "little"))
        ]
    record = record._replace(patches=tuple(patches), replaced_digest=_replaced_digest(body, patches))
    return Joined([rewritten, record.pack()])


def _pieces(sources: Sequence[Kept], size: int) -> list[Extract]:
    """Return the pieces that sources give an original of `size` bytes; zeros where there is no source."""
    edges = {0, size, *(edge for start, count, _ in sources for edge in (start, start + count))}
    pieces: list[Extract] = []
    for start, end in pairwise(sorted(edges)):
        holder = next((s for s in reversed(sources) if s.file_offset <= start < s.file_offset + s.size), None)
        piece = Extract(NOWHERE if holder is None else holder.new_offset + start - holder.file_offset, end - start)
        last = pieces[-1] if pieces else None
        if last is not None and last.start != NOWHERE and piece.start == last.start + last.size:
            pieces[-1] = last._replace(size=last.size + piece.size)
        else:
            pieces.append(piece)
    return pieces
