# SPDX-License-Identifier: Apache-2.0
"""Bytes to a decoded section: an independent reader of versions 1 to 3 in both byte orders.

Shares only constants and the model with the encoder, and checks all that it reads.
"""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.arch import arch_of_abi
from cfi2sframe.errors import SFrameError
from cfi2sframe.printable import counted
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import FrameRow
from cfi2sframe.sframe.row_tails import WHERE, TailReader

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.headers import Buffer
    from cfi2sframe.sframe.model import FrameState
    from cfi2sframe.sframe.row_tails import RowTail

#: Codes of a row's start by FRE type, and the fields of an FDE by version: start, size, and what functions may share.
_START_CODES: Final = "BHI"
_FDE_FORMS: Final = {s.SFRAME_VERSION_1: "iIIIB", s.SFRAME_VERSION_2: "iIIIBBxx", s.SFRAME_VERSION_3: "qII"}
#: By FRE type: the bytes of a row by its info byte.
_ROW_SIZES: Final = tuple(
    bytes([start_size + 1 + words_size for words_size in s.FRE_WORDS_SIZES]) for start_size in s.FRE_START_SIZE
)
_ADDRESS_MASK: Final = (1 << 64) - 1


class Header(NamedTuple):
    """The header's fields as stored. `byte_order` follows from the magic; offsets count from the end of the header."""

    byte_order: Literal["<", ">"]
    version: int
    flags: int
    abi_id: int
    fixed_fp_offset: int
    fixed_ra_offset: int
    auxhdr_size: int
    fde_count: int
    fre_count: int
    fre_size: int
    fde_offset: int
    fre_offset: int

    @property
    def is_sorted(self) -> bool:
        """SFRAME_F_FDE_SORTED."""
        return bool(self.flags & s.SFRAME_F_FDE_SORTED)

    @property
    def start_is_pcrel(self) -> bool:
        """SFRAME_F_FDE_FUNC_START_PCREL."""
        return self.version >= s.SFRAME_VERSION_2 and bool(self.flags & s.SFRAME_F_FDE_FUNC_START_PCREL)


class DecodedRow(NamedTuple):
    """A row: its meaning, and its info byte and data words as stored (words signed)."""

    row: FrameRow
    info: int
    word_size: int
    words: tuple[int, ...]

    def __repr__(self) -> str:
        return repr(self.row)


class RowList(NamedTuple):
    """The rows of a function as columns: `starts[N]` (bytes from the function's start), `tails[N]`, `states[N]`.

    `states` are those of the tails. `size` is the bytes of the rows.
    """

    starts: tuple[int, ...]
    tails: tuple[RowTail, ...]
    states: tuple[FrameState, ...]
    size: int

    def __repr__(self) -> str:
        return f"<RowList: {counted(len(self.starts), 'row')}>"

    @property
    def rows(self) -> tuple[DecodedRow, ...]:
        """The rows as records."""
        return tuple(map(self.row, range(len(self.starts))))

    def row(self, number: int) -> DecodedRow:
        """Return a row as a record."""
        state, info, word_size, words = self.tails[number]
        return DecodedRow(FrameRow(self.starts[number], state), info, word_size, words)


class DecodedBody(NamedTuple):
    """What an FDE has besides its function's start and size; the fields are those of `DecodedFunction`."""

    fre_offset: int
    fre_type: int
    is_pcmask: bool
    repeat_size: int
    uses_b_key: bool
    is_signal_frame: bool
    is_flexible: bool
    row_list: RowList


