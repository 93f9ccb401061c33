# SPDX-License-Identifier: Apache-2.0
"""The container of perf.data: its header, kinds of events and features, and its records one after the other.

Read after perf.data-file-format.txt and perf_event_open(2). A file begins with a header of 104 bytes, a pipe with one
of 16, followed by records that have what the header lacks. No more than a block of a file is in memory.
"""

import os
import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cfi2sframe.constants import perf as c
from cfi2sframe.elf.contents import FileData
from cfi2sframe.errors import InputError

_FILE_HEADER_SIZE: Final = 104
_PIPE_HEADER_SIZE: Final = 16
_BLOCK_SIZE: Final = 1 << 20
_RECORD_HEADER_SIZE: Final = 8
#: Up to and with sample_stack_user, the first field that not all versions of the record have.
_ATTR_SIZE: Final = 92
_SAMPLE_ID_ALL: Final = 18
_BUILD_ID_SIZE: Final = 20
_FEATURES: Final = (c.HEADER_ARCH, c.HEADER_OSRELEASE, c.HEADER_BUILD_ID, c.HEADER_EVENT_DESC)
#: The advice for users whose recording has no stacks.
NEEDED: Final = "record with: perf record --call-graph dwarf"
#: Bytes that are decompressed at a time: 4 of them may stand for 128 KiB.
_PIECE_SIZE: Final = 256


class PerfRecord:
    """A record without its header, or another part of a file (type 0). Fields are taken one after the other.

    `offset` counts from the start of the file, or of what a pipe gave.
    """

    def __init__(self, data: bytes, byte_order: str, kind: int = 0, misc: int = 0, offset: int = 0) -> None:
        self.body, self.byte_order, self.type, self.misc, self.offset = data, byte_order, kind, misc, offset
        self._at = 0

    def take(self, form: str, at: int | None = None) -> tuple[Any, ...]:
        """Unpack the next fields, or those at an offset. Raises `InputError` where the record is too short."""
        self._at, form = self._at if at is None else at, self.byte_order + form
        try:
            values = struct.unpack_from(form, self.body, self._at)
        except (struct.error, OverflowError):
            if self.type:
                raise InputError(f"a record of type {self.type} is too short", "records", self.offset) from None
            raise InputError("damaged, or cut", "header", self._at) from None
        self._at += struct.calcsize(form)
        return values

    def skip(self, size: int) -> None:
        """Leave out bytes."""
        self._at += size


class EventKind(NamedTuple):
    """The fields of struct perf_event_attr that decide the layout of an event's records.

    `registers` and `stack_size` are those of user space; `has_ids`: records other than samples end with TID, TIME, ...
    """

    sample_type: int
    read_format: int
    branch_type: int
    registers: int
    stack_size: int
    has_ids: bool


