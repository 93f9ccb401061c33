# SPDX-License-Identifier: Apache-2.0
"""A row as GNU as keeps it, and the bytes of the data words that it writes for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.sframe.constants import FLEX_REG_SHIFT

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch

#: Sizes of a data word in bytes, and the largest number that the assembler puts into one.
_WORD_LIMITS: Final = ((1, 0x7F), (2, 0x7FFF), (4, 0x7FFFFFFF))


class GasTarget(NamedTuple):
    """An ABI, and the SFrame version that the assembler writes for it."""

    arch: Arch
    version: int

    @property
    def tracks_ra(self) -> bool:
        """Whether rows have an offset for RA."""
        return not self.arch.fixed_ra_offset

    @property
    def has_flexible_rows(self) -> bool:
        """Whether the assembler writes flexible rows: in version 3, except for AArch64."""
        return self.version >= 3 and (self.arch.pads_ra or not self.tracks_ra)


class Saved(NamedTuple):
    """The rule of RA or FP: none, on the stack at CFA + `offset`, or given by a register."""

    where: Literal["none", "stack", "register"] = "none"
    offset: int = 0
    register: int | None = None


NOWHERE: Final = Saved()


class GasRow(NamedTuple):
    """The fields of the assembler's row that decide sizes. `cfa_register` is None until a directive sets it."""

    cfa_register: int | None = None
    cfa_offset: int = 0
    fp: Saved = NOWHERE
    ra: Saved = NOWHERE
    ra_is_undefined: bool = False


class GasFunction(NamedTuple):
    """A function as assembled. `word_sizes` has pairs: bytes of a row's data words, and the number of such rows."""

    row_count: int
    is_flexible: bool
    word_sizes: tuple[tuple[int, int], ...]


class Assembled(NamedTuple):
    """A function as assembled, and where its rows begin, in units of the code alignment from its start."""

    function: GasFunction
    row_starts: tuple[int, ...]


def words_size(row: GasRow, gas: GasTarget, *, is_flexible: bool) -> int:
    """Return the bytes of a row's data words: their number times the size of the widest."""
    if row.ra_is_undefined:
        return 0
    if is_flexible:
        return _flexible_count(row) * _flexible_width(row, gas)
    offsets = [_stored_cfa_offset(row, gas)]
    if gas.tracks_ra:
        if row.ra.where == "stack":
            offsets.append(row.ra.offset)
        elif row.fp.where == "stack" and gas.arch.pads_ra:
            offsets.append(0)
    if row.fp.where == "stack":
        offsets.append(row.fp.offset)
    return len(offsets) * max(_signed_width(offset, gas) for offset in offsets)


def _stored_cfa_offset(row: GasRow, gas: GasTarget) -> int:
    return (row.cfa_offset - gas.arch.cfa_offset_bias) // gas.arch.cfa_offset_scale


def _flexible_count(row: GasRow) -> int:
    """Return the number of data words: two each for CFA, RA and FP, one of padding for an RA without a rule."""
    fp = 0 if row.fp.where == "none" else 2
    return 2 + (2 if row.ra.where != "none" else 1 if fp else 0) + fp


def _flexible_width(row: GasRow, gas: GasTarget) -> int:
    """Return the word size that the assembler chooses, which looks at some of the words only."""
    widths = [_signed_width(_stored_cfa_offset(row, gas), gas), _control_width(row.cfa_register)]
    if row.fp.where == "stack":
        widths.append(_signed_width(row.fp.offset, gas))
    if row.ra.where == "stack" and gas.tracks_ra:
        widths.append(_signed_width(row.ra.offset, gas))
    widths += [_control_width(saved.register) for saved in (row.ra, row.fp) if saved.where == "register"]
    return max(widths)


def _signed_width(value: int, gas: GasTarget) -> int:
    """Return the word size for a number. Before version 3 the lowest number of a size was not used: -128 took two."""
    spare = 1 if gas.version >= 3 else 0
    return next((size for size, limit in _WORD_LIMITS if -limit - spare <= value <= limit), 4)


def _control_width(register: int | None) -> int:
    if register is None:
        return 4
    return 1 if register < 1 << (8 - FLEX_REG_SHIFT) else 2