class DecodedFunction(NamedTuple):
    """A function's FDE and rows. `index` is its number in the function table.

    `start_vaddr` is the virtual address, `size` counts bytes. `fre_offset` is an offset in the FRE sub-section: of the
    rows, in version 3 of the attribute before them. `repeat_size` is the block size of a PCMASK function in bytes.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index
    start_vaddr: int
    size: int
    fre_offset: int
    fre_type: int
    is_pcmask: bool
    repeat_size: int
    uses_b_key: bool
    is_signal_frame: bool
    is_flexible: bool
    row_list: RowList

    def __repr__(self) -> str:
        marks = {"PCMASK": self.is_pcmask, "flexible": self.is_flexible, "signal frame": self.is_signal_frame}
        marks |= {"B key": self.uses_b_key}
        text = "".join(f", {name}" for name, has_it in marks.items() if has_it)
        return f"<function 0x{self.start_vaddr:x}..0x{self.end_vaddr:x}: {counted(self.row_count, 'row')}{text}>"

    @property
    def end_vaddr(self) -> int:
        """The first virtual address after the function."""
        return self.start_vaddr + self.size

    @property
    def rows(self) -> tuple[DecodedRow, ...]:
        """The rows as records, which are made each time."""
        return self.row_list.rows

    @property
    def row_count(self) -> int:
        """The number of rows."""
        return len(self.row_list.starts)

    @property
    def rows_size(self) -> int:
        """The bytes of the rows, without the attribute."""
        return self.row_list.size


class DecodedSection(NamedTuple):
    """A whole section. `section_vaddr` is the virtual address that function starts are relative to.

    Functions are columns, in the order of the function table: function N holds `sizes[N]` bytes from the virtual
    address `starts[N]`, and `bodies[body_numbers[N]]` is the rest of its FDE, which others may share.
    """

    header: Header
    arch: Arch
    section_vaddr: int
    section_size: int
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    body_numbers: tuple[int, ...]
    bodies: tuple[DecodedBody, ...]

    def __repr__(self) -> str:
        functions, size = counted(len(self.starts), "function"), counted(self.section_size, "byte")
        return (
            f"<DecodedSection: version {self.header.version}, {self.arch.name}, {functions}, {size} at "
            f"0x{self.section_vaddr:x}>"
        )

    @property
    def functions(self) -> tuple[DecodedFunction, ...]:
        """The functions as records, which are made each time."""
        bodies = self.bodies
        columns = zip(self.starts, self.sizes, self.body_numbers, strict=True)
        return tuple(
            [DecodedFunction(index, start, size, *bodies[body]) for index, (start, size, body) in enumerate(columns)]
        )

    @property
    def row_count(self) -> int:
        """The rows of all functions; those that functions share count for each."""
        counts = [len(body.row_list.starts) for body in self.bodies]
        return sum(map(counts.__getitem__, self.body_numbers))


def decode_section(data: Buffer, section_vaddr: int = 0, *, is_object: bool = False) -> DecodedSection:
    """Decode a section at the virtual address `section_vaddr`.

    `is_object`: it comes from a relocatable object, with relocations applied. There, starts count from their own field
    in every version, whatever the flags are: assemblers write and linkers read them so.

    Raises `SFrameError`, its offset that of the first field or row that exceeds its bounds or has no meaning.
    """
    return _Decoder(bytes(data), section_vaddr, is_object=is_object).run()


def decode_header(data: bytes) -> Header:
    """Decode the header alone. Raises `SFrameError` when it is truncated, not SFrame's, or of an unknown version."""
    if len(data) < 4:
        raise SFrameError("truncated: no room for the preamble", WHERE, 0)
    order: Literal["<", ">"]
    if data[:2] == b"\xe2\xde":
        order = "<"
    elif data[:2] == b"\xde\xe2":
        order = ">"
    else:
        raise SFrameError(f"not an SFrame section: the magic is {data[:2].hex()}", WHERE, 0)
    if data[2] not in s.VERSIONS:
        raise SFrameError(f"SFrame version {data[2]} is unknown", WHERE, 2)
    if len(data) < s.HEADER_SIZE:
        raise SFrameError("truncated: no room for the header", WHERE, 0)
    return Header(order, *struct.unpack_from(order + "BBBbbBIIIII", data, 2))


class _TailList(NamedTuple):
    """The tails of a row list, and their states."""

    tails: tuple[RowTail, ...]
    states: tuple[FrameState, ...]