class PerfFile:
    """A recording. `kinds` has the kinds of its events by id, and by -1, -2, ...; `features` those of its header.

    Raises `InputError` when the data are none. One from a pipe gets its kinds and features as records are read.
    """

    def __init__(self, data: FileData) -> None:
        self.kinds: dict[int, EventKind] = {}
        self._kind_count = 0
        self.features: dict[int, bytes] = {}
        #: The build-ids of files by path.
        self.build_ids: dict[str, bytes] = {}
        #: True if the data end before the end that the header, or the last record, gives them.
        self.is_truncated = False
        self._data = data
        head = bytes(data[:_FILE_HEADER_SIZE])
        if head[:8] not in c.PERF_MAGICS:
            raise InputError("no recording of perf")
        self.byte_order = "<" if head[:8] == c.PERF_MAGICS[0] else ">"
        self._unpacker: Any = None
        self._unpacked = b""
        header = PerfRecord(head, self.byte_order)
        (size,) = header.take("8xQ")
        self._start, self._end = size, len(data)
        if size == _PIPE_HEADER_SIZE:
            return
        attr_size, attrs, attrs_size, self._start, data_size = header.take("5Q")
        # The section of event types is no longer written.
        flags = header.take("16x4Q")
        if size != _FILE_HEADER_SIZE or not attr_size:
            raise InputError("damaged, or cut", "header", 8)
        if not data_size:
            raise InputError("perf record was not ended properly: the header gives the records no size")
        self._end = min(self._start + data_size, len(data))
        self.is_truncated = self._start + data_size > len(data)
        listed = self._part(attrs, attrs_size)
        for at in range(0, attrs_size - attr_size + 1, attr_size):
            ids, ids_size = PerfRecord(listed, self.byte_order).take("QQ", at + attr_size - 16)
            self._add_kind(listed[at : at + attr_size - 16], self._part(ids, ids_size))
        self._read_features(flags, self._start + data_size)

    def text_of(self, feature: int) -> str:
        """Return a feature that is a string; empty without it."""
        # Its size comes first.
        return self.features.get(feature, b"")[4:].split(b"\0")[0].decode("utf-8", "replace")

    def _part(self, offset: int, size: int) -> bytes:
        """Return bytes of the file by what its header says. Raises `InputError`."""
        if offset + size > len(self._data):
            raise InputError(f"{size:,} bytes at 0x{offset:x} extend past the end", "header")
        return bytes(self._data[offset : offset + size])

    def _add_kind(self, attr: bytes, ids: bytes) -> None:
        if len(attr) < _ATTR_SIZE:
            raise InputError(f"an event of {len(attr)} bytes, without registers and stack of user space; {NEEDED}")
        fields = PerfRecord(attr, self.byte_order).take("24x3Q24xQQI")
        sample_type, read_format, flags, branch_type, registers, stack_size = fields
        # Bit fields start at the other end in the other byte order.
        bit = _SAMPLE_ID_ALL if self.byte_order == "<" else 63 - _SAMPLE_ID_ALL
        kind = EventKind(sample_type, read_format, branch_type, registers, stack_size, flags >> bit & 1 == 1)
        self._kind_count += 1
        self.kinds |= dict.fromkeys(
            (-self._kind_count, *PerfRecord(ids, self.byte_order).take(f"{len(ids) // 8}Q")), kind
        )

    def _read_features(self, flags: tuple[int, ...], offset: int) -> None:
        """Read the sections of features, whose table follows the records; those that were cut off are skipped."""
        numbers = [64 * index + bit for index, word in enumerate(flags) for bit in range(64) if word >> bit & 1]
        table = bytes(self._data[offset : offset + 16 * len(numbers)])
        places = struct.iter_unpack(self.byte_order + "QQ", table[: len(table) // 16 * 16])
        for number, (at, size) in zip(numbers, places, strict=False):
            if number in _FEATURES and at + size <= len(self._data):
                self._add_feature(number, self._part(at, size))
            self.is_truncated |= at + size > len(self._data)
        self.is_truncated |= len(table) < 16 * len(numbers)

    def _add_feature(self, number: int, data: bytes) -> None:
        self.features[number] = data
        if number == c.HEADER_BUILD_ID:
            records, _ = self._whole(data, 0)
            for record in records:
                self._add_build_id(record)

    def _add_build_id(self, record: PerfRecord) -> None:
        """Read struct build_id_event: process, build-id, its size where that is not 20, path."""
        build_id = record.body[4 : 4 + _BUILD_ID_SIZE]
        if record.misc & c.PERF_RECORD_MISC_BUILD_ID_SIZE:
            build_id = build_id[: record.take("B", 4 + _BUILD_ID_SIZE)[0]]
        self.build_ids[os.fsdecode(record.body[28:].split(b"\0")[0])] = build_id

    def _whole(self, data: bytes, offset: int) -> tuple[list[PerfRecord], int]:
        """Return the whole records at the start of bytes that are at an offset, and their size. Raises `InputError`."""
        records: list[PerfRecord] = []
        at = 0
        unpack = struct.Struct(self.byte_order + "IHH").unpack_from
        while at + _RECORD_HEADER_SIZE <= len(data):
            kind, misc, size = unpack(data, at)
            if size < _RECORD_HEADER_SIZE:
                raise InputError(f"a record of {size} bytes", "records", offset + at)
            if at + size > len(data):
                break
            body = data[at + _RECORD_HEADER_SIZE : at + size]
            records.append(PerfRecord(body, self.byte_order, kind, misc, offset + at))
            at += size
            if kind == c.PERF_RECORD_AUXTRACE:
                # Bytes that are no records follow.
                at += records[-1].take("Q")[0]
        return records, at

    def records(self) -> Iterator[PerfRecord]:
        """Yield the records that are not the container's, in the file's order. Raises `InputError`."""
        at = self._start
        while at < self._end:
            block = bytes(self._data[at : min(at + _BLOCK_SIZE, self._end)])
            records, size = self._whole(block, at)
            for record in records:
                yield from self._record(record)
            if not size:
                self.is_truncated = True
                return
            at += size

    def _record(self, record: PerfRecord) -> Iterator[PerfRecord]:
        kind, body = record.type, record.body
        if kind == c.PERF_RECORD_HEADER_ATTR:
            # The record has as many bytes as its second word says; ids follow.
            (size,) = record.take("I", 4)
            self._add_kind(body[:size], body[size:])
        elif kind == c.PERF_RECORD_HEADER_FEATURE:
            self._add_feature(record.take("Q")[0], body[8:])
        elif kind == c.PERF_RECORD_HEADER_BUILD_ID:
            self._add_build_id(record)
        elif kind == c.PERF_RECORD_COMPRESSED:
            yield from self._decompressed(record.offset, body)
        elif kind == c.PERF_RECORD_COMPRESSED2:
            yield from self._decompressed(record.offset, body[8 : 8 + record.take("Q")[0]])
        else:
            yield record

    def _decompressed(self, offset: int, packed: bytes) -> Iterator[PerfRecord]:
        """Yield the records in a piece of the compressed stream, which may end within one. Raises `InputError`."""
        try:
            import zstandard
        except ImportError:
            raise InputError("compressed; the package zstandard is needed to read it") from None
        for at in range(0, len(packed), _PIECE_SIZE):
            piece = packed[at : at + _PIECE_SIZE]
            try:
                while piece:
                    if self._unpacker is None or self._unpacker.eof:
                        self._unpacker = zstandard.ZstdDecompressor().decompressobj()
                    self._unpacked += self._unpacker.decompress(piece)
                    piece = self._unpacker.unused_data
            except zstandard.ZstdError as error:
                raise InputError(f"cannot be decompressed: {error}", "records", offset) from None
            records, size = self._whole(self._unpacked, offset)
            self._unpacked = self._unpacked[size:]
            yield from records
