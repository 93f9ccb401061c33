# SPDX-License-Identifier: Apache-2.0
"""An outside tool's rows against decoded SFrame rows; shares nothing with the package but its records."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from cfi2sframe.arch import AMD64
from cfi2sframe.sframe.dump import row_texts
from tests.support.oracle.frames import Expression, NoCfa, RegisterOffset, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState
    from cfi2sframe.sframe.model import Rule as SframeRule
    from tests.support.oracle.frames import OracleRow
    from tests.support.oracle.readelf_sframe import OracleSframeFunction

_AMD64_NAMES: Final = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)), "RIP")
#: DWARF number of AArch64's pseudo register for the state of RA.
RA_SIGN_STATE: Final = 34
_UNSAID: Final = Rule("undefined")
_SIGNED: Final = Rule("constant", 1)


def row_at(rows: Sequence[OracleRow], pc_vaddr: int) -> OracleRow | None:
    """Return the last row that starts at or before an address."""
    index = bisect_right(rows, pc_vaddr, key=lambda row: row.pc_vaddr) - 1
    return rows[index] if index >= 0 else None


def difference(
    row: OracleRow, state: FrameState, *, shows_unsaid: bool, arch: Arch = AMD64, ra_column: int | None = None
) -> str | None:
    """Return how a state differs from a tool's row, or None.

    `shows_unsaid`: the tool tells "undefined" from "no rule given", and shows whether RA is signed (llvm-dwarfdump
    does, readelf does not). Where the tool does not print an expression, anything matches. `ra_column` is the CIE's.
    """
    ra = row.registers.get(arch.ra_register)
    if ra_column not in (None, arch.ra_register):
        ra = row.registers.get(ra_column, _UNSAID)
        if ra.kind == "same_value" or (ra == _UNSAID and not (shows_unsaid and ra_column in row.registers)):
            # Not saved: RA is in the column's register.
            ra = Rule("register", ra_column)
    is_undefined = ra is not None and ra.kind == "undefined"
    if arch.fixed_ra_offset and ra is None:
        is_undefined = True
    if state.cfa is None:
        # "u" of readelf may mean that no rule was given, which is usual where RA stays in its register.
        return None if is_undefined or (ra is None and not shows_unsaid) else f"SFrame says outermost, the row is {row}"
    if is_undefined and (arch.fixed_ra_offset or shows_unsaid):
        return f"RA is undefined, SFrame says {state}"
    problem = _signing_problem(row, state, shows_unsaid=shows_unsaid, arch=arch)
    if problem is not None:
        return problem
    fp = row.registers.get(arch.fp_register)
    if fp is not None and fp.kind == "undefined" and shows_unsaid:
        return f"FP is undefined, SFrame says {state}"
    sp = row.registers.get(arch.sp_register)
    if sp is not None and not _is_implied_sp(sp, state.cfa, shows_unsaid=shows_unsaid, arch=arch):
        # SFrame's CFA is another than DWARF's.
        said = state.cfa if state.cfa.deref else _moved(state.cfa, arch.sp_offset_from_cfa)
        if not _matches_by_registers(sp, row.cfa, said, None, arch.sp_register, arch):
            return f"SP is {sp}, SFrame says {state.cfa}"
    elif not _matches_cfa(row.cfa, state.cfa, arch):
        return f"CFA is {row.cfa}, SFrame says {state.cfa}"
    if not _matches_by_registers(ra, row.cfa, state.ra, state.cfa, arch.ra_register, arch):
        return f"RA is {ra}, SFrame says {state.ra}"
    if not _matches_by_registers(fp, row.cfa, state.fp, state.cfa, arch.fp_register, arch):
        return f"FP is {fp}, SFrame says {state.fp}"
    return None


def _moved(rule: SframeRule, offset: int) -> SframeRule:
    return rule._replace(offset=rule.offset + offset)


def _matches_by_registers(
    rule: Rule | None,
    cfa: RegisterOffset | Expression | NoCfa,
    said: SframeRule | None,
    said_cfa: SframeRule | None,
    register: int,
    arch: Arch,
) -> bool:
    """Whether two rules are the same after each has been put in terms of registers, where its CFA is a sum."""
    if said is not None and said.register is None and said_cfa is not None and not said_cfa.deref:
        said = _moved(said._replace(register=said_cfa.register), said_cfa.offset)
    if said == (register, 0, False):
        said = None
    if rule is not None and rule.kind in ("at_cfa", "cfa_plus") and isinstance(cfa, RegisterOffset):
        own = cfa.register, cfa.offset + rule.value, rule.kind == "at_cfa"
        return said == (None if own == (register, 0, False) else own)
    return _matches(rule, said, register, arch)


def _signing_problem(row: OracleRow, state: FrameState, *, shows_unsaid: bool, arch: Arch) -> str | None:
    if not arch.ra_may_be_signed:
        return "SFrame says that RA is signed, which it never is here" if state.mangled_ra else None
    if not shows_unsaid:
        return None
    signing = row.registers.get(RA_SIGN_STATE, Rule("constant", 0))
    if signing == (_SIGNED if state.mangled_ra else Rule("constant", 0)):
        return None
    return f"the state of RA is {signing}, SFrame says {state}"


def _is_implied_sp(sp: Rule | None, cfa: SframeRule, *, shows_unsaid: bool, arch: Arch) -> bool:
    """Whether an SP rule is no other than SFrame's own: the CFA, and the constant of the ABI."""
    if sp is None or (sp == _UNSAID and not shows_unsaid) or sp == Rule("cfa_plus", arch.sp_offset_from_cfa):
        return True
    if arch.sp_offset_from_cfa:
        # s390x saves SP with the other registers; the ABI defines the CFA by it all the same.
        return sp.kind == "at_cfa" or (sp.kind == "register" and cfa.register in (arch.sp_register, arch.fp_register))
    return sp.kind == "at_expression" and cfa.deref and _matches(sp, cfa, arch.sp_register, arch)


