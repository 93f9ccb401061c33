# SPDX-License-Identifier: Apache-2.0
"""The CFI of an image, held to its instructions: the door of this room."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.audit.agreement import Judge
from cfi2sframe.audit.directives import directive_for
from cfi2sframe.audit.held_code import follow
from cfi2sframe.audit.records import Answer, Audit, Contradiction, RuleSubject, RuleTally, Undecided
from cfi2sframe.audit.rows_in_force import InForce, RowsInForce
from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.decoder import MEMORY_BIT
from cfi2sframe.code.rows import RowMaker
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule, describe_cfa, describe_rule
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.arch import Arch
    from cfi2sframe.audit.agreement import Opinion, Opinions
    from cfi2sframe.code.flow import FlowAnalysis
    from cfi2sframe.code.values import State, Value
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage

_SUBJECTS: Final = tuple(RuleSubject)
_GO_SECTIONS: Final = (".gopclntab", ".data.rel.ro.gopclntab")
_ALL_BITS: Final = (1 << 64) - 1


def audit(image: ElfImage, kind: CfiKind | None = None) -> Audit:
    """Compare the CFI of an image, of one kind or of all, with what its instructions do to the stack.

    Raises `InputError` when there is no CFI, it cannot be read, or capstone cannot be loaded.
    """
    entries = read_programs(image, find_cfi(image, kind)).entries
    rows = RowsInForce(image, entries)
    flow = follow(image, rows)
    return _Auditor(image, entries, rows, flow).run()


class _Contradicted(NamedTuple):
    """An instruction whose CFI is contradicted in one subject; `value` is what the rule's place has."""

    vaddr: int
    number: int
    subject: RuleSubject
    cfi_rule: CfaRule | RegisterRule | None
    code_rule: CfaRule | RegisterRule | None
    value: Value | None


class _Auditor:
    """Compares the states of a flow with the rows in force, and counts."""

    def __init__(self, image: ElfImage, entries: CfiEntries, rows: RowsInForce, flow: FlowAnalysis) -> None:
        self.image = image
        self.entries = entries
        self.rows = rows
        self.flow = flow
        self.judge = Judge(image.arch, flow.arch)
        self.maker = RowMaker(flow.arch)
        self.counts: dict[tuple[RuleSubject, Answer], int] = Counter()
        self.agreed_count = 0
        self.contradicted_count = 0
        self.undecided: dict[tuple[int, Undecided], int] = Counter()
        self.contradictions: list[_Contradicted] = []
        self.reached: set[int] = set()
        self._first_of_go = first_of_go(image, entries)
        self._signal_frames = {program.number for program in entries.programs if program.cie.is_signal_frame}

    def run(self) -> Audit:
        """Return what is found."""
        for start in self.flow.states:
            self._block(start)
        self._not_reached()
        reasons: dict[Undecided, int] = Counter()
        for (_, reason), count in self.undecided.items():
            reasons[reason] += count
        pieces = self.rows.pieces
        return Audit(
            self.image.name,
            len(pieces.numbers),
            sum(pieces.ends) - sum(pieces.starts),
            self.agreed_count,
            self.contradicted_count,
            {each: RuleTally(*(self.counts.get((each, answer), 0) for answer in Answer)) for each in RuleSubject},
            dict(reasons),
            tuple((self.entries.starts[number], reason, n) for (number, reason), n in sorted_counts(self.undecided)),
            tuple(sorted(self._findings(), key=_place_of)),
        )

    def _block(self, start: int) -> None:
        """Compare the states within a block with the rows in force."""
        block = self.flow.blocks[start]
        state = self.flow.states[start].copy()
        comparison = _Comparison(self, state)
        vaddr = start
        for change in block.changes:
            comparison.take(vaddr, change.end_vaddr)
            for step in change.steps:
                self.flow.machine.apply(state, step, change.vaddr)
            comparison.changed |= change.changed
            vaddr = change.end_vaddr
        comparison.take(vaddr, block.end_vaddr)

    def count(self, vaddr: int, end_vaddr: int, found: InForce, opinions: Opinions, state: State) -> None:
        """Count the instructions at some addresses, of which all have the same opinions about one row."""
        number, row = found.number, found.row
        if number is None or row is None:
            return
        decoder = self.flow.decoder
        addresses: list[int] = []
        while vaddr < end_vaddr:
            decoded = decoder.at(vaddr)
            if decoded is None:
                break
            addresses.append(vaddr)
            vaddr += decoded.size
        self.reached.update(addresses)
        count = len(addresses)
        if self.entries.program_numbers[number] in self._signal_frames:
            self.undecided[number, Undecided.SIGNAL_FRAME] += count
            return
        for subject, opinion in zip(_SUBJECTS, opinions, strict=True):
            self.counts[subject, opinion.answer] += count
        worst = max([opinion.answer for opinion in opinions])
        if worst == Answer.CONTRADICTS:
            self.contradicted_count += count
            self._contradict(addresses, number, row, opinions, state)
        elif worst == Answer.UNDECIDED:
            is_unknown = isinstance(self.maker.row_of(state), CodeReason)
            reason = Undecided.STATE_UNKNOWN if is_unknown else Undecided.OTHER_PLACE
            self.undecided[number, reason] += count
        else:
            self.agreed_count += count

    def has_fp(self, found: InForce) -> bool:
        """Whether a row without a rule for FP says that it has the caller's value: Go never writes such a rule."""
        return found.number is None or found.number < self._first_of_go

    def _contradict(
        self, addresses: Iterable[int], number: int, row: RowState, opinions: Opinions, state: State
    ) -> None:
        ours = self.maker.row_of(state)
        rules: tuple[tuple[RuleSubject, Opinion, CfaRule | RegisterRule | None, CfaRule | RegisterRule | None], ...]
        known = None if isinstance(ours, CodeReason) else ours
        rules = (
            (RuleSubject.CFA, opinions[0], row.cfa, known and known.cfa),
            (RuleSubject.RA, opinions[1], row.ra, known and known.ra),
            (RuleSubject.FP, opinions[2], row.fp, known and known.fp),
        )
        for subject, opinion, cfi_rule, code_rule in rules:
            if opinion.answer is Answer.CONTRADICTS:
                self.contradictions += [
                    _Contradicted(vaddr, number, subject, cfi_rule, code_rule, opinion.value) for vaddr in addresses
                ]

    def _not_reached(self) -> None:
        """Count the instructions of functions that no path leads to; padding is none."""
        for number, start, end in zip(*self.rows.pieces, strict=True):
            vaddr = start
            while vaddr < end:
                decoded = self.flow.decoder.at(vaddr)
                if decoded is None:
                    break
                is_padding = decoded.effect is not None and decoded.effect.is_padding
                if vaddr not in self.reached and not is_padding:
                    self.undecided[number, Undecided.NOT_REACHED] += 1
                vaddr += decoded.size

    def _findings(self) -> Iterable[Contradiction]:
        """Return contradictions of neighbouring instructions that differ alike as one finding."""
        found: dict[tuple[int, RuleSubject], tuple[Contradiction, tuple[object, ...]]] = {}
        for each in sorted(self.contradictions, key=_order):
            key = each.number, each.subject
            # A CFA that is too low by the same number of bytes, a register with the same rule.
            alike = (each.value,) if each.subject is RuleSubject.CFA else (each.value, each.cfi_rule)
            last = found.get(key)
            if last is not None and last[1] == alike:
                found[key] = last[0]._replace(instruction_count=last[0].instruction_count + 1), alike
                continue
            if last is not None:
                yield last[0]
            found[key] = _finding(each, self.entries.starts[each.number], self.image.arch), alike
        yield from (finding for finding, _ in found.values())


