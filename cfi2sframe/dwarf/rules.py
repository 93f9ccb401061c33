# SPDX-License-Identifier: Apache-2.0
"""The DWARF row table (DWARF 5, 6.4.1): rules of the CFA and of registers, rows of these rules, and tables of rows.

| DWARF's rule | here |
|---|---|
| CFA = R + N | `Rule(R, N, deref=False)` |
| offset(N), val_offset(N) | `Rule(None, N, deref=True)`, `Rule(None, N, deref=False)` |
| register(R) | `Rule(R, 0, deref=False)` |
| expression(E), val_expression(E), CFA = E | `Expression(E, deref=True)`, `Expression(E, deref=False)` |
| undefined, same value, none | `NoRule` |
"""

from bisect import bisect_left
from collections.abc import Iterable
from enum import Enum, IntEnum
from typing import NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.expression import Expression


class NoRule(IntEnum):
    """Register rules that are complete without an operand, and the absence of a rule."""

    # Rows are hashed often, and the hash of `Enum` is Python's, by the name.
    __hash__ = int.__hash__

    UNSPECIFIED = 0
    """No instruction has given the register a rule: the ABI's default holds."""
    UNDEFINED = 1
    """The caller's value is lost."""
    SAME_VALUE = 2
    """The caller's value is still in the register."""


class NoCfa(Enum):
    """A rule of the CFA that gives it no value."""

    UNKNOWN = "unknown"
    """The CFA counts from a register, and readers differ on the offset."""


CfaRule = Rule | Expression | NoCfa
RegisterRule = NoRule | Rule | Expression


class RaSigning(IntEnum):
    """The state of the RA's pointer authentication code (AArch64)."""

    __hash__ = int.__hash__

    NONE = 0
    SIGNED = 1
    SIGNED_WITH_PC = 2
    UNKNOWN = 3
    """A rule of RA_SIGN_STATE determines it, and is no constant."""


class RowState(NamedTuple):
    """The rules of a row, without its start. `cfa` is None before any instruction has given the CFA a rule.

    Where instructions leave its offset open, it is `NoCfa.UNKNOWN`.
    """

    cfa: CfaRule | None
    ra: RegisterRule
    fp: RegisterRule
    sp: RegisterRule
    signing: RaSigning


class UnwindTable(NamedTuple):
    """The rows of a program as columns: `states[N]` is in force from `starts[N]` (bytes from the function's start) on.

    Starts ascend from 0, and no state equals the one before it. Rows may start past the end of a function.
    Its `states` are DWARF's rules; an `sframe.model.FunctionBody` has SFrame's. Functions share both, because starts
    count from the function. A `range_map.RangeMap` has addresses of one file, and is never shared.
    `depends_on_location`: the same instructions at another address may give other rows (DW_CFA_set_loc).
    """

    starts: tuple[int, ...]
    states: tuple[RowState, ...]
    depends_on_location: bool = False

    def before(self, end_delta: int) -> "UnwindTable":
        """Return the rows that start before `end_delta`, and the first row in any case."""
        count = bisect_left(self.starts, max(end_delta, 1))
        return self._replace(starts=self.starts[:count], states=self.states[:count])


def table_of_rows(rows: Iterable[tuple[int, RowState]]) -> UnwindTable:
    """Return the table of rows in the order of their starts: of one start the last holds, equal neighbours are one."""
    starts: list[int] = []
    states: list[RowState] = []
    for start, state in rows:
        if starts and starts[-1] == start:
            del starts[-1], states[-1]
        if not states or states[-1] != state:
            starts.append(start)
            states.append(state)
    return UnwindTable(tuple(starts), tuple(states))


def describe_cfa(rule: CfaRule | None, arch: Arch) -> str:
    """Return a rule of the CFA in readable form, such as `rsp+16`."""
    if isinstance(rule, NoCfa):
        return rule.value
    return "none" if rule is None else rule.text(arch)


def describe_rule(rule: RegisterRule, arch: Arch) -> str:
    """Return a rule of a register in readable form, such as `c-8`, `rbx` or `same value`."""
    if isinstance(rule, NoRule):
        return rule.name.lower().replace("_", " ")
    if isinstance(rule, Rule) and rule.register is not None and rule.is_register:
        return arch.register_name(rule.register)
    return rule.text(arch)
