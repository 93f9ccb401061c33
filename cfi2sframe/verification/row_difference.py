# SPDX-License-Identifier: Apache-2.0
"""Compare an SFrame row with a row of the DWARF table, and the attributes of a function with those of a CIE.

Values are compared, not rules: the caller's SP, RA and FP by either row, in terms of this frame's registers and of
memory. So equality of rules is decided without `lower` and `reduce`.
"""

from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.expression import Expression, value_of
from cfi2sframe.dwarf.rules import NoCfa, NoRule, RaSigning, RegisterRule, RowState, describe_cfa, describe_rule
from cfi2sframe.sframe.model import FrameState
from cfi2sframe.verification.section_column import FoundState

_WORD: Final = 1 << 64


class RowValue(NamedTuple):
    """A register of this frame plus `offsets[0]`; for each further offset, what is saved there plus that offset.

    Offsets are words, modulo 2**64, so that equal values have equal records.
    """

    register: int
    offsets: tuple[int, ...]

    def plus(self, offset: int) -> "RowValue":
        """Return the sum with a number."""
        return RowValue(self.register, (*self.offsets[:-1], (self.offsets[-1] + offset) % _WORD))

    def load(self) -> "RowValue":
        """Return what is saved at this address."""
        return RowValue(self.register, (*self.offsets, 0))


def row_difference(truth: RowState, state: FrameState | None, arch: Arch) -> str | None:
    """Return how a state of the section (None: no row) differs from a row of the DWARF table; None: not at all."""
    if state is None:
        return "no row is in force"
    if truth.ra is NoRule.UNDEFINED:
        return None if state.cfa is None else "RA is undefined, but the row has a caller"
    if state.cfa is None:
        return "the row is an outermost frame, but RA is defined"
    cfa = cfa_of(truth, arch)
    cfa_of_row = value_by_rule(state.cfa, None, arch.sp_register, arch)
    text = state.cfa.text(arch)
    if cfa is None:
        return f"CFA is {describe_cfa(truth.cfa, arch)}, the row has {text}"
    sp = sp_of_caller(truth, cfa, arch)
    if sp is None or cfa_of_row is None or cfa_of_row.plus(arch.sp_offset_from_cfa) != sp:
        if sp == cfa.plus(arch.sp_offset_from_cfa):
            return f"CFA is {describe_cfa(truth.cfa, arch)}, the row has {text}"
        constant = f"{arch.sp_offset_from_cfa:+d}" if arch.sp_offset_from_cfa else ""
        return f"SP is {describe_rule(truth.sp, arch)}, the row has {text}{constant}"
    for name, rule, rule_of_row, register in (
        ("RA", truth.ra, state.ra, arch.ra_register),
        ("FP", truth.fp, state.fp, arch.fp_register),
    ):
        value = value_by_rule(rule, cfa, register, arch)
        if value is None or value != value_by_rule(rule_of_row, cfa_of_row, register, arch):
            text = "unchanged" if rule_of_row is None else rule_of_row.text(arch)
            return f"{name} is {describe_rule(rule, arch)}, the row has {text}"
    if truth.signing is not (RaSigning.SIGNED if state.mangled_ra else RaSigning.NONE):
        return f"RA is {truth.signing.name.lower()}, the row has {'signed' if state.mangled_ra else 'none'}"
    return None


def attribute_difference(cie: DwarfCie, function: FoundState, version: int) -> str | None:
    """Return how the attributes of a function of the section differ from a CIE's; None: not at all.

    Where a row has no signed RA, the key has no effect, and assemblers differ in it.
    """
    signs_ra = function.state is not None and function.state.mangled_ra
    if version >= SFRAME_VERSION_3 and cie.is_signal_frame != function.is_signal_frame:
        return "a signal frame that is not marked as one" if cie.is_signal_frame else "marked as a signal frame"
    if signs_ra and cie.uses_b_key != function.uses_b_key:
        keys = ("B", "A") if cie.uses_b_key else ("A", "B")
        return f"RA is signed with key {keys[0]}, the function has {keys[1]}"
    return None


def cfa_of(truth: RowState, arch: Arch) -> RowValue | None:
    """Return the CFA of a row of the DWARF table; None where it has none, or one that is neither a sum nor its load."""
    rule = truth.cfa
    return None if rule is None or isinstance(rule, NoCfa) else value_by_rule(rule, None, arch.sp_register, arch)


def value_by_rule(rule: RegisterRule | None, cfa: RowValue | None, own_register: int, arch: Arch) -> RowValue | None:
    """Return the caller's value of a register by a rule of either format; without a rule the register keeps it.

    None where the value is lost, is neither a sum nor its load, or counts from an unknown CFA.
    """
    if isinstance(rule, Expression):
        simple = value_of(rule.code, arch.byte_order, starts_with_cfa=cfa is not None)
        value = value_by_rule(simple, cfa, own_register, arch) if isinstance(simple, Rule) else None
        return value.load() if value is not None and rule.deref else value
    if not isinstance(rule, Rule):
        return None if rule is NoRule.UNDEFINED else RowValue(own_register, (0,))
    base = cfa if rule.register is None else RowValue(rule.register, (0,))
    if base is None:
        return None
    return base.plus(rule.offset).load() if rule.deref else base.plus(rule.offset)


def sp_of_caller(truth: RowState, cfa: RowValue, arch: Arch) -> RowValue | None:
    """Return the caller's SP by the CFI; None as in `value_by_rule`."""
    of_abi = cfa.plus(arch.sp_offset_from_cfa)
    if arch.sp_offset_from_cfa and isinstance(truth.sp, Rule):
        # Where the ABI defines the CFA by SP (s390x), an SP that was saved in the stack frame is that same value.
        is_in_frame = cfa.register in (arch.sp_register, arch.fp_register)
        if truth.sp.is_saved_at_cfa or (truth.sp.is_register and is_in_frame):
            return of_abi
    return of_abi if truth.sp is NoRule.UNSPECIFIED else value_by_rule(truth.sp, cfa, arch.sp_register, arch)
