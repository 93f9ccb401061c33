# SPDX-License-Identifier: Apache-2.0
"""The package's rows as the naive evaluator has them, and beside its own: of a table, and of all FDEs of a file."""

from collections.abc import Iterator, Sequence
from typing import Final

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.conversion.sources import Cfi
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RaSigning, RegisterRule, RowState, UnwindTable
from cfi2sframe.elf.cfi import CfiSection
from tests.support.dwarf.naive import RA_SIGN_STATE, Fde, Row, fdes_in
from tests.support.dwarf.naive import Rule as NaiveRule
from tests.support.dwarf.rules import state_at

_SIGNING: Final[dict[RaSigning, NaiveRule]] = {
    RaSigning.SIGNED: ("state", 1),
    RaSigning.SIGNED_WITH_PC: ("state", 3),
    RaSigning.UNKNOWN: ("unknown",),
}


def row_of(state: RowState, arch: Arch) -> Row:
    """Return a row of the package as the evaluator has it, with the registers that the package follows."""
    named = {arch.ra_register: state.ra, arch.fp_register: state.fp, arch.sp_register: state.sp}
    rules = {register: _rule_of(rule) for register, rule in named.items() if rule is not NoRule.UNSPECIFIED}
    if state.signing in _SIGNING:
        rules[RA_SIGN_STATE] = _SIGNING[state.signing]
    return Row(0, None if state.cfa is None else _cfa_of(state.cfa), rules)


def _rule_of(rule: RegisterRule) -> NaiveRule:
    if isinstance(rule, NoRule):
        return ("undefined",) if rule is NoRule.UNDEFINED else ("same value",)
    if not isinstance(rule, Rule):
        return "expression" if rule.deref else "val_expression", rule.code
    if rule.register is None:
        return "offset" if rule.deref else "val_offset", rule.offset
    assert (rule.offset, rule.deref) == (0, False)
    return "register", rule.register


def _cfa_of(rule: CfaRule) -> NaiveRule:
    if rule == NoCfa.UNKNOWN:
        return ("unknown",)
    if isinstance(rule, Rule):
        assert not rule.deref
        return "sum", rule.register, rule.offset
    return "value", rule.code


def _differences(ours: Row, theirs: Row, column: int, arch: Arch) -> Iterator[str]:
    if ours.cfa != theirs.cfa:
        yield f"CFA {ours.cfa}, {theirs.cfa}"
    told = dict(theirs.rules)
    if column != arch.ra_register:
        told[arch.ra_register] = told.get(column, ("register", column))
        if told[arch.ra_register] == ("same value",):
            told[arch.ra_register] = ("register", column)
    registers = [arch.fp_register, arch.sp_register, arch.ra_register]
    if arch.ra_may_be_signed:
        registers.append(RA_SIGN_STATE)
        if told.get(RA_SIGN_STATE) in (("state", 0), ("state", 2)):
            del told[RA_SIGN_STATE]
    for register in registers:
        if ours.rules.get(register) != told.get(register):
            yield f"register {register} {ours.rules.get(register)}, {told.get(register)}"


def problems_of(table: UnwindTable, rows: Sequence[Row], column: int, arch: Arch) -> Iterator[str]:
    """Describe how a table differs from the evaluator's rows of the same FDE."""
    for row in rows:
        ours = row_of(state_at(table, row.start), arch)
        yield from (f"+{row.start}: {text}" for text in _differences(ours, row, column, arch))
    # A row of ours that begins where none of theirs does would hold at an address that was not compared.
    yield from (f"+{start}: only here" for start in set(table.starts) - {row.start for row in rows})


def fdes_of_section(data: bytes, vaddr: int, arch: Arch, *, is_damaged: bool = False) -> list[Fde]:
    """Return the FDEs of a section of `.eh_frame` as the evaluator reads them; of a damaged one, those that it can."""
    is_little, is_aarch64 = arch.byte_order == "<", arch in (AARCH64_LE, AARCH64_BE)
    return list(fdes_in(data, vaddr, little=is_little, is_aarch64=is_aarch64, is_damaged=is_damaged))


def problems_of_cfi(cfi: Cfi, arch: Arch, fdes: Sequence[Fde] | None = None) -> Iterator[str]:
    """Describe how the FDEs of `.eh_frame` differ from the evaluator's: their number, ranges and rows.

    Of a damaged file (`fdes` is None), only those are compared that both can read.
    """
    entries = list(cfi.entries)
    # The length and the CIE pointer come before the start.
    places = [entry.start_offset - 8 for entry in entries]
    if fdes is None:
        pairs = []
        for section in cfi.sections:
            assert isinstance(section, CfiSection)
            theirs = fdes_of_section(bytes(section.data), section.vaddr, arch, is_damaged=True)
            known = {fde.offset: fde for fde in theirs}
            own = [pair for pair in zip(entries, places, strict=True) if pair[0].section is section]
            pairs += [(entry, known[place]) for entry, place in own if place in known]
    else:
        pairs = list(zip(entries, fdes, strict=False))
        if cfi.damaged or places != [fde.offset for fde in fdes]:
            yield f"{len(places)} FDEs, {len(fdes)} by the evaluator; damaged: {cfi.damaged[:3]}"
    for entry, fde in pairs:
        # What reaches past the code is cut off.
        size = entry.size + cfi.entries.clipped.get(entry.fde, 0)
        if (entry.start_vaddr, size) != (fde.start_vaddr, fde.size):
            yield f"{fde.start_vaddr:#x}: {fde.size} bytes; {size} at {entry.start_vaddr:#x}"
        rows = [row for row in fde.rows if row.start < max(entry.size, 1)]
        problems = problems_of(entry.program.table, rows, fde.ra_column, arch)
        yield from (f"{fde.start_vaddr:#x}{problem}" for problem in problems)
