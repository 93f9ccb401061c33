# SPDX-License-Identifier: Apache-2.0
"""What a row's info byte and data words mean (version 3, 3): the part of decoding that knows the rules of ABIs.

Shares only constants and the model with the encoder.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import FrameState, Rule

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch

#: The `where` of errors.
WHERE: Final = ".sframe"
_WORD_CODES: Final = "bhi"


class RowTail(NamedTuple):
    """A row without its start: its meaning, and its info byte and data words as stored (words signed)."""

    state: FrameState
    info: int
    word_size: int
    words: tuple[int, ...]


class TailReader:
    """Reads the tails of one section's rows. A fixed offset (from the CFA) of 0 means that there is none."""

    def __init__(
        self, byte_order: Literal["<", ">"], arch: Arch, *, fixed_ra_offset: int, fixed_fp_offset: int
    ) -> None:
        self._order = byte_order
        self._arch = arch
        self._fixed_ra = _fixed_rule(fixed_ra_offset)
        self._fixed_fp = _fixed_rule(fixed_fp_offset)

    def read(self, data: bytes, fde_type: int, offset: int) -> RowTail:
        """Return the meaning of the bytes of an info byte and its data words.

        Raises `SFrameError`, at the row's `offset` in the section, when they have none.
        """
        info = data[0]
        count = info >> s.FRE_INFO_COUNT_SHIFT & s.FRE_INFO_COUNT_MASK
        size_code = info >> s.FRE_INFO_SIZE_SHIFT & s.FRE_INFO_SIZE_MASK
        if size_code == len(_WORD_CODES):
            raise SFrameError("data word size 3 is unknown", WHERE, offset)
        words = struct.unpack_from(f"{self._order}{count}{_WORD_CODES[size_code]}", data, 1)
        word_size = 1 << size_code
        if not words:
            state: FrameState | None = FrameState(None)
        elif fde_type == s.SFRAME_FDE_TYPE_FLEX:
            state = self._flexible_state(words, word_size)
        else:
            state = self._default_state(words, info)
        if state is None:
            raise SFrameError(f"a row's {count} data words have no meaning", WHERE, offset)
        return RowTail(state._replace(mangled_ra=bool(info & s.FRE_INFO_MANGLED_RA)), info, word_size, words)

    def _default_state(self, words: tuple[int, ...], info: int) -> FrameState | None:
        """Interpret the words of a default row (version 3, 3.1): CFA, RA unless it is fixed, FP unless it is fixed.

        Returns None when there are more words.
        """
        base = self._arch.sp_register if info & s.FRE_INFO_CFA_BASE_SP else self._arch.fp_register
        cfa = Rule(base, self._cfa_offset(words[0]), deref=False)
        rest = list(words[1:])
        ra, fp = self._fixed_ra, self._fixed_fp
        if rest and ra is None:
            ra = self._saved(rest.pop(0))
        if rest and fp is None:
            fp = self._saved(rest.pop(0))
        return None if rest else FrameState(cfa, ra, fp)

    def _saved(self, word: int) -> Rule | None:
        """Interpret the word of a saved RA or FP; on s390x, 0 is padding and an odd word has a register's number."""
        if self._arch.pads_ra and word & 1:
            return Rule((word & 0xFFFFFFFF) >> 1, 0, deref=False)
        if self._arch.pads_ra and word == 0:
            return None
        return Rule(None, word, deref=True)

    def _flexible_state(self, words: tuple[int, ...], word_size: int) -> FrameState | None:
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
        return FrameState(cfa._replace(offset=self._cfa_offset(cfa.offset)), ra or self._fixed_ra, fp or self._fixed_fp)

    def _cfa_offset(self, word: int) -> int:
        """Return the CFA's offset in bytes from its data word."""
        return word * self._arch.cfa_offset_scale + self._arch.cfa_offset_bias


def _fixed_rule(offset: int) -> Rule | None:
    """Return the rule of a register that every frame saves at the same offset from the CFA; 0: none does."""
    return Rule(None, offset, deref=True) if offset else None
