# SPDX-License-Identifier: Apache-2.0
"""What an audit has found, as people read it: places, rules and directives as text, and the instructions around."""

from __future__ import annotations

import re
from collections import deque
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.audit.flow import UNCHANGED
from cfi2sframe.dwarf.rules import NoRule, describe_cfa, describe_rule
from cfi2sframe.printable import shown_name
from cfi2sframe.rules import Rule

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.decoder import Decoder
    from cfi2sframe.instructions.states import Value

Subject = Literal["CFA", "RA", "FP"]

#: Findings of a file that are shown with the instructions around them, and how many before and after.
_MAX_SHOWN: Final = 1000
_CONTEXT: Final = 3
#: Bytes of a function that are decoded to find the instructions before a finding.
_MAX_CODE_SIZE: Final = 1 << 16
#: The only operand of a jump or a call, as capstone writes it.
_ADDRESS: Final = re.compile(r"#?0x[0-9a-f]+")


class Contradiction(NamedTuple):
    """An instruction that contradicts its FDE, by its number, in one rule; `value` is what the rule's place has."""

    vaddr: int
    number: int
    subject: Subject
    cfi_rule: CfaRule | RegisterRule | None
    code_rule: CfaRule | RegisterRule | None
    value: Value | None


class ShownInstruction(NamedTuple):
    """An instruction near a finding; `is_first`: the first one that contradicts."""

    place: str
    text: str
    is_first: bool


class Finding(NamedTuple):
    """Instructions whose CFI contradicts them in the same way: of one function, or also of its clones.

    `function_vaddr` is where the function's FDE starts, `vaddr` the first of `instruction_count` instructions; where
    these are not neighbours, others begin at the addresses `also_at`. `cfi_rule` is the CFI's rule of the `subject`,
    `code_rule` what the instructions say instead, and `directive` what says so to an assembler; both are empty where
    the instructions only say that the CFI's rule is wrong.

    `place` and `also_places` are the addresses as a user knows them: in an object, `SECTION+OFFSET`. `function` is its
    name with the distance of the first instruction from its start; empty without a name.
    """

    function_vaddr: int
    vaddr: int
    instruction_count: int
    subject: Subject
    cfi_rule: str
    code_rule: str
    directive: str
    also_at: tuple[int, ...] = ()
    place: str = ""
    also_places: tuple[str, ...] = ()
    function: str = ""
    instructions: tuple[ShownInstruction, ...] = ()


def findings_of(contradictions: Iterable[Contradiction], entries: CfiEntries, arch: Arch) -> list[Finding]:
    """Return ascending findings: what neighbours, other places of a function, and its clones say alike is one."""
    # A CFA that is too low by the same number of bytes, a register with the same rule.
    ordered = sorted(contradictions, key=lambda each: (each.number, each.subject, each.vaddr))
    alike = groupby(
        ordered, lambda each: (each.number, each.subject, each.value, each.subject == "CFA" or each.cfi_rule)
    )
    runs = sorted(([*run] for _, run in alike), key=lambda run: (run[0].vaddr, run[0].subject))
    joined: dict[tuple[object, ...], Finding] = {}
    keys: dict[tuple[object, ...], tuple[object, ...]] = {}
    for first, *others in runs:
        start, size = entries.starts[first.number], entries.sizes[first.number]
        code_rule = "" if first.code_rule is None else _text(first.subject, first.code_rule, arch)
        rules = _text(first.subject, first.cfi_rule, arch), code_rule
        here = (start, first.subject, *rules)
        # Functions of one size with the same finding at the same place are clones.
        clone = (size, first.vaddr - start, first.subject, *rules)
        key = keys[here] = keys[clone] = keys.get(here) or keys.get(clone) or here
        known, count = joined.get(key), 1 + len(others)
        if known is None:
            directive = _directive(first, arch)
            joined[key] = Finding(start, first.vaddr, count, first.subject, *rules, directive)
        else:
            count += known.instruction_count
            joined[key] = known._replace(instruction_count=count, also_at=(*known.also_at, first.vaddr))
    return [*joined.values()]


