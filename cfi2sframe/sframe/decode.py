# SPDX-License-Identifier: Apache-2.0
"""Bytes to a decoded section: an independent reader of versions 1 to 3 in both byte orders.

Shares only constants and the model with the encoder, and checks all that it reads.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.arch import arch_of_abi
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import FrameRow, FrameState, Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.headers import Buffer

#: The `where` of errors.
WHERE: Final = ".sframe"
_WORD_CODES: Final = "bhi"
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


class DecodedFunction(NamedTuple):
    """A function's FDE and rows. `index` is its number in the function table.

    `start_vaddr` is the virtual address, `size` counts bytes. `fre_offset` is an offset in the FRE sub-section: of the
    rows, in version 3 of the attribute before them. `repeat_size` is the block size of a PCMASK function in bytes.
    `rows_size` is the bytes of the rows, without the attribute.
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
    rows: tuple[DecodedRow, ...]
    rows_size: int


class DecodedSection(NamedTuple):
    """A whole section. `section_vaddr` is the virtual address that function starts are relative to."""

    header: Header
    arch: Arch
    section_vaddr: int
    section_size: int
    functions: tuple[DecodedFunction, ...]


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


class _Fde(NamedTuple):
    """Fields of a function's FDE, in version 3 also of its attribute; `rows_offset` is where its rows begin."""

    start: int
    size: int
    fre_offset: int
    row_count: int
    info: int
    info2: int
    repeat_size: int
    rows_offset: int


class _RowList(NamedTuple):
    """Decoded rows, and their size in bytes."""

    rows: tuple[DecodedRow, ...]
    size: int


class _RowTail(NamedTuple):
    """The meaning of a row's info byte and data words, and the words as stored."""

    state: FrameState
    word_size: int
    words: tuple[int, ...]


