# SPDX-License-Identifier: Apache-2.0
"""Bytes to a section: an independent reader of versions 1 to 3 in both byte orders, which checks all that it reads.

Shares only constants and the model with the writer.
"""

import struct
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch, arch_of_abi
from cfi2sframe.constants import sframe as s
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.model import NO_BLOCK_SIZE, FrameState, FunctionBody, Rule, Section, States

#: The `where` of errors.
_WHERE: Final = ".sframe"
#: `struct` codes of a row's start by FRE type and of its data words by their size, and the function's record by
#: version: start, size, and the fields that functions may share.
_START_CODES: Final = "BHI"
_WORD_CODES: Final = "bhi"
_RECORD_CODES: Final = {s.SFRAME_VERSION_1: "iIIIB", s.SFRAME_VERSION_2: "iIIIBBxx", s.SFRAME_VERSION_3: "qII"}
_ADDRESS_MASK: Final = (1 << 64) - 1
#: Rows that are read more than once, because lists overlap, in a section of any size.
_ROWS_READ_AGAIN: Final = 20_000
#: No row is smaller: a start and an info byte.
_LEAST_ROW_SIZE: Final = 2


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
    def start_is_pcrel(self) -> bool:
        """SFRAME_F_FDE_FUNC_START_PCREL, which version 1 does not have."""
        return self.version >= s.SFRAME_VERSION_2 and bool(self.flags & s.SFRAME_F_FDE_FUNC_START_PCREL)


class Record(NamedTuple):
    """The stored fields of a function besides its start and size, and the offset of its rows.

    `fre_offset` is an offset in the FRE sub-section: of the rows, in version 3 of the attribute before them.
    `rows_offset` is that of the first row in the section. `repeat_size` is the stored block size.
    """

    fre_offset: int
    rows_offset: int
    row_count: int
    info: int
    info2: int
    repeat_size: int

    @property
    def fre_type(self) -> int:
        """The index of the size of row starts."""
        return self.info & s.FDE_INFO_FRE_TYPE_MASK

    @property
    def fde_type(self) -> int:
        """The form of its rows' data words: default or flexible."""
        return self.info2 & s.FDE_INFO2_TYPE_MASK

    @property
    def is_pcmask(self) -> bool:
        """The PC type."""
        return bool(self.info >> s.FDE_INFO_PCTYPE_SHIFT & 1)


class Words(NamedTuple):
    """A row's data words as stored (signed), and the bytes of each."""

    size: int
    words: tuple[int, ...]


class DecodedSection(Section):
    """A section that was read: also its bytes, their virtual address, the header, and the record of each function."""

    _names = ("data", "vaddr", "header", "records", "starts", "sizes", "bodies")
    data: bytes
    vaddr: int
    header: Header
    records: tuple[Record, ...]

    def __init__(
        self,
        data: bytes,
        vaddr: int,
        header: Header,
        records: tuple[Record, ...],
        starts: tuple[int, ...],
        sizes: tuple[int, ...],
        bodies: tuple[FunctionBody, ...],
    ) -> None:
        is_sorted = bool(header.flags & s.SFRAME_F_FDE_SORTED)
        super().__init__(header.version, header.abi_id, starts, sizes, bodies, is_sorted, header.start_is_pcrel)
        self._fill(data, vaddr, header, records, starts, sizes, bodies)

    def words_of(self, record: Record) -> Iterator[Words]:
        """Yield the data words of a function's rows."""
        position, start_size = record.rows_offset, s.FRE_START_SIZE[record.fre_type]
        for _ in range(record.row_count):
            info_offset = position + start_size
            position = info_offset + 1 + s.FRE_WORDS_SIZES[self.data[info_offset]]
            yield _words(self.data[info_offset:position], self.header.byte_order)


