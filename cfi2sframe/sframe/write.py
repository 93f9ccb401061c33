# SPDX-License-Identifier: Apache-2.0
"""A logical section to bytes: this module alone decides every width, order and offset.

    header | function table: a record for each function | rows (version 3: of each list, an attribute before its rows)

Records refer to row lists by their offsets, so functions may share a list. Rows do not depend on addresses: a section
that moves keeps the rows that it has (`RowStore`), and only its function table is written again.
"""

import struct
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from itertools import accumulate
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants import sframe as s
from cfi2sframe.errors import RequestError
from cfi2sframe.sframe.model import FrameState, FunctionBody, Rule, Section

_HEADER: Final = "HBBBbbBIIIII"
#: A function's record: start, size, offset of the rows; before version 3 also their number and the info byte, in
#: version 2 the block size.
_RECORDS: Final = {1: "iIIIB", 2: "iIIIBBxx", 3: "qII"}
#: Version 3, before the rows: their number, the two info bytes, the block size.
_ATTRIBUTE: Final = "HBBB"
#: Unsigned numbers of 1, 2 and 4 bytes.
_CODES: Final = "BHI"


class EncodedRows(NamedTuple):
    """The rows of a function as bytes (version 3: with the attribute), and the fields about them.

    `repeat_size` is the block size of a PCMASK function in bytes, 0 for PCINC.
    """

    row_count: int
    info: int
    repeat_size: int
    data: bytes


class RowStore(NamedTuple):
    """The rows of all functions of a section.

    `by_function` and `offsets` have the rows of each function, and their offsets in the FRE sub-section. `stored` are
    the bytes of that sub-section, by list of rows, which are distinct if functions share them; `size` counts them.
    """

    by_function: tuple[EncodedRows, ...]
    offsets: tuple[int, ...]
    stored: tuple[bytes, ...]
    size: int

    @property
    def row_count(self) -> int:
        """The rows of all functions (`sfh_num_fres`)."""
        return sum([rows.row_count for rows in self.by_function])


def store_rows(section: Section, arch: Arch, *, share: bool) -> RowStore:
    """Return the rows of a section's functions. With `share`, functions of equal rows refer to one copy.

    Raises `RequestError` when a data word needs more than 32 bits, or the rows outgrow their 32-bit offsets.
    """
    # Most functions repeat the rows of others.
    by_function = tuple(map(cache(_RowEncoder(arch, section.version).encode), section.bodies))
    stored = tuple([rows.data for rows in by_function])
    if share:
        stored = tuple(dict.fromkeys(stored))
    *offsets, size = accumulate(map(len, stored), initial=0)
    if size >= 1 << 32:
        raise RequestError("the rows take more than 4 GiB, which no SFrame version can address")
    if share:
        offset_of = dict(zip(stored, offsets, strict=True))
        offsets = [offset_of[rows.data] for rows in by_function]
    return RowStore(by_function, tuple(offsets), stored, size)


def write_section(section: Section, arch: Arch, rows: RowStore, section_vaddr: int | None) -> bytes:
    """Return the bytes of a section at a virtual address; None: the starts are 0, as relocations will set them.

    Raises `RequestError` when a start does not fit the version's field.
    """
    version = section.version
    record = struct.Struct(arch.byte_order + _RECORDS[version])
    columns: list[Iterable[int]] = [_start_fields(section, section_vaddr), section.sizes, rows.offsets]
    if version < s.SFRAME_VERSION_3:
        columns += [[encoded.row_count for encoded in rows.by_function], [encoded.info for encoded in rows.by_function]]
    if version == s.SFRAME_VERSION_2:
        columns.append([encoded.repeat_size for encoded in rows.by_function])
    table = list(map(record.pack, *columns))
    header = struct.pack(
        arch.byte_order + _HEADER,
        s.SFRAME_MAGIC,
        version,
        (s.SFRAME_F_FDE_SORTED if section.is_sorted else 0)
        | (s.SFRAME_F_FDE_FUNC_START_PCREL if section.start_is_pcrel else 0),
        arch.abi_id,
        0,  # sfh_cfa_fixed_fp_offset: FP is tracked row by row in every ABI
        arch.fixed_ra_offset,
        0,  # sfh_auxhdr_len
        len(table),
        rows.row_count,
        rows.size,
        0,  # sfh_fdeoff
        record.size * len(table),  # sfh_freoff
    )
    return b"".join([header, *table, *rows.stored])


def row_tail(state: FrameState, arch: Arch, *, is_flexible: bool) -> bytes:
    """Return a row without its start: its info byte, and its data words of the smallest size that holds all of them.

    Raises `RequestError` when a word needs more than 32 bits.
    """
    words = _words(state, arch, is_flexible=is_flexible)
    bits = max([word.bits for word in words], default=0)
    if bits > 32:
        value = next(word.value for word in words if word.bits > 32)
        raise RequestError(f"{value} does not fit a data word of 32 bits")
    size_code = 0 if bits <= 8 else 1 if bits <= 16 else 2
    info = len(words) << s.FRE_INFO_COUNT_SHIFT | size_code << s.FRE_INFO_SIZE_SHIFT
    if not is_flexible and state.cfa is not None and state.cfa.register == arch.sp_register:
        info |= s.FRE_INFO_CFA_BASE_SP
    if state.mangled_ra:
        info |= s.FRE_INFO_MANGLED_RA
    mask = (1 << (8 << size_code)) - 1
    return struct.pack(
        f"{arch.byte_order}B{len(words)}{_CODES[size_code]}", info, *[word.value & mask for word in words]
    )