class _Comparison:
    """Compares the states of a block, one after the other; what has not changed is not compared again."""

    def __init__(self, auditor: _Auditor, state: State) -> None:
        self.auditor = auditor
        self.state = state
        self.changed = _ALL_BITS
        self.found = InForce(0)
        self.opinions: Opinions | None = None

    def take(self, vaddr: int, end_vaddr: int) -> None:
        """Compare the state at the instructions from one address up to another one."""
        auditor = self.auditor
        while vaddr < end_vaddr:
            if vaddr >= self.found.end_vaddr:
                self.found = auditor.rows.at(vaddr)
                self.opinions = None
            row = self.found.row
            end = min(end_vaddr, self.found.end_vaddr)
            if row is not None:
                if self.opinions is None or self.changed & self._bits_of(row):
                    self.opinions = auditor.judge.opinions(row, self.state, vaddr, has_fp=auditor.has_fp(self.found))
                    self.changed = 0
                auditor.count(vaddr, end, self.found, self.opinions, self.state)
            vaddr = end

    def _bits_of(self, row: RowState) -> int:
        """Return a bit for each register that what is said of a row may depend on, and for the stack."""
        if isinstance(row.cfa, Rule) and row.cfa.register is not None:
            return self.auditor.maker.frame_bits | 1 << row.cfa.register | MEMORY_BIT
        return _ALL_BITS


def first_of_go(image: ElfImage, entries: CfiEntries) -> int:
    """Return the number of the first FDE that Go's tools may have made: all but those of .eh_frame, in Go's files."""
    kinds = {first: entries[first].section.kind for first in entries.source_starts if first < len(entries)}
    # Other linkers put the table into a section of another name, where it is found, too.
    if "gopclntab" in kinds.values() or any(any(image.sections_named(name)) for name in _GO_SECTIONS):
        return next((first for first, kind in kinds.items() if kind != "eh_frame"), len(entries))
    return len(entries)


def _finding(first: _Contradicted, function_vaddr: int, arch: Arch) -> Contradiction:
    """Return the finding that begins with a contradiction."""
    directive = directive_for(first.subject, first.cfi_rule, first.code_rule, arch)
    code_rule = "" if first.code_rule is None else _text(first.subject, first.code_rule, arch)
    return Contradiction(
        function_vaddr, first.vaddr, 1, first.subject, _text(first.subject, first.cfi_rule, arch), code_rule, directive
    )


def _text(subject: RuleSubject, rule: CfaRule | RegisterRule | None, arch: Arch) -> str:
    if rule in (NoRule.UNSPECIFIED, NoRule.SAME_VALUE):
        return "unchanged"
    if rule is None or (subject is RuleSubject.CFA and not isinstance(rule, NoRule)):
        return describe_cfa(rule, arch)
    return describe_rule(rule, arch)


def sorted_counts(counts: dict[tuple[int, Undecided], int]) -> list[tuple[tuple[int, Undecided], int]]:
    """Return counts by the number of the FDE and the reason."""
    return sorted(counts.items(), key=lambda item: (item[0][0], item[0][1].value))


def _place_of(finding: Contradiction) -> tuple[int, str]:
    return finding.vaddr, finding.subject.value


def _order(each: _Contradicted) -> tuple[int, str]:
    return each.vaddr, each.subject.value