@lru_cache(1 << 12)  # Most rows differ in their starts only.
def _words(tail: bytes, byte_order: str) -> Words:
    info = tail[0]
    size_code = info >> s.FRE_INFO_SIZE_SHIFT & s.FRE_INFO_SIZE_MASK
    count = info >> s.FRE_INFO_COUNT_SHIFT & s.FRE_INFO_COUNT_MASK
    return Words(1 << size_code, struct.unpack_from(f"{byte_order}{count}{_WORD_CODES[size_code]}", tail, 1))


def read_header(data: bytes) -> Header:
    """Read the header alone. Raises `SFrameError` when it is truncated, not SFrame's, or of an unknown version."""
    if len(data) < 4:
        raise SFrameError("truncated: no room for the preamble", _WHERE, 0)
    order: Literal["<", ">"]
    if data[:2] == b"\xe2\xde":
        order = "<"
    elif data[:2] == b"\xde\xe2":
        order = ">"
    else:
        raise SFrameError(f"not an SFrame section: the magic is {data[:2].hex()}", _WHERE, 0)
    if data[2] not in s.VERSIONS:
        raise SFrameError(f"SFrame version {data[2]} is unknown", _WHERE, 2)
    if len(data) < s.HEADER_SIZE:
        raise SFrameError("truncated: no room for the header", _WHERE, 0)
    return Header(order, *struct.unpack_from(order + "BBBbbBIIIII", data, 2))


def read_section(
    data: bytes | bytearray | memoryview, section_vaddr: int = 0, *, is_object: bool = False
) -> DecodedSection:
    """Read a section at the virtual address `section_vaddr`.

    `is_object`: it comes from a relocatable object, with relocations applied. There, starts count from their own field
    in every version, whatever the flags are: assemblers write and linkers read them so.

    Raises `SFrameError`, its offset that of the first field or row that exceeds its bounds or has no meaning.
    """
    section, error = read_damaged(data, section_vaddr, is_object=is_object)
    if error is not None:
        raise error
    return section


def read_damaged(
    data: bytes | bytearray | memoryview, section_vaddr: int = 0, *, is_object: bool = False
) -> tuple[DecodedSection, SFrameError | None]:
    """Read a section up to the first function that is damaged; return the error that `read_section` raises, too.

    Raises `SFrameError` where the header itself is damaged.
    """
    data = bytes(data)
    header = read_header(data)
    arch = arch_of_abi(header.abi_id)
    if arch is None:
        raise SFrameError(f"ABI {header.abi_id} is unknown", _WHERE, 4)
    header_end, record_size = s.HEADER_SIZE + header.auxhdr_size, s.FDE_SIZE[header.version]
    table, rows_offset = header_end + header.fde_offset, header_end + header.fre_offset
    table_end = table + record_size * header.fde_count
    error: SFrameError | None = None
    if table_end > len(data):
        error = SFrameError(f"{header.fde_count} functions extend past the end of the section", _WHERE, table)
        table_end = table + max(len(data) - table, 0) // record_size * record_size
    elif rows_offset + header.fre_size > len(data):
        error = SFrameError(
            f"the rows' {header.fre_size} bytes extend past the end of the section", _WHERE, rows_offset
        )
    reader = _BodyReader(data, header, arch, rows_offset)
    fdes = list(struct.iter_unpack(header.byte_order + _RECORD_CODES[header.version], data[table:table_end]))
    # Functions may share all but their starts and sizes.
    shared = [fde[2:] for fde in fdes]
    by_fields: dict[tuple[int, ...], tuple[Record, FunctionBody]] = {}
    for index, fields in enumerate(shared):
        if fields not in by_fields:
            try:
                by_fields[fields] = reader.read(fields, table + index * record_size)
            except SFrameError as damage:
                error = error or damage
                del fdes[index:], shared[index:]
                break
    functions = list(map(by_fields.__getitem__, shared))
    base, step = (section_vaddr + table, record_size) if header.start_is_pcrel or is_object else (section_vaddr, 0)
    section = DecodedSection(
        data,
        section_vaddr,
        header,
        tuple([record for record, _ in functions]),
        tuple([(base + step * index + fde[0]) & _ADDRESS_MASK for index, fde in enumerate(fdes)]),
        tuple([fde[1] for fde in fdes]),
        tuple([body for _, body in functions]),
    )
    return section, error


