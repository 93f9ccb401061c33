# SPDX-License-Identifier: Apache-2.0
"""A function's rows to bytes: the smallest FRE type that holds its last start, the smallest data words for each row.

A row consists of its start and a tail: an info byte and data words. Most rows differ in their starts only, so tails are
encoded once for each distinct state.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import Rule

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import FrameState, FunctionBody

_WORD_SIZES: Final = (1, 2, 4)
_WORD_CODES: Final = ("b", "h", "i")
#: Encoded starts of one byte, which most functions have.
_ONE_BYTE_STARTS: Final = tuple(bytes((start,)) for start in range(256))


class PlannedState(NamedTuple):
    """A row without its start: the info byte, and the words as stored (signed), of `1 << size_code` bytes each."""

    info: int
    size_code: int
    words: tuple[int, ...]


class PlannedBody(NamedTuple):
    """A function's rows as bytes, in version 3 after their attribute, and the fields for its record.

    `info` and `info2` are the info bytes of the record (version 3: of the attribute). `repeat_size` is the block size
    of a PCMASK function in bytes, 0 for PCINC.
    """

    fre_type: int
    info: int
    info2: int
    repeat_size: int
    row_count: int
    data: bytes


class BodyPlanner:
    """Plans and encodes the functions of one section."""

    def __init__(self, arch: Arch, version: int) -> None:
        self.arch = arch
        self.version = version
        order = arch.byte_order
        self._pack_attribute = struct.Struct(order + "HBBB").pack
        self._pack_start: tuple[Callable[[int], bytes], ...] = (
            _ONE_BYTE_STARTS.__getitem__,
            struct.Struct(order + "H").pack,
            struct.Struct(order + "I").pack,
        )
        self._default_tails = self._tails(is_flexible=False)
        self._flexible_tails = self._tails(is_flexible=True)

    def plan(self, body: FunctionBody) -> PlannedBody:
        """Decide a function's widths and encode its rows. Raises `RequestError` when a word needs more than 32 bits."""
        starts = body.starts
        last_start = starts[-1] if starts else 0
        fre_type = 0 if last_start < 0x100 else 1 if last_start < 0x10000 else 2
        info, info2 = self._info_bytes(body, fre_type)
        row_count = len(starts)
        # The attribute (version 3) or nothing; then the start and the tail of each row.
        parts = [b""] * (2 * row_count + 1)
        if self.version >= s.SFRAME_VERSION_3:
            parts[0] = self._pack_attribute(row_count, info, info2, body.repeat_size)
        parts[1::2] = map(self._pack_start[fre_type], starts)
        parts[2::2] = (self._flexible_tails if body.is_flexible else self._default_tails)[body.states]
        return PlannedBody(fre_type, info, info2, body.repeat_size, row_count, b"".join(parts))

    def _tails(self, *, is_flexible: bool) -> IdentityMap[tuple[FrameState, ...], list[bytes]]:
        """Return a map from the states of rows to their tails."""

        def tail_of(state: FrameState) -> bytes:
            return encode_state(plan_state(state, self.arch, is_flexible=is_flexible), self.arch)

        tails = IdentityMap(tail_of)
        return IdentityMap(lambda states: list(map(tails.__getitem__, states)))

    def _info_bytes(self, body: FunctionBody, fre_type: int) -> tuple[int, int]:
        info = fre_type
        if body.repeat_size:
            info |= s.SFRAME_FDE_PCTYPE_MASK << s.FDE_INFO_PCTYPE_SHIFT
        if body.uses_b_key:
            info |= s.FDE_INFO_PAUTH_KEY_B
        if body.is_signal_frame and self.version >= s.SFRAME_VERSION_3:
            info |= s.FDE_INFO_SIGNAL
        return info, s.SFRAME_FDE_TYPE_FLEX if body.is_flexible else s.SFRAME_FDE_TYPE_DEFAULT


def plan_state(state: FrameState, arch: Arch, *, is_flexible: bool) -> PlannedState:
    """Return a row without its start, with the smallest words. Raises `RequestError` when one exceeds 32 bits."""
    words, code = _words(state, arch, is_flexible=is_flexible)
    info = len(words) << s.FRE_INFO_COUNT_SHIFT | code << s.FRE_INFO_SIZE_SHIFT
    if not is_flexible and state.cfa is not None and state.cfa.register == arch.sp_register:
        info |= s.FRE_INFO_CFA_BASE_SP
    if state.mangled_ra:
        info |= s.FRE_INFO_MANGLED_RA
    return PlannedState(info, code, words)


