# SPDX-License-Identifier: Apache-2.0
"""Another reader's rows of the CFI against decoded SFrame rows; shares nothing with the package but its records."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from tests.support.cfi_asm import sleb128, uleb128
from tests.support.oracle.elftools_rows import Cfa, Expression, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.sframe.model import FrameState
    from cfi2sframe.sframe.model import Rule as SframeRule
    from tests.support.oracle.elftools_rows import Row

_NO_RULE: Final = Rule("undefined")


def row_at(rows: Sequence[Row], pc_vaddr: int) -> Row | None:
    """Return the last row that starts at or before an address."""
    index = bisect_right(rows, pc_vaddr, key=lambda row: row.pc_vaddr) - 1
    return rows[index] if index >= 0 else None


def difference(row: Row, state: FrameState, arch: Arch, ra_column: int) -> str | None:
    """Return how a state differs from a reader's row, or None. `ra_column` is the CIE's column of RA."""
    ra = row.registers.get(ra_column)
    if ra_column != arch.ra_register and (ra is None or ra.kind == "same_value"):
        # Not saved: RA is in the column's register.
        ra = Rule("register", ra_column)
    if (state.cfa is None) != (ra == _NO_RULE or (ra is None and arch.fixed_ra_offset != 0)):
        return f"RA is {ra}, SFrame says {state}"
    if state.cfa is None:
        return None
    if row.is_signed not in (None, state.mangled_ra) or (state.mangled_ra and not arch.ra_may_be_signed):
        return f"RA is {'' if row.is_signed else 'not '}signed, SFrame says {state}"
    fp, sp = row.registers.get(arch.fp_register), row.registers.get(arch.sp_register)
    if fp == _NO_RULE:
        return f"FP is undefined, SFrame says {state}"
    if not _is_implied_sp(sp, state.cfa, arch):
        # SFrame's CFA is another than DWARF's.
        said = state.cfa if state.cfa.deref else _moved(state.cfa, arch.sp_offset_from_cfa)
        if not _matches(sp, row.cfa, said, None, arch.sp_register):
            return f"SP is {sp}, SFrame says {state.cfa}"
    elif not _matches_cfa(row.cfa, state.cfa):
        return f"CFA is {row.cfa}, SFrame says {state.cfa}"
    if not _matches(ra, row.cfa, state.ra, state.cfa, arch.ra_register):
        return f"RA is {ra}, SFrame says {state.ra}"
    if not _matches(fp, row.cfa, state.fp, state.cfa, arch.fp_register):
        return f"FP is {fp}, SFrame says {state.fp}"
    return None


def _moved(rule: SframeRule, offset: int) -> SframeRule:
    return rule._replace(offset=rule.offset + offset)


def _matches(
    rule: Rule | None,
    cfa: Cfa | Expression | None,
    said: SframeRule | None,
    said_cfa: SframeRule | None,
    register: int,
) -> bool:
    """Whether two rules are the same after each has been put in terms of registers, where its CFA is a sum."""
    if said is not None and said.register is None and said_cfa is not None and not said_cfa.deref:
        said = _moved(said._replace(register=said_cfa.register), said_cfa.offset)
    if said == (register, 0, False):
        said = None
    if rule is None or rule.kind in ("undefined", "same_value") or rule == Rule("register", register):
        return said is None
    if rule.kind == "register":
        return said == (rule.value, 0, False)
    if rule.kind in ("at_cfa", "cfa_plus"):
        is_loaded = rule.kind == "at_cfa"
        if not isinstance(cfa, Cfa):
            return said == (None, rule.value, is_loaded)
        own = cfa.register, cfa.offset + rule.value, is_loaded
        return said == (None if own == (register, 0, False) else own)
    if said is None or (rule.kind == "at_expression" and not said.deref):
        return False
    # An address is loaded from by SFrame's rule.
    return _is_value(rule.code, said._replace(deref=False) if rule.kind == "at_expression" else said)


def _is_implied_sp(sp: Rule | None, cfa: SframeRule, arch: Arch) -> bool:
    """Whether an SP rule is no other than SFrame's own: the CFA, and the constant of the ABI."""
    if sp is None or sp == Rule("cfa_plus", arch.sp_offset_from_cfa):
        return True
    if arch.sp_offset_from_cfa:
        # s390x saves SP with the other registers; the ABI defines the CFA by it all the same.
        return sp.kind == "at_cfa" or (sp.kind == "register" and cfa.register in (arch.sp_register, arch.fp_register))
    return sp.kind == "at_expression" and cfa.deref and _is_value(sp.code, cfa._replace(deref=False))


def _matches_cfa(cfa: Cfa | Expression | None, said: SframeRule) -> bool:
    if isinstance(cfa, Expression):
        return _is_value(cfa.code, said)
    return cfa is not None and said == (cfa.register, cfa.offset, False)


def _is_value(code: bytes | None, said: SframeRule) -> bool:
    """Whether an expression is the plainest one for a rule's value; where the reader does not tell it, any is."""
    if code is None:
        return True
    if said.register is None:
        plain = b"\x23" + uleb128(said.offset)
    else:
        plain = bytes((0x70 + said.register,)) + sleb128(said.offset)
    return code == plain + b"\x06" * said.deref


def is_plain(row: Row, arch: Arch) -> bool:
    """Whether every version of SFrame has a default row for this: nothing could excuse leaving it out."""
    ra, fp = row.registers.get(arch.ra_register), row.registers.get(arch.fp_register)
    if arch.fixed_ra_offset:
        ra_is_plain = ra == Rule("at_cfa", arch.fixed_ra_offset)
    elif ra is None:
        # FP without RA takes s390x's padding word.
        ra_is_plain = arch.pads_ra or fp is None or fp.kind != "at_cfa"
    else:
        ra_is_plain = ra.kind == "at_cfa"
    sp = row.registers.get(arch.sp_register)
    return (
        isinstance(row.cfa, Cfa)
        and row.cfa.register in (arch.fp_register, arch.sp_register)
        and (row.cfa.offset - arch.cfa_offset_bias) % arch.cfa_offset_scale == 0
        and ra_is_plain
        and (fp is None or fp.kind in ("same_value", "at_cfa"))
        and (sp is None or (arch.sp_offset_from_cfa != 0 and sp.kind == "at_cfa"))
    )


def is_hard_to_say(row: Row, arch: Arch) -> bool:
    """Whether a row holds what version 3 may be unable to express: an expression, or on s390x an SP that is loaded."""
    numbers = (arch.ra_register, arch.fp_register, arch.sp_register)
    rules = [row.registers.get(number, _NO_RULE) for number in numbers]
    return isinstance(row.cfa, Expression) or any(rule.kind in ("at_expression", "expression") for rule in rules)
