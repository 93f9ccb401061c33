# SPDX-License-Identifier: Apache-2.0
"""A rule: a value computed from a register or from the CFA, by a sum and at most one load.

SFrame has no other rules. DWARF has this form for its simple rules, and expressions for others.
"""

from typing import NamedTuple

from cfi2sframe.abi import Arch


def rule_text(register: str | None, offset: int, *, deref: bool) -> str:
    """Return a rule as readelf writes it for SFrame and for CFI (`NamedRule`), as all messages do."""
    if register is None:
        return f"{'c' if deref else 'v'}{offset:+d}"
    text = f"{register}{offset:+d}"
    return f"({text})" if deref else text


class NamedRule(NamedTuple):
    """A `Rule` whose register has the assembler's name instead of DWARF's number.

    Its text is readelf's: `rsp+16` is the register's value plus 16, `(rbp-8)` the 8 bytes in memory at rbp - 8; from
    the CFA (`register` is None), `c-8` is the 8 bytes in memory at CFA - 8, and `v-160` CFA - 160 itself.
    """

    register: str | None
    offset: int
    deref: bool

    def __repr__(self) -> str:
        return rule_text(self.register, self.offset, deref=self.deref)


class Rule(NamedTuple):
    """`value = base + offset`, or with `deref` `value = *(base + offset)`.

    The base is a register, by its DWARF number, or the CFA when `register` is None. Offsets count bytes.
    """

    register: int | None
    offset: int
    deref: bool

    def __repr__(self) -> str:
        name = None if self.register is None else f"r{self.register}"
        return rule_text(name, self.offset, deref=self.deref)

    @property
    def is_saved_at_cfa(self) -> bool:
        """True if the value is in memory at a constant distance from the CFA."""
        return self.register is None and self.deref

    @property
    def is_register(self) -> bool:
        """True if the value is that of a register."""
        return self.register is not None and self.offset == 0 and not self.deref

    def named(self, arch: Arch) -> NamedRule:
        """Return the rule with its register's name."""
        name = None if self.register is None else arch.register_name(self.register)
        return NamedRule(name, self.offset, self.deref)

    def text(self, arch: Arch) -> str:
        """Return the rule with its register's name, such as `rsp+16`, `(rbp-8)` or `c-16`."""
        return repr(self.named(arch))