def _matches_cfa(cfa: RegisterOffset | Expression | NoCfa, said: SframeRule, arch: Arch) -> bool:
    if isinstance(cfa, Expression):
        return cfa.text in ("", value_text(said, arch))
    return isinstance(cfa, RegisterOffset) and said == (cfa.register, cfa.offset, False)


def _matches(rule: Rule | None, said: SframeRule | None, register: int, arch: Arch) -> bool:
    """Whether a tool's rule for a register and SFrame's are the same."""
    if rule is None or rule == Rule("register", register):
        return said is None
    match rule.kind:
        case "undefined" | "same_value":
            return said is None
        case "at_cfa":
            return said == (None, rule.value, True)
        case "cfa_plus":
            return said == (None, rule.value, False)
        case "register":
            return said == (rule.value, 0, False)
        case "at_expression":
            # The expression is the address; SFrame's rule loads from it.
            return said is not None and said.deref and rule.text in ("", value_text(said._replace(deref=False), arch))
        case "expression":
            return said is not None and rule.text in ("", value_text(said, arch))
        case "constant":
            return False


def _llvm_name(register: int, arch: Arch) -> str:
    """Return a register's name as llvm-dwarfdump spells it."""
    if arch.name == "AMD64":
        return _AMD64_NAMES[register]
    if arch.name == "s390x":
        return f"R{register}D"
    return "WSP" if register == arch.sp_register else f"W{register}"


def value_text(rule: SframeRule, arch: Arch = AMD64) -> str:
    """Return a value of a rule as llvm-dwarfdump spells the plainest expression for it."""
    if rule.register is None:
        return f"DW_OP_plus_uconst 0x{rule.offset:x}" + (", DW_OP_deref" if rule.deref else "")
    text = f"DW_OP_breg{rule.register} {_llvm_name(rule.register, arch)}{rule.offset:+d}"
    return text + (", DW_OP_deref" if rule.deref else "")


def is_plain(row: OracleRow, arch: Arch = AMD64) -> bool:
    """Whether every version of SFrame has a default row for this: nothing could excuse leaving it out."""
    ra = row.registers.get(arch.ra_register, _UNSAID)
    fp = row.registers.get(arch.fp_register, _UNSAID)
    if arch.fixed_ra_offset:
        ra_is_plain = ra == Rule("at_cfa", arch.fixed_ra_offset)
    else:
        # FP without RA takes s390x's padding word.
        ra_is_plain = ra.kind == "at_cfa" or (ra == _UNSAID and (arch.pads_ra or fp.kind != "at_cfa"))
    return (
        isinstance(row.cfa, RegisterOffset)
        and row.cfa.register in (arch.fp_register, arch.sp_register)
        and (row.cfa.offset - arch.cfa_offset_bias) % arch.cfa_offset_scale == 0
        and ra_is_plain
        and fp.kind in ("undefined", "same_value", "at_cfa")
        and not _is_odd_sp(row, arch)
    )


def _is_odd_sp(row: OracleRow, arch: Arch) -> bool:
    sp = row.registers.get(arch.sp_register, _UNSAID)
    return sp != _UNSAID and not (arch.sp_offset_from_cfa and sp.kind == "at_cfa")


def is_hard_to_say(row: OracleRow, arch: Arch = AMD64) -> bool:
    """Whether a row holds what version 3 may be unable to express: an expression, or on s390x an SP that is loaded."""
    numbers = (arch.ra_register, arch.fp_register, arch.sp_register)
    rules = [row.registers.get(number, _UNSAID) for number in numbers]
    return isinstance(row.cfa, Expression) or any(rule.kind in ("at_expression", "expression") for rule in rules)


# What readelf prints of an SFrame function, and what the package's dump prints

PrintedRow = tuple[int, str, str, str]


def printed_rows(function: DecodedFunction, section: DecodedSection) -> tuple[int, int, list[PrintedRow]]:
    """Return start, size and rows of a decoded function in the words of the package's dump."""
    base = 0 if function.is_pcmask else function.start_vaddr
    rows: list[PrintedRow] = []
    for row in function.rows:
        texts = row_texts(row, section)
        rows.append((base + row.row.start_delta, *(texts if row.row.state.cfa else ("", "", ""))))
    return function.start_vaddr, function.size, rows


def normal_rows(function: OracleSframeFunction, *, fixed_ra: bool = True) -> tuple[int, int, list[PrintedRow]]:
    """Return start, size and rows as readelf prints them, in the words of the newest readelf and of the package.

    An RA that no data word gives is "U" in flexible rows (a padding word), and "u" before 2.41: at its fixed offset
    where the ABI has one, or else not saved.
    """
    word = "f" if fixed_ra else "u"
    rows: list[PrintedRow] = []
    for pc, cfa, fp, ra, mangled, undefined in function.rows:
        unsaid = ra in ("u", "U") and not undefined
        rows.append((pc, cfa, fp, (word if unsaid else ra) + ("[s]" if mangled else "")))
    return function.pc_vaddr, function.size, rows