class _BodyReader:
    """Reads the functions of one section; equal rows are read once.

    All methods raise `SFrameError` for damage.
    """

    def __init__(self, data: bytes, header: Header, arch: Arch, rows_offset: int) -> None:
        self.data, self.header, self.arch = data, header, arch
        self.order = header.byte_order
        self.begin, self.end = rows_offset, min(rows_offset + header.fre_size, len(data))
        # Distinct lists have at most this many rows unless they overlap: the section's size bounds the time.
        self.rows_left = _ROWS_READ_AGAIN + header.fre_size // _LEAST_ROW_SIZE
        # A fixed offset (from the CFA) of 0 means that there is none.
        self.fixed_ra, self.fixed_fp = (
            Rule(None, offset, deref=True) if offset else None
            for offset in (header.fixed_ra_offset, header.fixed_fp_offset)
        )
        #: By offset, number of rows, FRE type and FDE type: the end of the rows, their starts and states.
        self.lists: dict[tuple[int, int, int, int], tuple[int, tuple[int, ...], tuple[FrameState, ...]]] = {}
        #: By FDE type and bytes: an info byte and data words.
        self.states: dict[tuple[int, bytes], FrameState] = {}
        #: By the bytes of the rows, and the fields of the record besides their place.
        self.bodies: dict[tuple[bytes, int, int, int], FunctionBody] = {}

    def read(self, fields: tuple[int, ...], offset: int) -> tuple[Record, FunctionBody]:
        """Read the function whose record is at an offset; `fields` are those after start and size."""
        version, rows_offset = self.header.version, self.begin + fields[0]
        if version < s.SFRAME_VERSION_3:
            # Version 1 stores no block size.
            count, info, repeat_size = (*fields[1:], 0)[:3]
            info2 = 0
        else:
            attribute, rows_offset = rows_offset, rows_offset + s.FDE_ATTRIBUTE_SIZE
            if rows_offset > self.end:
                raise SFrameError("the function's attribute extends past the end of the rows", _WHERE, offset)
            count, info, info2, repeat_size = struct.unpack_from(self.order + "HBBB", self.data, attribute)
        record = Record(fields[0], rows_offset, count, info, info2, repeat_size)
        if record.fde_type > s.SFRAME_FDE_TYPE_FLEX:
            raise SFrameError(f"FDE type {record.fde_type} is unknown", _WHERE, offset)
        if record.fre_type >= len(s.FRE_START_SIZE):
            raise SFrameError(f"FRE type {record.fre_type} is unknown", _WHERE, offset)
        end, starts, states = self.rows_at(rows_offset, count, record.fre_type, record.fde_type)
        body = FunctionBody(
            starts,
            states,
            record.fde_type == s.SFRAME_FDE_TYPE_FLEX,
            version >= s.SFRAME_VERSION_3 and bool(info & s.FDE_INFO_SIGNAL),
            bool(info & s.FDE_INFO_PAUTH_KEY_B),
            (repeat_size or NO_BLOCK_SIZE) if record.is_pcmask else 0,
        )
        return record, self.bodies.setdefault((self.data[rows_offset:end], info, info2, repeat_size), body)

    def rows_at(
        self, offset: int, count: int, fre_type: int, fde_type: int
    ) -> tuple[int, tuple[int, ...], tuple[FrameState, ...]]:
        """Return the end, the starts and the states of the `count` rows at an offset, which functions may share."""
        key = (offset, count, fre_type, fde_type)
        rows = self.lists.get(key)
        if rows is not None:
            return rows
        data, start_size = self.data, s.FRE_START_SIZE[fre_type]
        starts: list[bytes] = []
        states: list[FrameState] = []
        for _ in range(count):
            info_offset = offset + start_size
            end = info_offset + 1
            if end <= self.end:
                end += s.FRE_WORDS_SIZES[data[info_offset]]
            if end > self.end:
                raise SFrameError("a row extends past the end of the rows", _WHERE, offset)
            tail = data[info_offset:end]
            starts.append(data[offset:info_offset])
            states.append(self.states.get((fde_type, tail)) or self.new_state(tail, offset, fde_type))
            offset = end
        self.rows_left -= count
        if self.rows_left < 0:
            # Writers share whole lists or their beginnings; other overlaps would only cost time.
            raise SFrameError("the functions' row lists overlap one another over and over", _WHERE, key[0])
        codes = f"{self.order}{count}{_START_CODES[fre_type]}"
        rows = self.lists[key] = (offset, struct.unpack(codes, b"".join(starts)), States(states))
        return rows

    def new_state(self, tail: bytes, offset: int, fde_type: int) -> FrameState:
        """Return the state that the info byte and the data words of the row at an offset encode (version 3, 3)."""
        info = tail[0]
        if info >> s.FRE_INFO_SIZE_SHIFT & s.FRE_INFO_SIZE_MASK == len(_WORD_CODES):
            raise SFrameError("data word size 3 is unknown", _WHERE, offset)
        word_size, words = _words(tail, self.order)
        cfa: Rule | None = None
        ra: Rule | None = None
        fp: Rule | None = None
        if words:
            rules = (
                self.flexible_rules(words, word_size)
                if fde_type == s.SFRAME_FDE_TYPE_FLEX
                else self.default_rules(words, info)
            )
            cfa, ra, fp = (*rules, None, None)[:3]
            if len(rules) > 3 or cfa is None or cfa.register is None:
                raise SFrameError(f"a row's {len(words)} data words have no meaning", _WHERE, offset)
            cfa = cfa._replace(offset=cfa.offset * self.arch.cfa_offset_scale + self.arch.cfa_offset_bias)
            ra, fp = ra or self.fixed_ra, fp or self.fixed_fp
        state = self.states[fde_type, tail] = FrameState(cfa, ra, fp, bool(info & s.FRE_INFO_MANGLED_RA))
        return state

    def default_rules(self, words: tuple[int, ...], info: int) -> list[Rule | None]:
        """Interpret the words of a default row (version 3, 3.1): CFA, RA unless it is fixed, FP unless it is fixed.

        There are more than three rules when there are more words.
        """
        base = self.arch.sp_register if info & s.FRE_INFO_CFA_BASE_SP else self.arch.fp_register
        rest = list(words[1:])
        fixed_rules = (self.fixed_ra, self.fixed_fp)
        saved = [self.saved(rest.pop(0)) if rest and fixed is None else fixed for fixed in fixed_rules]
        return [Rule(base, words[0], deref=False), *saved, *map(self.saved, rest)]

    def saved(self, word: int) -> Rule | None:
        """Interpret the word of a saved RA or FP; on s390x, 0 is padding and an odd word has a register's number."""
        if self.arch.pads_ra and word & 1:
            return Rule((word & 0xFFFFFFFF) >> 1, 0, deref=False)
        if self.arch.pads_ra and word == 0:
            return None
        return Rule(None, word, deref=True)

    def flexible_rules(self, words: tuple[int, ...], word_size: int) -> list[Rule | None]:
        """Interpret the words of a flexible row (version 3, 3.2): a control word and an offset for each of CFA, RA, FP.

        A single 0 is padding. There are no rules, not even a CFA, when the words are no such sequence.
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
                return [None]
            register = control >> s.FLEX_REG_SHIFT if control & s.FLEX_REG_P else None
            rules.append(Rule(register, rest.pop(0), bool(control & s.FLEX_DEREF_P)))
        return rules