def _text(subject: Subject, rule: CfaRule | RegisterRule | None, arch: Arch) -> str:
    if rule in UNCHANGED:
        return "unchanged"
    if rule is None or (subject == "CFA" and not isinstance(rule, NoRule)):
        return describe_cfa(rule, arch)
    return describe_rule(rule, arch)


def _directive(first: Contradiction, arch: Arch) -> str:
    """Return the directive for an assembler (GNU as, "CFI directives") that corrects a rule; empty where none does."""
    old, new = first.cfi_rule, first.code_rule
    if first.subject == "CFA":
        if not isinstance(new, Rule) or new.register is None:
            return ""
        if isinstance(old, Rule) and old.register == new.register:
            return f".cfi_def_cfa_offset {new.offset}"
        return f".cfi_def_cfa {_name(new.register, arch)}, {new.offset}"
    register = _name(arch.fp_register if first.subject == "FP" else arch.ra_register, arch)
    if isinstance(new, Rule) and new.is_saved_at_cfa:
        return f".cfi_offset {register}, {new.offset}"
    if isinstance(new, Rule) and new.register is not None:
        return f".cfi_register {register}, {_name(new.register, arch)}"
    if isinstance(new, NoRule):
        return f".cfi_undefined {register}" if new is NoRule.UNDEFINED else f".cfi_restore {register}"
    return ""


def _name(register: int, arch: Arch) -> str:
    return arch.register_prefix + arch.register_name(register)


def _function(names: dict[int, str], finding: Finding) -> str:
    name = names.get(finding.function_vaddr, "")
    return f"{name}+0x{finding.vaddr - finding.function_vaddr:x}" if name else ""


class CodeReader:
    """Names places of an image, and shows the instructions around them."""

    def __init__(self, image: ElfImage, decoder: Decoder) -> None:
        self.image = image
        self.decoder = decoder

    def shown(self, findings: list[Finding]) -> tuple[Finding, ...]:
        """Return findings with names, and with the instructions around the first one of each."""
        names = self.image.names_of(finding.function_vaddr for finding in findings)
        return tuple(
            finding._replace(
                place=self.place(finding.vaddr),
                also_places=tuple(map(self.place, finding.also_at)),
                function=_function(names, finding),
                instructions=self._around(finding) if number < _MAX_SHOWN else (),
            )
            for number, finding in enumerate(findings)
        )

    def place(self, vaddr: int) -> str:
        """Return an address as a user knows it."""
        place = self.image.place(vaddr)
        if self.image.is_relocatable:
            return f"{shown_name(place.section_name)}+0x{place.offset:x}"
        return f"0x{place.offset:x}"

    def _around(self, finding: Finding) -> tuple[ShownInstruction, ...]:
        """Return some instructions before and after the first one of a finding, from its function's start on."""
        code = self.image.code_range_of(finding.vaddr)
        if code is None:
            return ()
        start = max(code.start_vaddr, finding.function_vaddr)
        if not start <= finding.vaddr < start + _MAX_CODE_SIZE:
            start = finding.vaddr
        end = min(code.end_vaddr, finding.vaddr + 16 * (_CONTEXT + 1))
        decoded = self.decoder.disassemble(start, end)
        before = deque[tuple[int, int, str, str]](maxlen=_CONTEXT)
        for each in decoded:
            if each[0] >= finding.vaddr:
                return tuple(
                    ShownInstruction(self.place(vaddr), self._text(mnemonic, operands), vaddr == finding.vaddr)
                    for vaddr, _, mnemonic, operands in (*before, each, *islice(decoded, _CONTEXT))
                )
            before.append(each)
        return ()

    def _text(self, mnemonic: str, operands: str) -> str:
        """Return an instruction's text; in an object, with the name of the function that it calls."""
        if self.image.is_relocatable and _ADDRESS.fullmatch(operands):
            vaddr = int(operands.lstrip("#"), 0)
            operands = self.decoder.code.imports.get(vaddr) or self.place(vaddr)
        return f"{mnemonic} {operands}".rstrip()