def encode_state(state: PlannedState, arch: Arch) -> bytes:
    """Return a row's tail: its info byte and data words."""
    form = f"{arch.byte_order}B{len(state.words)}{_WORD_CODES[state.size_code]}"
    return struct.pack(form, state.info, *state.words)


def words_size(state: FrameState, arch: Arch, *, is_flexible: bool) -> int:
    """Return the bytes of a row's data words. Raises `RequestError` when a word needs more than 32 bits."""
    words, code = _words(state, arch, is_flexible=is_flexible)
    return len(words) << code


def _words(state: FrameState, arch: Arch, *, is_flexible: bool) -> tuple[tuple[int, ...], int]:
    """Return a row's data words as signed numbers, and the code of their size."""
    if is_flexible:
        return _flexible_words(state, arch)
    words = _default_words(state, arch)
    return words, max(map(_signed_code, words), default=0)


def _signed_code(word: int) -> int:
    """Return the smallest data word size code that holds a signed number."""
    for code, size in enumerate(_WORD_SIZES):
        if -(1 << (8 * size - 1)) <= word < 1 << (8 * size - 1):
            return code
    raise RequestError(f"{word} does not fit a data word of 32 bits")


def _unsigned_code(word: int) -> int:
    """Return the smallest data word size code that holds an unsigned number."""
    for code, size in enumerate(_WORD_SIZES):
        if 0 <= word < 1 << (8 * size):
            return code
    raise RequestError(f"{word} does not fit a data word of 32 bits")


def _cfa_word(rule: Rule, arch: Arch) -> int:
    return (rule.offset - arch.cfa_offset_bias) // arch.cfa_offset_scale


def _default_words(state: FrameState, arch: Arch) -> tuple[int, ...]:
    """Return the words of a default row (version 3, "Default FDE Type Interpretation"); none in the outermost frame."""
    if state.cfa is None:
        return ()
    cfa = _cfa_word(state.cfa, arch)
    if arch.fixed_ra_offset:
        return (cfa,) if state.fp is None else (cfa, state.fp.offset)
    if state.fp is not None:
        return (cfa, _saved_word(state.ra), _saved_word(state.fp))
    return (cfa,) if state.ra is None else (cfa, _saved_word(state.ra))


def _saved_word(rule: Rule | None) -> int:
    """Return the word for a saved RA or FP: 0 is padding, an odd word is a register's number (s390x, version 2)."""
    if rule is None:
        return 0
    return rule.offset if rule.register is None else rule.register << 1 | 1


def _flexible_words(state: FrameState, arch: Arch) -> tuple[tuple[int, ...], int]:
    """Return the words of a flexible row as signed numbers, and the code of their size.

    Version 3, "Flexible FDE Type Interpretation": pairs of an unsigned control word and a signed offset. An RA at the
    ABI's fixed offset needs no word, or the padding word when FP follows.
    """
    if state.cfa is None:
        return (), 0
    fixed_ra = Rule(None, arch.fixed_ra_offset, deref=True) if arch.fixed_ra_offset else None
    pairs: list[tuple[int, int] | None] = [(_control_word(state.cfa), _cfa_word(state.cfa, arch))]
    if state.ra is not None and state.ra != fixed_ra:
        pairs.append((_control_word(state.ra), state.ra.offset))
    elif state.fp is not None:
        pairs.append(None)
    if state.fp is not None:
        pairs.append((_control_word(state.fp), state.fp.offset))
    code = max(max(_unsigned_code(pair[0]), _signed_code(pair[1])) for pair in pairs if pair)
    bits = 8 << code
    words: list[int] = []
    for pair in pairs:
        if pair is None:
            words.append(0)
        else:
            # The control word is unsigned: as a signed number of the same bits, a large one is negative.
            words += (pair[0] - (1 << bits) if pair[0] >> (bits - 1) else pair[0], pair[1])
    return tuple(words), code


def _control_word(rule: Rule) -> int:
    word = s.FLEX_DEREF_P if rule.deref else 0
    return word if rule.register is None else word | rule.register << s.FLEX_REG_SHIFT | s.FLEX_REG_P