def _start_fields(section: Section, section_vaddr: int | None) -> Iterator[int]:
    """Yield the start field of each function, relative to the section or to the field itself."""
    if section_vaddr is None:
        yield from [0] * len(section.starts)
        return
    limit = 1 << (63 if section.version >= s.SFRAME_VERSION_3 else 31)
    base = section_vaddr + (s.HEADER_SIZE if section.start_is_pcrel else 0)
    step = s.FDE_SIZE[section.version] if section.start_is_pcrel else 0
    for start_vaddr in section.starts:
        field = start_vaddr - base
        if not -limit <= field < limit:
            # Addresses wrap at 64 bits, and so do distances.
            field = (field + (1 << 63)) % (1 << 64) - (1 << 63)
            if not -limit <= field < limit:
                raise RequestError(
                    f"the function at 0x{start_vaddr:x} is too far from .sframe at 0x{section_vaddr:x} "
                    f"for the 32-bit starts of version {section.version}; version 3 has 64 bits"
                )
        yield field
        base += step


class _RowEncoder:
    """Encodes the rows of a section's functions: a start, and a tail that depends on the state alone."""

    def __init__(self, arch: Arch, version: int) -> None:
        self.version = version
        order = arch.byte_order
        self._pack_attribute = struct.Struct(order + _ATTRIBUTE).pack
        self._pack_start = [struct.Struct(order + code).pack for code in _CODES]
        #: By list of states, and whether the function is flexible. Without, writing the rows of libz3 at -O0 takes 1.9
        #: times as long.
        # Not of a bound method (see `Lowering`).
        self._tails = cache(partial(_tails_of, tail_of=cache(partial(row_tail, arch=arch))))

    def encode(self, body: FunctionBody) -> EncodedRows:
        """Return the rows of a function with the smallest start fields. Raises `RequestError` as `row_tail` does."""
        last_start = body.starts[-1] if body.starts else 0
        fre_type = 0 if last_start < 1 << 8 else 1 if last_start < 1 << 16 else 2
        row_count, info = len(body.starts), fre_type
        if body.repeat_size:
            info |= s.SFRAME_FDE_PCTYPE_MASK << s.FDE_INFO_PCTYPE_SHIFT
        if body.uses_b_key:
            info |= s.FDE_INFO_PAUTH_KEY_B
        # The attribute (version 3) or nothing; then the start and the tail of each row.
        parts = [b""] * (2 * row_count + 1)
        if self.version >= s.SFRAME_VERSION_3:
            if body.is_signal_frame:
                info |= s.FDE_INFO_SIGNAL
            fde_type = s.SFRAME_FDE_TYPE_FLEX if body.is_flexible else s.SFRAME_FDE_TYPE_DEFAULT
            parts[0] = self._pack_attribute(row_count, info, fde_type, body.repeat_size)
        parts[1::2] = map(self._pack_start[fre_type], body.starts)
        parts[2::2] = self._tails(body.states, body.is_flexible)
        return EncodedRows(row_count, info, body.repeat_size, b"".join(parts))


def _tails_of(states: tuple[FrameState, ...], is_flexible: bool, tail_of: Callable[..., bytes]) -> list[bytes]:  # noqa: FBT001 - cached
    return [tail_of(state, is_flexible=is_flexible) for state in states]


class _Word(NamedTuple):
    """A data word, and the bits that it needs."""

    value: int
    bits: int


def _signed(value: int) -> _Word:
    return _Word(value, (value if value >= 0 else ~value).bit_length() + 1)


def _words(state: FrameState, arch: Arch, *, is_flexible: bool) -> list[_Word]:
    """Return the words of a row: of CFA, RA and FP (version 3, "Default" and "Flexible FDE Type Interpretation").

    A default row has one word for each, a flexible row a control word and an offset. An RA at the ABI's fixed offset
    has no word. Where FP follows an RA that has none, a 0 takes its place, except in default rows of such an ABI. The
    outermost frame has no words.
    """
    if state.cfa is None:
        return []
    fixed_ra = Rule(None, arch.fixed_ra_offset, deref=True) if arch.fixed_ra_offset else None
    words = [_control_word(state.cfa)] if is_flexible else []
    words.append(_signed((state.cfa.offset - arch.cfa_offset_bias) // arch.cfa_offset_scale))
    if state.ra is not None and state.ra != fixed_ra:
        words += _saved_words(state.ra, is_flexible=is_flexible)
    elif state.fp is not None and (is_flexible or fixed_ra is None):
        words.append(_signed(0))
    if state.fp is not None:
        words += _saved_words(state.fp, is_flexible=is_flexible)
    return words


def _saved_words(rule: Rule, *, is_flexible: bool) -> list[_Word]:
    """Return the words for RA or FP; in a default row, an odd word is a register's number (s390x, version 2)."""
    if is_flexible:
        return [_control_word(rule), _signed(rule.offset)]
    return [_signed(rule.offset if rule.register is None else rule.register << 1 | 1)]


def _control_word(rule: Rule) -> _Word:
    value = s.FLEX_DEREF_P if rule.deref else 0
    if rule.register is not None:
        value |= rule.register << s.FLEX_REG_SHIFT | s.FLEX_REG_P
    return _Word(value, value.bit_length())
