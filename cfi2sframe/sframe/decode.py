# SPDX-License-Identifier: Apache-2.0
"""Bytes -> a decoded section: an independent reader of versions 1 to 3 in both byte orders.

Shares nothing with the encoder but constants and the rule algebra, and trusts nothing that it reads.
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

WHERE: Final = ".sframe"
_WORD_FORMS: Final = "bhi"


class Header(NamedTuple):
    """The header's fields as stored; `byte_order` as the magic shows it. Offsets count from the end of the header."""

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
    """A row: what it means, and its info byte and data words as stored (words signed)."""

    row: FrameRow
    info: int
    word_size: int
    words: tuple[int, ...]


class DecodedFunction(NamedTuple):
    """A function's FDE. `fre_offset` counts in the FRE sub-section; in version 3 it is the attribute's.

    `rows_size` is the bytes of the rows, without the attribute.
    """

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody wants here
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
    """A whole section. `section_vaddr` is the address that starts were resolved against."""

    header: Header
    arch: Arch
    section_vaddr: int
    section_size: int
    functions: tuple[DecodedFunction, ...]


def decode_section(data: Buffer, section_vaddr: int = 0, *, is_object: bool = False) -> DecodedSection:
    """Decode a section that lies at `section_vaddr`.

    `is_object`: it comes from a relocatable object, with relocations applied. There, starts count from their own field
    in every version, whatever the flags say: assemblers write them so, and linkers take them so.

    Raises `SFrameError` with the offset of whatever leaves its bounds or has no meaning.
    """
    return _Decoder(bytes(data), section_vaddr, is_object=is_object).run()


def decode_header(data: bytes) -> Header:
    """Decode the header alone. Raises `SFrameError` when it is truncated, not SFrame's or of an unknown version."""
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


