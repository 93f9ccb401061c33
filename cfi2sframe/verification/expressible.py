# SPDX-License-Identifier: Apache-2.0
"""Rows of a version of SFrame for rows of the DWARF table, by the values of their CFA, RA and FP, where it has them.

The specification's rows (version 3, 2.3.2 and 2.3.3; version 2, 2.3.2): a default row has a CFA that counts from SP or
FP, and RA and FP saved at distances from the CFA; a flexible one any register plus a number, or what is saved there.
"""

from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants.sframe import FLEX_REG_SHIFT, SFRAME_VERSION_2, SFRAME_VERSION_3
from cfi2sframe.dwarf.expression import Expression, value_of
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.sframe.model import OUTERMOST, FrameState, Rule
from cfi2sframe.verification.row_difference import RowValue, cfa_of, sp_of_caller, value_by_rule

_NUMBER: Final = 1 << 31


class Row(NamedTuple):
    """The state that SFrame has for a row, and whether only a flexible row can express it."""

    state: FrameState
    is_flexible: bool = False


def row_for(truth: RowState, arch: Arch, version: int, errata: int) -> Row | None:
    """Return the row that a version (2: with an errata level) has for one of the DWARF table; None: it has none."""
    has_flexible = version >= SFRAME_VERSION_3
    if truth.ra is NoRule.UNDEFINED:
        return Row(OUTERMOST) if has_flexible or (version == SFRAME_VERSION_2 and errata >= 2) else None
    if truth.signing in (RaSigning.SIGNED_WITH_PC, RaSigning.UNKNOWN):
        return None
    dwarf_cfa = cfa_of(truth, arch)
    sp = None if dwarf_cfa is None else sp_of_caller(truth, dwarf_cfa, arch)
    if dwarf_cfa is None or sp is None:
        return None
    cfa_value = sp.plus(-arch.sp_offset_from_cfa)
    cfa = _absolute(cfa_value)
    saved: list[Rule | None] = []
    for rule, own in ((truth.ra, arch.ra_register), (truth.fp, arch.fp_register)):
        value = value_by_rule(rule, dwarf_cfa, own, arch)
        if value is None:
            return None
        # Only a rule that counts from the same CFA, or from one that differs by a number, counts from SFrame's.
        is_near = cfa_value == dwarf_cfa or not (cfa_value.offsets[1:] or dwarf_cfa.offsets[1:])
        saved_rule = _relative(value, cfa_value) if is_near and _counts_from_cfa(rule, arch) else None
        saved_rule = saved_rule or _absolute(value)
        if saved_rule is None:
            return None
        saved.append(None if saved_rule == Rule(own, 0, deref=False) else saved_rule)
    ra, fp = saved
    if cfa is None or (ra is None and arch.fixed_ra_offset) or not _fits(cfa, ra, fp, arch):
        return None
    state = FrameState(cfa, ra, fp, mangled_ra=truth.signing is RaSigning.SIGNED)
    if _is_default(cfa, ra, fp, arch, has_registers=version == SFRAME_VERSION_2 and arch.pads_ra):
        return Row(state)
    return Row(state, is_flexible=True) if has_flexible else None


def _counts_from_cfa(rule: RegisterRule, arch: Arch) -> bool:
    simple = value_of(rule.code, arch.byte_order, starts_with_cfa=True) if isinstance(rule, Expression) else rule
    return isinstance(simple, Rule) and simple.register is None


def _absolute(value: RowValue) -> Rule | None:
    """Return a register plus a number, or what is saved there; None for any other value."""
    first, *others = value.offsets
    return Rule(value.register, _signed(first), deref=bool(others)) if others in ([], [0]) else None


def _relative(value: RowValue, cfa: RowValue) -> Rule | None:
    """Return what is saved at a distance from the CFA; None for any other value."""
    if value.register != cfa.register or len(value.offsets) != len(cfa.offsets) + 1:
        return None
    *loads, at, last = value.offsets
    is_saved = last == 0 and loads == list(cfa.offsets[:-1])
    return Rule(None, _signed(at - cfa.offsets[-1]), deref=True) if is_saved else None


def _signed(number: int) -> int:
    return (number + (1 << 63)) % (1 << 64) - (1 << 63)


def _fits(cfa: Rule, ra: Rule | None, fp: Rule | None, arch: Arch) -> bool:
    """Return whether data words of 32 bits hold offsets and registers; the CFA's offset is stored in units."""
    units, rest = divmod(cfa.offset - arch.cfa_offset_bias, arch.cfa_offset_scale)
    numbers = [units, *[rule.offset for rule in (ra, fp) if rule is not None]]
    registers = [rule.register or 0 for rule in (cfa, ra, fp) if rule is not None]
    return not rest and all(-_NUMBER <= n < _NUMBER for n in numbers) and max(registers) < 1 << (32 - FLEX_REG_SHIFT)


def _is_default(cfa: Rule, ra: Rule | None, fp: Rule | None, arch: Arch, *, has_registers: bool) -> bool:
    """Return whether a default row has these rules; with `has_registers`, its words may name registers."""

    def has_word(rule: Rule) -> bool:
        if rule.register is not None:
            return has_registers and rule.is_register and rule.register < len(arch.registers)
        # 0 means that nothing is saved, and where words may name registers, odd numbers do.
        return bool(rule.offset) and not (arch.pads_ra and rule.offset % 2)

    if cfa.deref or cfa.register not in (arch.sp_register, arch.fp_register) or (fp and not has_word(fp)):
        return False
    if arch.fixed_ra_offset:
        return ra == Rule(None, arch.fixed_ra_offset, deref=True)
    # FP's word comes after RA's, which only some ABIs can leave empty.
    return has_word(ra) if ra else fp is None or arch.pads_ra
