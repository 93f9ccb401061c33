# SPDX-License-Identifier: Apache-2.0
"""Rules of both formats in readable form, for messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.dwarf.expression import describe
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    InRegister,
    IsExpression,
    NoRule,
    RegisterOffset,
    ValueAtCfa,
)

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule
    from cfi2sframe.sframe.model import Rule


def describe_frame_rule(rule: Rule, arch: Arch) -> str:
    """Return a rule as an equation's right side, such as `*(rbp-8)` or `c-16`."""
    base = "c" if rule.register is None else arch.register_name(rule.register)
    text = f"{base}{rule.offset:+d}" if rule.offset or not rule.deref else base
    return f"*({text})" if rule.deref else text


def describe_rule(rule: RegisterRule | CfaRule | None, arch: Arch) -> str:
    """Return a DWARF rule in readable form, such as `rsp+16`, `*(c-8)` or `same value`; None: the CFA has no rule."""
    match rule:
        case None:
            return "none"
        case NoRule():
            return rule.name.lower().replace("_", " ")
        case RegisterOffset(register, offset):
            return f"{arch.register_name(register)}{offset:+d}"
        case AtCfa(offset):
            return f"*(c{offset:+d})"
        case ValueAtCfa(offset):
            return f"c{offset:+d}"
        case InRegister(register):
            return arch.register_name(register)
        case CfaExpression(expression) | IsExpression(expression):
            return f"({describe(expression, arch.byte_order)})"
        case AtExpression(expression):
            return f"*({describe(expression, arch.byte_order)})"
