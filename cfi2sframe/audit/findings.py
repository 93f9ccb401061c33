# SPDX-License-Identifier: Apache-2.0
"""Findings of an audit, for people to read: places, rules and directives as text, and the instructions around."""

import re
from collections.abc import Iterable
from itertools import groupby
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.audit.flow import UNCHANGED
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RegisterRule, describe_cfa, describe_rule
from cfi2sframe.instructions.decoder import Decoder

Subject = Literal["CFA", "RA", "FP", "signing"]
#: The RA's signature by the number of its key (0: none).
SIGNATURES: Final = ("off", "with key A", "with key B")

#: Findings of a file that are shown with the instructions around them, and how many before and after.
_MAX_SHOWN: Final = 1000
_CONTEXT: Final = 3
#: Bytes of a function that are decoded to find the instructions before a finding.
_MAX_CODE_SIZE: Final = 1 << 16
#: The only operand of a jump or a call, as capstone writes it.
_ADDRESS: Final = re.compile(r"#?0x[0-9a-f]+")


class Contradiction(NamedTuple):
    """An instruction that contradicts its FDE, by its number, in one rule."""

    vaddr: int
    number: int
    subject: Subject
    cfi_rule: CfaRule | RegisterRule | str | None
    code_rule: CfaRule | RegisterRule | str | None

    @property
    def error(self) -> object:
        """The error that one directive corrects in all neighbours: the bytes by which the CFA is off, or the rule."""
        old, new = self.cfi_rule, self.code_rule
        if self.subject == "CFA" and isinstance(old, Rule) and isinstance(new, Rule) and old.register == new.register:
            return new.offset - old.offset
        return old


class ShownInstruction(NamedTuple):
    """An instruction near a finding; `is_first`: the first one that contradicts."""

    place: str
    text: str
    is_first: bool


class Finding(NamedTuple):
    """Instructions whose CFI contradicts them in the same way: of one function, or also of its clones.

    `place` is the first of `instruction_count` instructions, as a user knows its address: in an object,
    `SECTION+OFFSET`. Where these are not neighbours, others begin at `also_places`. `function` is the function's name
    with the distance of the first instruction from its start; empty without a name. `cfi_rule` is the CFI's rule of the
    `subject`, `code_rule` the rule by the instructions, and `directive` the same for an assembler; both are empty where
    the instructions only show that the CFI's rule is wrong.
    """

    place: str
    function: str
    subject: Subject
    cfi_rule: str
    code_rule: str
    directive: str
    instruction_count: int
    also_places: tuple[str, ...]
    instructions: tuple[ShownInstruction, ...]


def findings_of(contradictions: Iterable[Contradiction], entries: CfiEntries, decoder: Decoder) -> tuple[Finding, ...]:
    """Return ascending findings: one for equal errors of neighbours, other places of a function, and its clones."""
    image = decoder.image
    ordered = sorted(contradictions, key=lambda error: (error.number, error.subject, error.vaddr))
    alike = groupby(ordered, lambda error: (error.number, error.subject, error.error))
    groups: list[list[list[Contradiction]]] = []
    group_of: dict[tuple[object, ...], list[list[Contradiction]]] = {}
    for run in sorted(([*run] for _, run in alike), key=lambda run: (run[0].vaddr, run[0].subject)):
        first = run[0]
        start, size = entries.starts[first.number], entries.sizes[first.number]
        rules = first.subject, *_texts(first, image.arch)
        # Functions of one size with the same finding at the same place are clones.
        here, clone = (start, *rules), (size, first.vaddr - start, *rules)
        group = group_of.get(here) or group_of.get(clone)
        if group is None:
            groups.append(group := [])
        group.append(run)
        group_of[here] = group_of[clone] = group
    names = image.names_of([entries.starts[group[0][0].number] for group in groups])
    findings: list[Finding] = []
    for group in groups:
        first = group[0][0]
        start = entries.starts[first.number]
        findings.append(
            Finding(
                image.place_text(first.vaddr),
                f"{names[start]}+0x{first.vaddr - start:x}" if start in names else "",
                first.subject,
                *_texts(first, image.arch),
                _directive(first, image.arch),
                sum(map(len, group)),
                tuple([image.place_text(run[0].vaddr) for run in group[1:]]),
                _around(decoder, start, first.vaddr) if len(findings) < _MAX_SHOWN else (),
            )
        )
    return tuple(findings)


def _texts(contradiction: Contradiction, arch: Arch) -> tuple[str, str]:
    """Return the CFI's rule, and the rule by the instructions."""
    code_rule = "" if contradiction.code_rule is None else _text(contradiction.subject, contradiction.code_rule, arch)
    return _text(contradiction.subject, contradiction.cfi_rule, arch), code_rule


def _text(subject: Subject, rule: CfaRule | RegisterRule | str | None, arch: Arch) -> str:
    if isinstance(rule, str):
        return rule
    if rule in UNCHANGED:
        return "unchanged"
    if rule is None or isinstance(rule, NoCfa) or (subject == "CFA" and not isinstance(rule, NoRule)):
        return describe_cfa(rule, arch)
    return describe_rule(rule, arch)


def _directive(first: Contradiction, arch: Arch) -> str:
    """Return the directive for an assembler (GNU as, "CFI directives") that corrects a rule; empty where none does."""
    old, new = first.cfi_rule, first.code_rule
    if first.subject == "signing":
        return ".cfi_negate_ra_state" if SIGNATURES[0] in (old, new) else ".cfi_b_key_frame"
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


def _around(decoder: Decoder, start: int, vaddr: int) -> tuple[ShownInstruction, ...]:
    """Return some instructions before and after the first one of a finding, from its function's start on."""
    start = start if start <= vaddr < start + _MAX_CODE_SIZE else vaddr
    decoded = list(decoder.disassemble(start, vaddr + 16 * (_CONTEXT + 1)))
    first = next((number for number, (at, *_) in enumerate(decoded) if at >= vaddr), len(decoded))
    return tuple(
        ShownInstruction(decoder.image.place_text(at), _shown(decoder, mnemonic, operands), at == vaddr)
        for at, _, mnemonic, operands in decoded[max(0, first - _CONTEXT) : first + 1 + _CONTEXT]
    )


def _shown(decoder: Decoder, mnemonic: str, operands: str) -> str:
    """Return an instruction's text; in an object, with the name of the function that it calls."""
    if decoder.image.is_relocatable and _ADDRESS.fullmatch(operands):
        vaddr = int(operands.lstrip("#"), 0)
        operands = decoder.code.imports.get(vaddr) or decoder.image.place_text(vaddr)
    return f"{mnemonic} {operands}".rstrip()
