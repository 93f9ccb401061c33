# SPDX-License-Identifier: Apache-2.0
"""SFrame sections put together field by field, right ones and wrong ones, without the package's encoder."""

import struct
from typing import Literal, NamedTuple

RECORD_SIZES = {1: 17, 2: 20, 3: 16}


class RawFunction(NamedTuple):
    """A function as stored. `rows` are bytes; the defaults are one row: CFA = SP + 8 on AMD64.

    `start` is the address; the stored field follows from it. `fre_offset` None: after the rows of the function before.
    """

    start: int = 0x20000
    size: int = 0x10
    rows: bytes = b"\x00\x03\x08"
    row_count: int = 1
    info: int = 0
    info2: int = 0
    repeat_size: int = 0
    fre_offset: int | None = None


class RawSection(NamedTuple):
    """A section as stored; the fields that are None follow from the rest."""

    functions: tuple[RawFunction, ...] = (RawFunction(),)
    version: int = 3
    order: Literal["<", ">"] = "<"
    magic: int = 0xDEE2
    flags: int | None = None
    abi: int = 3
    fixed_fp: int = 0
    fixed_ra: int = -8
    auxiliary: bytes = b""
    auxiliary_size: int | None = None
    fde_count: int | None = None
    fre_count: int | None = None
    fre_size: int | None = None
    fde_offset: int = 0
    fre_offset: int | None = None
    vaddr: int = 0x30000
    tail: bytes = b""

    @property
    def stored_flags(self) -> int:
        """The flags: those of a linked file, unless others are given."""
        return (1 if self.version == 1 else 5) if self.flags is None else self.flags

    def assemble(self) -> bytes:
        """Return the bytes."""
        table_size = RECORD_SIZES[self.version] * len(self.functions)
        bodies, offsets, position = b"", list[int](), 0
        for function in self.functions:
            offsets.append(position if function.fre_offset is None else function.fre_offset)
            if function.fre_offset is None:
                body = self._attribute(function) + function.rows
                bodies += body
                position += len(body)
        header = struct.pack(
            self.order + "HBBBbbBIIIII",
            self.magic,
            self.version,
            self.stored_flags,
            self.abi,
            self.fixed_fp,
            self.fixed_ra,
            len(self.auxiliary) if self.auxiliary_size is None else self.auxiliary_size,
            len(self.functions) if self.fde_count is None else self.fde_count,
            sum(f.row_count for f in self.functions) if self.fre_count is None else self.fre_count,
            len(bodies) if self.fre_size is None else self.fre_size,
            self.fde_offset,
            self.fde_offset + table_size if self.fre_offset is None else self.fre_offset,
        )
        out = header + self.auxiliary + bytes(self.fde_offset)
        for function, offset in zip(self.functions, offsets, strict=True):
            out += self._record(function, offset, len(out))
        if self.fre_offset is not None:
            out += bytes(len(header) + len(self.auxiliary) + self.fre_offset - len(out))
        return out + bodies + self.tail

    def _attribute(self, function: RawFunction) -> bytes:
        if self.version < 3:
            return b""
        return struct.pack(self.order + "HBBB", function.row_count, function.info, function.info2, function.repeat_size)

    def _record(self, function: RawFunction, fre_offset: int, position: int) -> bytes:
        start = function.start - self.vaddr - (position if self.version > 1 and self.stored_flags & 4 else 0)
        if self.version >= 3:
            return struct.pack(self.order + "qII", start, function.size, fre_offset)
        fields = (start, function.size, fre_offset, function.row_count, function.info)
        if self.version == 2:
            return struct.pack(self.order + "iIIIBBxx", *fields, function.repeat_size)
        return struct.pack(self.order + "iIIIB", *fields)
