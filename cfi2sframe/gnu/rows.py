# SPDX-License-Identifier: Apache-2.0
"""A row as GNU as has it in mind, and the bytes that its data words take."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.sframe.constants import FLEX_REG_SHIFT

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch

#: Data word sizes, and the largest number that the assembler puts into one.
_WORD_LIMITS: Final = ((1, 0x7F), (2, 0x7FFF), (4, 0x7FFFFFFF))


class Gas(NamedTuple):
    """What the assemblers that write an SFrame version do for an ABI."""

    arch: Arch
    version: int

    @property
    def tracks_ra(self) -> bool:
        """Whether rows say where RA is."""
        return not self.arch.fixed_ra_offset

    @property
    def has_flexible_rows(self) -> bool:
        """Whether it writes flexible rows: version 3, and not for AArch64."""
        return self.version >= 3 and (self.arch.pads_ra or not self.tracks_ra)


class Saved(NamedTuple):
    """Where RA or FP is: nowhere in particular, on the stack at CFA + offset, or given by a register."""

    where: Literal["none", "stack", "register"] = "none"
    offset: int = 0
    register: int | None = None


NOWHERE: Final = Saved()


class GasRow(NamedTuple):
    """What the assembler remembers of a row, as far as it decides sizes. `cfa_register` None: none yet."""

    cfa_register: int | None = None
    cfa_offset: int = 0
    fp: Saved = NOWHERE
    ra: Saved = NOWHERE
    ra_is_undefined: bool = False


class GasFunction(NamedTuple):
    """A function as assembled: for each row the bytes of its data words. `word_sizes` counts equal rows."""

    row_count: int
    is_flexible: bool
    word_sizes: tuple[tuple[int, int], ...]


def words_size(row: GasRow, gas: Gas, *, is_flexible: bool) -> int:
    """Return the bytes of a row's data words: their number times the size of the widest."""
    if row.ra_is_undefined:
        return 0
    if is_flexible:
        return _flexible_count(row) * _flexible_width(row, gas)
    arch = gas.arch
    offsets = [(row.cfa_offset - arch.cfa_offset_bias) // arch.cfa_offset_scale]
    if gas.tracks_ra:
        if row.ra.where == "stack":
            offsets.append(row.ra.offset)
        elif row.fp.where == "stack" and arch.pads_ra:
            offsets.append(0)
    if row.fp.where == "stack":
        offsets.append(row.fp.offset)
    return len(offsets) * max(_signed_width(offset, gas) for offset in offsets)


def _flexible_count(row: GasRow) -> int:
    fp = 0 if row.fp.where == "none" else 2
    return 2 + (2 if row.ra.where != "none" else 1 if fp else 0) + fp


def _flexible_width(row: GasRow, gas: Gas) -> int:
    """Return the size that the assembler chooses: it looks at some of the words, not at all of them."""
    arch = gas.arch
    widths = [_signed_width((row.cfa_offset - arch.cfa_offset_bias) // arch.cfa_offset_scale, gas)]
    widths.append(_control_width(row.cfa_register))
    if row.fp.where == "stack":
        widths.append(_signed_width(row.fp.offset, gas))
    if row.ra.where == "stack" and gas.tracks_ra:
        widths.append(_signed_width(row.ra.offset, gas))
    widths += [_control_width(saved.register) for saved in (row.ra, row.fp) if saved.where == "register"]
    return max(widths)


def _signed_width(value: int, gas: Gas) -> int:
    """Return the size for a number. Before version 3 no use was made of the lowest one: -128 took two bytes."""
    spare = 1 if gas.version >= 3 else 0
    return next((size for size, limit in _WORD_LIMITS if -limit - spare <= value <= limit), 4)


def _control_width(register: int | None) -> int:
    if register is None:
        return 4
    return 1 if register < 1 << (8 - FLEX_REG_SHIFT) else 2