class _Decoder:
    def __init__(self, data: bytes, section_vaddr: int, *, is_object: bool) -> None:
        self.data = data
        self.vaddr = section_vaddr
        self.header = decode_header(data)
        self.start_is_pcrel = self.header.start_is_pcrel or is_object
        arch = arch_of_abi(self.header.abi_id)
        if arch is None:
            raise SFrameError(f"ABI {self.header.abi_id} is unknown", WHERE, 4)
        self.arch = arch
        self.order = self.header.byte_order
        self.header_end = s.HEADER_SIZE + self.header.auxhdr_size
        self.fre_start = self.header_end + self.header.fre_offset
        self.fre_end = self.fre_start + self.header.fre_size
        self.rows_left = s.max_decoded_rows(self.header.fre_size)
        self.tails: tuple[dict[bytes, tuple[FrameState, int, tuple[int, ...]]], ...] = ({}, {})
        self.memo: dict[tuple[int, ...], tuple[tuple[DecodedRow, ...], int]] = {}

    def run(self) -> DecodedSection:
        header = self.header
        record_size = s.FDE_SIZE[header.version]
        table = self.header_end + header.fde_offset
        if table + record_size * header.fde_count > len(self.data):
            raise SFrameError(f"{header.fde_count} functions leave the section", WHERE, table)
        if self.fre_end > len(self.data):
            raise SFrameError(f"the rows' {header.fre_size} bytes leave the section", WHERE, self.fre_start)
        functions = tuple(self.function(index, table + index * record_size) for index in range(header.fde_count))
        return DecodedSection(header, self.arch, self.vaddr, len(self.data), functions)

    def unpack(self, form: str, offset: int) -> tuple[int, ...]:
        return struct.unpack_from(self.order + form, self.data, offset)

    def function(self, index: int, offset: int) -> DecodedFunction:
        version = self.header.version
        info2 = repeat_size = 0
        if version >= s.SFRAME_VERSION_3:
            start, size, fre_offset = self.unpack("qII", offset)
            attribute = self.fre_start + fre_offset
            if attribute + s.FDE_ATTRIBUTE_SIZE > self.fre_end:
                raise SFrameError("the function's attribute leaves the rows", WHERE, offset)
            count, info, info2, repeat_size = self.unpack("HBBB", attribute)
            rows_offset = attribute + s.FDE_ATTRIBUTE_SIZE
        else:
            if version == s.SFRAME_VERSION_2:
                start, size, fre_offset, count, info, repeat_size = self.unpack("iIIIBB", offset)
            else:
                start, size, fre_offset, count, info = self.unpack("iIIIB", offset)
            rows_offset = self.fre_start + fre_offset
        base = self.vaddr + (offset if self.start_is_pcrel else 0)
        fde_type = info2 & s.FDE_INFO2_TYPE_MASK
        if fde_type > s.SFRAME_FDE_TYPE_FLEX:
            raise SFrameError(f"FDE type {fde_type} is unknown", WHERE, offset)
        fre_type = info & s.FDE_INFO_FRE_TYPE_MASK
        if fre_type >= len(s.FRE_START_SIZE):
            raise SFrameError(f"FRE type {fre_type} is unknown", WHERE, offset)
        rows, end = self.rows(rows_offset, count, fre_type, fde_type)
        return DecodedFunction(
            index,
            (base + start) & 0xFFFFFFFFFFFFFFFF,
            size,
            fre_offset,
            fre_type,
            bool(info >> s.FDE_INFO_PCTYPE_SHIFT & 1),
            repeat_size,
            bool(info & s.FDE_INFO_PAUTH_KEY_B),
            version >= s.SFRAME_VERSION_3 and bool(info & s.FDE_INFO_SIGNAL),
            fde_type == s.SFRAME_FDE_TYPE_FLEX,
            rows,
            end - rows_offset,
        )

    def rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> tuple[tuple[DecodedRow, ...], int]:
        """Decode `count` rows; functions that share row bytes share the result."""
        key = (offset, count, fre_type, fde_type)
        found = self.memo.get(key)
        if found is None:
            found = self.memo[key] = self.new_rows(offset, count, fre_type, fde_type)
            self.rows_left -= count
            if self.rows_left < 0:
                # Honest sections share whole lists or their beginnings; this one makes its reader work for nothing.
                raise SFrameError("the functions' row lists overlap one another over and over", WHERE, offset)
        return found

    def new_rows(self, offset: int, count: int, fre_type: int, fde_type: int) -> tuple[tuple[DecodedRow, ...], int]:
        data, limit = self.data, self.fre_end
        start_size = s.FRE_START_SIZE[fre_type]
        read_start = struct.Struct(self.order + "BHI"[fre_type]).unpack_from
        known = self.tails[fde_type]
        make = tuple.__new__
        decoded: list[DecodedRow] = []
        position = offset
        for _ in range(count):
            words_offset = position + start_size + 1
            if words_offset > limit:
                raise SFrameError("a row leaves the rows' bytes", WHERE, position)
            info = data[words_offset - 1]
            end = words_offset + s.FRE_WORDS_SIZES[info]
            if end > limit:
                raise SFrameError("a row's data words leave the rows' bytes", WHERE, position)
            # What follows the start recurs all over a section: its meaning is worked out once.
            tail = data[words_offset - 1 : end]
            meaning = known.get(tail)
            if meaning is None:
                meaning = known[tail] = self.meaning(tail, fde_type, position)
            state, word_size, words = meaning
            row = make(FrameRow, (read_start(data, position)[0], state))
            decoded.append(make(DecodedRow, (row, info, word_size, words)))
            position = end
        return tuple(decoded), position

    def meaning(self, tail: bytes, fde_type: int, offset: int) -> tuple[FrameState, int, tuple[int, ...]]:
        """Return what a row's info byte and data words say, the words' size, and the words."""
        info = tail[0]
        count = info >> s.FRE_INFO_COUNT_SHIFT & s.FRE_INFO_COUNT_MASK
        size_code = info >> s.FRE_INFO_SIZE_SHIFT & s.FRE_INFO_SIZE_MASK
        if size_code == len(_WORD_FORMS):
            raise SFrameError("data word size 3 is unknown", WHERE, offset)
        words = struct.unpack_from(f"{self.order}{count}{_WORD_FORMS[size_code]}", tail, 1)
        rules = self.flexible(words, 1 << size_code) if fde_type else self.default(words, info)
        if rules is None:
            raise SFrameError(f"a row's {count} data words have no meaning", WHERE, offset)
        cfa, ra, fp = rules
        return FrameState(cfa, ra, fp, bool(info & s.FRE_INFO_MANGLED_RA)), 1 << size_code, words

    def fixed(self, offset: int) -> Rule | None:
        return Rule(None, offset, deref=True) if offset else None

    def cfa_offset(self, word: int) -> int:
        return word * self.arch.cfa_offset_scale + self.arch.cfa_offset_bias

    def default(self, words: tuple[int, ...], info: int) -> tuple[Rule | None, Rule | None, Rule | None] | None:
        """Default rows (version 3, 3.1): CFA; RA unless it is fixed; FP unless that is fixed."""
        if not words:
            return None, None, None
        base = self.arch.sp_register if info & s.FRE_INFO_CFA_BASE_SP else self.arch.fp_register
        cfa = Rule(base, self.cfa_offset(words[0]), deref=False)
        rest = list(words[1:])
        ra, fp = self.fixed(self.header.fixed_ra_offset), self.fixed(self.header.fixed_fp_offset)
        if rest and ra is None:
            ra = self.saved(rest.pop(0))
        if rest and fp is None:
            fp = self.saved(rest.pop(0))
        return None if rest else (cfa, ra, fp)

    def saved(self, word: int) -> Rule | None:
        if self.arch.pads_ra and word & 1:
            return Rule((word & 0xFFFFFFFF) >> 1, 0, deref=False)
        if self.arch.pads_ra and word == 0:
            return None
        return Rule(None, word, deref=True)

    def flexible(self, words: tuple[int, ...], word_size: int) -> tuple[Rule | None, Rule | None, Rule | None] | None:
        """Flexible rows (version 3, 3.2): a (control, offset) pair each, or a lone 0, for CFA, RA and FP."""
        if not words:
            return None, None, None
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
        if len(rules) > 3 or rules[0] is None or rules[0].register is None:
            return None
        cfa = rules[0]._replace(offset=self.cfa_offset(rules[0].offset))
        ra = rules[1] if len(rules) > 1 else None
        fp = rules[2] if len(rules) > 2 else None
        return (
            cfa,
            ra or self.fixed(self.header.fixed_ra_offset),
            fp or self.fixed(self.header.fixed_fp_offset),
        )