class _Decoder:
    """Decodes one section: bodies that functions share, row lists of equal bytes, and tails of equal bytes once.

    All methods raise `SFrameError` when what they decode is damaged.
    """

    def __init__(self, data: bytes, section_vaddr: int, *, is_object: bool) -> None:
        self.data = data
        self.section_vaddr = section_vaddr
        self.header = decode_header(data)
        self.start_is_pcrel = self.header.start_is_pcrel or is_object
        arch = arch_of_abi(self.header.abi_id)
        if arch is None:
            raise SFrameError(f"ABI {self.header.abi_id} is unknown", WHERE, 4)
        self.arch = arch
        self.order = self.header.byte_order
        header_end = s.HEADER_SIZE + self.header.auxhdr_size
        self.table_offset = header_end + self.header.fde_offset
        self.fre_start = header_end + self.header.fre_offset
        self.fre_end = self.fre_start + self.header.fre_size
        self.rows_left = s.max_decoded_rows(self.header.fre_size)
        self.tail_reader = TailReader(
            self.order, arch, fixed_ra_offset=self.header.fixed_ra_offset, fixed_fp_offset=self.header.fixed_fp_offset
        )
        #: By FRE type, for each offset in `data`: the bytes of the row that starts there, if one does.
        self.row_sizes: dict[int, bytes] = {}
        #: By (offset, number of rows, FRE type, FDE type).
        self.row_lists: dict[tuple[int, int, int, int], RowList] = {}
        #: By (FRE type, FDE type, bytes).
        self.known_lists: dict[tuple[int, int, bytes], RowList] = {}
        #: By FDE type, then by the bytes of all tails of a list: each of them says where the next one begins.
        self.known_tail_lists: tuple[dict[bytes, _TailList], ...] = ({}, {})
        #: By FDE type, then by the bytes of info byte and data words.
        self.known_tails: tuple[dict[bytes, RowTail], ...] = ({}, {})

    def run(self) -> DecodedSection:
        """Decode the section."""
        header, table = self.header, self.table_offset
        record_size = s.FDE_SIZE[header.version]
        table_end = table + record_size * header.fde_count
        if table_end > len(self.data):
            raise SFrameError(f"{header.fde_count} functions leave the section", WHERE, table)
        if self.fre_end > len(self.data):
            raise SFrameError(f"the rows' {header.fre_size} bytes leave the section", WHERE, self.fre_start)
        fdes = list(struct.iter_unpack(self.order + _FDE_FORMS[header.version], self.data[table:table_end]))
        bodies: list[DecodedBody] = []
        body_numbers: list[int] = []
        known: dict[tuple[int, ...], int] = {}
        for index, fde in enumerate(fdes):
            fields = fde[2:]
            number = known.get(fields)
            if number is None:
                number = known[fields] = len(bodies)
                bodies.append(self.body(fields, table + index * record_size))
            body_numbers.append(number)
        base, step = (self.section_vaddr + table, record_size) if self.start_is_pcrel else (self.section_vaddr, 0)
        return DecodedSection(
            header,
            self.arch,
            self.section_vaddr,
            len(self.data),
            tuple([(base + step * index + fde[0]) & _ADDRESS_MASK for index, fde in enumerate(fdes)]),
            tuple([fde[1] for fde in fdes]),
            tuple(body_numbers),
            tuple(bodies),
        )

    def body(self, fields: tuple[int, ...], offset: int) -> DecodedBody:
        """Decode the FDE at an offset, of which `fields` are those after start and size, with its rows."""
        version, fre_offset = self.header.version, fields[0]
        rows_offset = self.fre_start + fre_offset
        info2 = repeat_size = 0
        if version == s.SFRAME_VERSION_1:
            count, info = fields[1:]
        elif version == s.SFRAME_VERSION_2:
            count, info, repeat_size = fields[1:]
        else:
            attribute, rows_offset = rows_offset, rows_offset + s.FDE_ATTRIBUTE_SIZE
            if rows_offset > self.fre_end:
                raise SFrameError("the function's attribute leaves the rows", WHERE, offset)
            count, info, info2, repeat_size = struct.unpack_from(self.order + "HBBB", self.data, attribute)
        fde_type = info2 & s.FDE_INFO2_TYPE_MASK
        if fde_type > s.SFRAME_FDE_TYPE_FLEX:
            raise SFrameError(f"FDE type {fde_type} is unknown", WHERE, offset)
        fre_type = info & s.FDE_INFO_FRE_TYPE_MASK
        if fre_type >= len(s.FRE_START_SIZE):
            raise SFrameError(f"FRE type {fre_type} is unknown", WHERE, offset)
        return DecodedBody(
            fre_offset=fre_offset,
            fre_type=fre_type,
            is_pcmask=bool(info >> s.FDE_INFO_PCTYPE_SHIFT & 1),
            repeat_size=repeat_size,
            uses_b_key=bool(info & s.FDE_INFO_PAUTH_KEY_B),
            is_signal_frame=version >= s.SFRAME_VERSION_3 and bool(info & s.FDE_INFO_SIGNAL),
            is_flexible=fde_type == s.SFRAME_FDE_TYPE_FLEX,
            row_list=self.rows(rows_offset, count, fre_type, fde_type),
        )

    def rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> RowList:
        """Return the `count` rows at an offset; functions that share row bytes share the result."""
        key = (offset, count, fre_type, fde_type)
        found = self.row_lists.get(key)
        if found is None:
            found = self.row_lists[key] = self.new_rows(offset, count, fre_type, fde_type)
            self.rows_left -= count
            if self.rows_left < 0:
                # Writers share whole lists or their beginnings; other overlaps would only cost time.
                raise SFrameError("the functions' row lists overlap one another over and over", WHERE, offset)
        return found

    def new_rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> RowList:
        """Decode the `count` rows at an offset."""
        sizes = self.row_sizes.get(fre_type)
        if sizes is None:
            start_size = s.FRE_START_SIZE[fre_type]
            # A row's size follows from its info byte, which has to lie before the rows' end.
            sizes = self.data[start_size : self.fre_end].translate(_ROW_SIZES[fre_type])
            self.row_sizes[fre_type] = sizes
        # The offset of each row, and of the end of the last one.
        offsets = [offset]
        position = offset
        try:
            for _ in range(count):
                position += sizes[position]
                offsets.append(position)
        except IndexError:
            pass
        has_cut_row = len(offsets) > 1 and position > self.fre_end
        # A damaged row before the one that leaves is found first.
        row_list = self.row_list(offsets[:-1] if has_cut_row else offsets, fre_type, fde_type)
        if has_cut_row:
            raise SFrameError("a row's data words leave the rows' bytes", WHERE, offsets[-2])
        if len(offsets) <= count:
            raise SFrameError("a row leaves the rows' bytes", WHERE, position)
        return row_list

    def row_list(self, offsets: list[int], fre_type: int, fde_type: int) -> RowList:
        """Decode the rows that start at all of some offsets but the last, where they end."""
        data, start_size = self.data, s.FRE_START_SIZE[fre_type]
        list_bytes = data[offsets[0] : offsets[-1]]
        key = (fre_type, fde_type, list_bytes)
        found = self.known_lists.get(key)
        if found is None:
            starts = b"".join([data[offset : offset + start_size] for offset in offsets[:-1]])
            count = len(offsets) - 1
            found = self.known_lists[key] = RowList(
                struct.unpack(f"{self.order}{count}{_START_CODES[fre_type]}", starts),
                *self.tail_list(offsets, start_size, fde_type),
                len(list_bytes),
            )
        return found

    def tail_list(self, offsets: list[int], start_size: int, fde_type: int) -> _TailList:
        """Decode the tails of the rows that start at all of some offsets but the last, where they end."""
        data = self.data
        tails = [data[offset + start_size : end] for offset, end in pairwise(offsets)]
        key = b"".join(tails)
        found = self.known_tail_lists[fde_type].get(key)
        if found is None:
            known = self.known_tails[fde_type]
            for tail, offset in zip(tails, offsets, strict=False):
                if tail not in known:
                    known[tail] = self.tail_reader.read(tail, fde_type, offset)
            decoded = tuple(map(known.__getitem__, tails))
            found = _TailList(decoded, tuple([tail.state for tail in decoded]))
            self.known_tail_lists[fde_type][key] = found
        return found
