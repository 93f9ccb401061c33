# SPDX-License-Identifier: Apache-2.0
"""An outside tool's rows against decoded SFrame rows, on AMD64; shares nothing with the package but its records."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.dump import row_texts
from tests.oracle.frames import Expression, NoCfa, RegisterOffset, Rule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState
    from cfi2sframe.sframe.model import Rule as SframeRule
    from tests.oracle.frames import OracleRow
    from tests.oracle.readelf_sframe import OracleSframeFunction

RBP: Final = 6
RSP: Final = 7
RIP: Final = 16
_NAMES: Final = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)), "RIP")
_UNSAID: Final = Rule("undefined")


def row_at(rows: Sequence[OracleRow], pc_vaddr: int) -> OracleRow | None:
    """Return the last row that starts at or in front of an address."""
    index = bisect_right(rows, pc_vaddr, key=lambda row: row.pc_vaddr) - 1
    return rows[index] if index >= 0 else None


def difference(row: OracleRow, state: FrameState, *, shows_unsaid: bool) -> str | None:
    """Return how a state differs from a tool's row, or None.

    `shows_unsaid`: the tool tells "undefined" from "no rule given" (llvm-dwarfdump does, readelf does not).
    Where the tool keeps an expression to itself, anything goes.
    """
    ra = row.registers.get(RIP, _UNSAID)
    if ra.kind == "undefined":
        return None if state.cfa is None else f"RA is undefined, SFrame says {state}"
    if state.cfa is None:
        return f"SFrame says outermost frame, the row is {row}"
    if state.mangled_ra:
        return "SFrame says that RA is signed, which it never is here"
    fp = row.registers.get(RBP)
    if fp is not None and fp.kind == "undefined" and shows_unsaid:
        return f"FP is undefined, SFrame says {state}"
    sp = row.registers.get(RSP)
    if sp is not None and sp.kind == "at_expression" and state.cfa.deref:
        sp = None if _matches(sp, state.cfa) else sp
    if sp is not None and sp not in (Rule("cfa_plus", 0), *(() if shows_unsaid else (_UNSAID,))):
        return f"SP is {sp}, which SFrame cannot say"
    if not _matches_cfa(row.cfa, state.cfa):
        return f"CFA is {row.cfa}, SFrame says {state.cfa}"
    if not _matches(ra, state.ra):
        return f"RA is {ra}, SFrame says {state.ra}"
    if fp is not None and not _matches(fp, state.fp):
        return f"FP is {fp}, SFrame says {state.fp}"
    if fp is None and state.fp is not None:
        return f"FP has no rule, SFrame says {state.fp}"
    return None


def _matches_cfa(cfa: RegisterOffset | Expression | NoCfa, said: SframeRule) -> bool:
    if isinstance(cfa, Expression):
        return cfa.text in ("", value_text(said))
    return isinstance(cfa, RegisterOffset) and said == (cfa.register, cfa.offset, False)


def _matches(rule: Rule, said: SframeRule | None) -> bool:
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
            return said is not None and said.deref and rule.text in ("", value_text(said._replace(deref=False)))
        case "expression":
            return said is not None and rule.text in ("", value_text(said))
        case "constant":
            return False


def value_text(rule: SframeRule) -> str:
    """Return a value of a rule as llvm-dwarfdump spells the plainest expression for it."""
    if rule.register is None:
        return f"DW_OP_plus_uconst 0x{rule.offset:x}" + (", DW_OP_deref" if rule.deref else "")
    text = f"DW_OP_breg{rule.register} {_NAMES[rule.register]}{rule.offset:+d}"
    return text + (", DW_OP_deref" if rule.deref else "")


def is_plain(row: OracleRow) -> bool:
    """Whether every version of SFrame has a default row for this: nothing could excuse leaving it out."""
    return (
        isinstance(row.cfa, RegisterOffset)
        and row.cfa.register in (RBP, RSP)
        and row.registers.get(RIP) == Rule("at_cfa", -8)
        and row.registers.get(RBP, _UNSAID).kind in ("undefined", "same_value", "at_cfa")
        and row.registers.get(RSP, _UNSAID) == _UNSAID
    )


def is_hard_to_say(row: OracleRow) -> bool:
    """Whether a row holds what version 3 may be unable to say: an expression, or an SP that is not the CFA."""
    rules = [row.registers.get(number, _UNSAID) for number in (RIP, RBP, RSP)]
    return (
        isinstance(row.cfa, Expression)
        or any(rule.kind in ("at_expression", "expression", "cfa_plus") for rule in rules)
        or rules[2] != _UNSAID
    )


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


def normal_rows(function: OracleSframeFunction) -> tuple[int, int, list[PrintedRow]]:
    """Return start, size and rows as readelf prints them, in the words of the newest readelf and of the package.

    An RA that no data word gives is "U" in flexible rows (a padding word), and "u" before 2.41: at its fixed offset.
    """
    rows: list[PrintedRow] = []
    for pc, cfa, fp, ra, mangled, undefined in function.rows:
        unsaid = ra in ("u", "U") and not undefined
        rows.append((pc, cfa, fp, ("f" if unsaid else ra) + ("[s]" if mangled else "")))
    return function.pc_vaddr, function.size, rows