class _Decoder:
    """Decodes one section. Row lists that functions share, and rows and tails of equal bytes, are decoded once.

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
        self.int_order: Literal["little", "big"] = "little" if self.order == "<" else "big"
        header_end = s.HEADER_SIZE + self.header.auxhdr_size
        self.table_offset = header_end + self.header.fde_offset
        self.fre_start = header_end + self.header.fre_offset
        self.fre_end = self.fre_start + self.header.fre_size
        self.rows_left = s.max_decoded_rows(self.header.fre_size)
        self.fixed_ra = _fixed_rule(self.header.fixed_ra_offset)
        self.fixed_fp = _fixed_rule(self.header.fixed_fp_offset)
        #: By (offset, number of rows, FRE type, FDE type).
        self.row_lists: dict[tuple[int, int, int, int], _RowList] = {}
        #: By (FRE type, FDE type), then by the row's bytes.
        self.known_rows: dict[tuple[int, int], dict[bytes, DecodedRow]] = {}
        #: By FDE type, then by the bytes of info byte and data words.
        self.known_tails: tuple[dict[bytes, _RowTail], ...] = ({}, {})

    def run(self) -> DecodedSection:
        """Decode the section."""
        header, table = self.header, self.table_offset
        record_size = s.FDE_SIZE[header.version]
        if table + record_size * header.fde_count > len(self.data):
            raise SFrameError(f"{header.fde_count} functions leave the section", WHERE, table)
        if self.fre_end > len(self.data):
            raise SFrameError(f"the rows' {header.fre_size} bytes leave the section", WHERE, self.fre_start)
        functions = tuple(self.function(index, table + index * record_size) for index in range(header.fde_count))
        return DecodedSection(header, self.arch, self.section_vaddr, len(self.data), functions)

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        """Return fields at an offset, in the section's byte order."""
        return struct.unpack_from(self.order + form, self.data, offset)

    def fde(self, offset: int) -> _Fde:
        """Read the record of the function table at an offset; in version 3 also its attribute."""
        if self.header.version == s.SFRAME_VERSION_1:
            start, size, fre_offset, count, info = self.unpack("iIIIB", offset)
            return _Fde(start, size, fre_offset, count, info, 0, 0, self.fre_start + fre_offset)
        if self.header.version == s.SFRAME_VERSION_2:
            start, size, fre_offset, count, info, repeat_size = self.unpack("iIIIBB", offset)
            return _Fde(start, size, fre_offset, count, info, 0, repeat_size, self.fre_start + fre_offset)
        start, size, fre_offset = self.unpack("qII", offset)
        attribute = self.fre_start + fre_offset
        rows_offset = attribute + s.FDE_ATTRIBUTE_SIZE
        if rows_offset > self.fre_end:
            raise SFrameError("the function's attribute leaves the rows", WHERE, offset)
        count, info, info2, repeat_size = self.unpack("HBBB", attribute)
        return _Fde(start, size, fre_offset, count, info, info2, repeat_size, rows_offset)

    def function(self, index: int, offset: int) -> DecodedFunction:
        """Decode function number `index`, whose record is at `offset`, with its rows."""
        fde = self.fde(offset)
        fde_type = fde.info2 & s.FDE_INFO2_TYPE_MASK
        if fde_type > s.SFRAME_FDE_TYPE_FLEX:
            raise SFrameError(f"FDE type {fde_type} is unknown", WHERE, offset)
        fre_type = fde.info & s.FDE_INFO_FRE_TYPE_MASK
        if fre_type >= len(s.FRE_START_SIZE):
            raise SFrameError(f"FRE type {fre_type} is unknown", WHERE, offset)
        rows, rows_size = self.rows(fde.rows_offset, fde.row_count, fre_type, fde_type)
        base = self.section_vaddr + (offset if self.start_is_pcrel else 0)
        return DecodedFunction(
            index=index,
            start_vaddr=(base + fde.start) & _ADDRESS_MASK,
            size=fde.size,
            fre_offset=fde.fre_offset,
            fre_type=fre_type,
            is_pcmask=bool(fde.info >> s.FDE_INFO_PCTYPE_SHIFT & 1),
            repeat_size=fde.repeat_size,
            uses_b_key=bool(fde.info & s.FDE_INFO_PAUTH_KEY_B),
            is_signal_frame=self.header.version >= s.SFRAME_VERSION_3 and bool(fde.info & s.FDE_INFO_SIGNAL),
            is_flexible=fde_type == s.SFRAME_FDE_TYPE_FLEX,
            rows=rows,
            rows_size=rows_size,
        )

    def rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> _RowList:
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

    def new_rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> _RowList:
        """Decode the `count` rows at an offset."""
        data, limit = self.data, self.fre_end
        known = self.known_rows.setdefault((fre_type, fde_type), {})
        start_size = s.FRE_START_SIZE[fre_type]
        words_sizes = s.FRE_WORDS_SIZES
        decoded: list[DecodedRow] = []
        position = offset
        for _ in range(count):
            info_offset = position + start_size
            if info_offset >= limit:
                raise SFrameError("a row leaves the rows' bytes", WHERE, position)
            end = info_offset + 1 + words_sizes[data[info_offset]]
            if end > limit:
                raise SFrameError("a row's data words leave the rows' bytes", WHERE, position)
            row_bytes = data[position:end]
            row = known.get(row_bytes)
            if row is None:
                row = known[row_bytes] = self.row(row_bytes, start_size, fde_type, position)
            decoded.append(row)
            position = end
        return _RowList(tuple(decoded), position - offset)

    def row(self, data: bytes, start_size: int, fde_type: int, offset: int) -> DecodedRow:
        """Decode the bytes of a row; `offset` is the row's, for errors."""
        start_delta = int.from_bytes(data[:start_size], self.int_order)
        tail_bytes = data[start_size:]
        tail = self.known_tails[fde_type].get(tail_bytes)
        if tail is None:
            tail = self.known_tails[fde_type][tail_bytes] = self.tail(tail_bytes, fde_type, offset)
        return DecodedRow(FrameRow(start_delta, tail.state), tail_bytes[0], tail.word_size, tail.words)

    def tail(self, data: bytes, fde_type: int, offset: int) -> _RowTail:
        """Decode the bytes of a row's info byte and data words; `offset` is the row's, for errors."""
        info = data[0]
        count = info >> s.FRE_INFO_COUNT_SHIFT & s.FRE_INFO_COUNT_MASK
        size_code = info >> s.FRE_INFO_SIZE_SHIFT & s.FRE_INFO_SIZE_MASK
        if size_code == len(_WORD_CODES):
            raise SFrameError("data word size 3 is unknown", WHERE, offset)
        words = struct.unpack_from(f"{self.order}{count}{_WORD_CODES[size_code]}", data, 1)
        word_size = 1 << size_code
        if not words:
            state: FrameState | None = FrameState(None)
        elif fde_type == s.SFRAME_FDE_TYPE_FLEX:
            state = self.flexible_state(words, word_size)
        else:
            state = self.default_state(words, info)
        if state is None:
            raise SFrameError(f"a row's {count} data words have no meaning", WHERE, offset)
        return _RowTail(state._replace(mangled_ra=bool(info & s.FRE_INFO_MANGLED_RA)), word_size, words)

    def default_state(self, words: tuple[int, ...], info: int) -> FrameState | None:
        """Interpret the words of a default row (version 3, 3.1): CFA, RA unless it is fixed, FP unless it is fixed.

        Returns None when there are more words.
        """
        base = self.arch.sp_register if info & s.FRE_INFO_CFA_BASE_SP else self.arch.fp_register
        cfa = Rule(base, self.cfa_offset(words[0]), deref=False)
        rest = list(words[1:])
        ra, fp = self.fixed_ra, self.fixed_fp
        if rest and ra is None:
            ra = self.saved(rest.pop(0))
        if rest and fp is None:
            fp = self.saved(rest.pop(0))
        return None if rest else FrameState(cfa, ra, fp)

    def saved(self, word: int) -> Rule | None:
        """Interpret the word of a saved RA or FP; on s390x, 0 is padding and an odd word has a register's number."""
        if self.arch.pads_ra and word & 1:
            return Rule((word & 0xFFFFFFFF) >> 1, 0, deref=False)
        if self.arch.pads_ra and word == 0:
            return None
        return Rule(None, word, deref=True)

    def flexible_state(self, words: tuple[int, ...], word_size: int) -> FrameState | None:
        """Interpret the words of a flexible row (version 3, 3.2): a control word and an offset for each of CFA, RA, FP.

        A single 0 is padding. Returns None when the words are no such sequence.
        """
        mask = (1 << 8 * word_size) - 1
        rules: list[Rule | None] = []
        rest = list(words)
        while rest:
            control = rest.pop(0) & mask
            if control == 0:
                rules.append(None)
                continue
            if not rest:
                return None
            register = control >> s.FLEX_REG_SHIFT if control & s.FLEX_REG_P else None
            rules.append(Rule(register, rest.pop(0), bool(control & s.FLEX_DEREF_P)))
        if len(rules) > 3:
            return None
        cfa, ra, fp = (*rules, None, None)[:3]
        if cfa is None or cfa.register is None:
            return None
        return FrameState(cfa._replace(offset=self.cfa_offset(cfa.offset)), ra or self.fixed_ra, fp or self.fixed_fp)

    def cfa_offset(self, word: int) -> int:
        """Return the CFA's offset in bytes from its data word."""
        return word * self.arch.cfa_offset_scale + self.arch.cfa_offset_bias


def _fixed_rule(offset: int) -> Rule | None:
    """Return the rule of a register that every frame saves at the same offset from the CFA; 0: none does."""
    return Rule(None, offset, deref=True) if offset else None
