# SPDX-License-Identifier: Apache-2.0
"""Rules as directives for an assembler (GNU as, "CFI directives")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.instructions.audit_records import RuleSubject
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule


def directive_for(
    subject: RuleSubject, old: CfaRule | RegisterRule | None, new: CfaRule | RegisterRule | None, arch: Arch
) -> str:
    """Return the directive that replaces an old rule by a new one; empty where none does it."""
    if subject is RuleSubject.CFA:
        if not isinstance(new, Rule) or new.register is None:
            return ""
        if isinstance(old, Rule) and old.register == new.register:
            return f".cfi_def_cfa_offset {new.offset}"
        return f".cfi_def_cfa {_name(new.register, arch)}, {new.offset}"
    register = _name(arch.fp_register if subject is RuleSubject.FP else arch.ra_register, arch)
    if isinstance(new, Rule) and new.is_saved_at_cfa:
        return f".cfi_offset {register}, {new.offset}"
    if isinstance(new, Rule) and new.register is not None:
        return f".cfi_register {register}, {_name(new.register, arch)}"
    if isinstance(new, NoRule):
        return f".cfi_undefined {register}" if new is NoRule.UNDEFINED else f".cfi_restore {register}"
    return ""


def _name(register: int, arch: Arch) -> str:
    return arch.register_prefix + arch.register_name(register)
