# SPDX-License-Identifier: Apache-2.0
"""The CFI of an image, held to its instructions: functions are followed from their FDEs, and states compared."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule, describe_cfa, describe_rule
from cfi2sframe.instructions.audit_records import Answer, Audit, Contradiction, RuleSubject, RuleTally, Undecided
from cfi2sframe.instructions.cfi_flow import UNCHANGED, CfiFlow
from cfi2sframe.instructions.directives import directive_for
from cfi2sframe.instructions.machine import Machine
from cfi2sframe.instructions.opinions import opinions_of, promise_of
from cfi2sframe.instructions.rows import row_of
from cfi2sframe.instructions.rows_in_force import RowsInForce
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.function import Followed
    from cfi2sframe.instructions.opinions import Opinions, Promise
    from cfi2sframe.instructions.rows_in_force import InForce
    from cfi2sframe.instructions.states import State, Value


def audit(image: ElfImage, kind: CfiKind | None = None) -> Audit:
    """Compare the CFI of an image, of one kind or of all, with what its instructions do to the stack.

    Raises `InputError` when there is no CFI, it cannot be read, or capstone cannot be loaded.
    """
    return _Auditor(image, read_programs(image, find_cfi(image, kind)).entries).run()


class _Contradicted(NamedTuple):
    """An instruction whose CFI is contradicted in one subject; `value` is what the rule's place has."""

    vaddr: int
    number: int
    subject: RuleSubject
    cfi_rule: CfaRule | RegisterRule | None
    code_rule: CfaRule | RegisterRule | None
    value: Value | None


class _Auditor:
    """Follows the functions of an image, compares their states with the rows in force, and counts."""

    def __init__(self, image: ElfImage, entries: CfiEntries) -> None:
        self.image = image
        self.entries = entries
        self.rows = RowsInForce(image, entries)
        self.flow = CfiFlow(image, self.rows)
        # Rules of CFI outlive what restores a register, as long as its slot is in the red zone.
        self.machine = Machine(self.flow, self._compare, kept=self.flow.abi.red_zone)
        #: The starts of FDEs that functions call.
        self.called: set[int] = set()
        #: The sizes of the instructions that were reached.
        self.sizes: dict[int, int] = {}
        self.tallies: dict[tuple[int, ...], int] = Counter()
        self.undecided: dict[tuple[int, Undecided], int] = Counter()
        self.contradictions: list[_Contradicted] = []
        #: States that the first rows of parts contradict: another function's empty part may be at the same address.
        self.doubted: dict[int, tuple[int, RowState, State]] = {}
        self.outermost_count = 0
        self._signal_frames = {program.number for program in entries.programs if program.cie.is_signal_frame}

    def run(self) -> Audit:
        """Return what is found."""
        starts = self.flow.starts
        for start in sorted(starts):
            if start not in self.machine.summaries and self.flow.holds(start):
                self.machine.follow(start)
        while called := self.called - starts:
            # What a function calls is one, whatever its first row says.
            starts |= called
            for start in sorted(called):
                self.machine.follow(start)
        for vaddr, (number, row, state) in self.doubted.items():
            if vaddr not in self.sizes:
                self.sizes[vaddr] = (self.flow.at(vaddr) or (1,))[0]
                self._count(vaddr, number, row, opinions_of(row, state, self.machine.abi), state)
        self._not_reached()
        reasons: dict[Undecided, int] = Counter()
        for (_, reason), count in self.undecided.items():
            reasons[reason] += count
        by_worst: dict[int, int] = Counter()
        by_subject: dict[tuple[int, int], int] = Counter()
        for answers, count in self.tallies.items():
            by_worst[max(answers)] += count
            for subject, answer in enumerate(answers):
                by_subject[subject, answer] += count
        pieces = self.rows.pieces
        ordered = sorted(self.undecided.items(), key=lambda item: (item[0][0], item[0][1].value))
        findings = sorted(self._findings(), key=lambda finding: (finding.vaddr, finding.subject.value))
        return Audit(
            self.image.name,
            len(pieces.numbers),
            sum(pieces.ends) - sum(pieces.starts),
            by_worst[Answer.SILENT] + by_worst[Answer.AGREES] + self.outermost_count,
            by_worst[Answer.CONTRADICTS],
            {each: RuleTally(*(by_subject[n, answer] for answer in Answer)) for n, each in enumerate(RuleSubject)},
            dict(reasons),
            tuple((self.entries.starts[number], reason, count) for (number, reason), count in ordered),
            tuple(_distinct(findings, dict(zip(self.entries.starts, self.entries.sizes, strict=True)))),
        )

    def _compare(self, function: Followed) -> None:
        """Compare the states of a function with the rows in force."""
        if function.entry not in self.flow.starts:
            return
        self.called |= function.calls & self.flow.fde_starts
        abi, states, sizes = self.machine.abi, function.states, self.sizes
        found: InForce | None = None
        promise: Promise | None = None
        last: tuple[State, Opinions] | None = None
        kept_count = 0
        for vaddr in sorted([vaddr for vaddr in states if vaddr not in sizes]):
            state = states[vaddr]
            if found is None or not found.start_vaddr <= vaddr < found.end_vaddr:
                self._tally(promise, kept_count)
                found, last, kept_count = self.rows.at(vaddr), None, 0
                promise = None if found.row is None else promise_of(found.row, abi)
            number, row = found.number, found.row
            if row is None or number is None:
                continue
            if vaddr in self.flow.fde_starts and vaddr not in self.flow.starts and not self.flow.fits(vaddr, state):
                self.doubted.setdefault(vaddr, (number, row, state))
                continue
            sizes[vaddr] = function.sizes.get(vaddr) or (self.flow.at(vaddr) or (1,))[0]
            if self.entries.program_numbers[number] in self._signal_frames:
                self.undecided[number, Undecided.SIGNAL_FRAME] += 1
                continue
            if vaddr in function.call_sites and not abi.arch.fixed_ra_offset:
                # Whoever unwinds from what is called uses this row, and the call has changed the RA's register.
                state = {key: value for key, value in state.items() if key != abi.arch.ra_register}
            if promise is not None:
                for place, value in promise.values:
                    if state.get(place) != value:
                        break
                else:
                    kept_count += 1
                    continue
            if last is None or last[0] is not state:
                last = state, opinions_of(row, state, abi)
            self._count(vaddr, number, row, last[1], state)
        self._tally(promise, kept_count)

    def _tally(self, promise: Promise | None, count: int) -> None:
        """Count instructions whose states have what a row promises."""
        if promise is not None and count:
            self.tallies[tuple([int(opinion.answer) for opinion in promise.opinions])] += count

    def _count(self, vaddr: int, number: int, row: RowState, opinions: Opinions, state: State) -> None:
        """Count an instruction with a row of an FDE."""
        answers = tuple([int(opinion.answer) for opinion in opinions])
        self.tallies[answers] += 1
        if max(answers) < Answer.UNDECIDED:
            return
        ours = row_of(state, self.machine.abi)
        if max(answers) == Answer.UNDECIDED:
            self.undecided[number, Undecided.STATE_UNKNOWN if ours is None else Undecided.OTHER_PLACE] += 1
            return
        rules = ((row.cfa, ours and ours.cfa), (row.ra, ours and ours.ra), (row.fp, ours and ours.fp))
        self.contradictions += [
            _Contradicted(vaddr, number, subject, *both, opinion.value)
            for subject, opinion, both in zip(RuleSubject, opinions, rules, strict=True)
            if opinion.answer is Answer.CONTRADICTS
        ]

    def _not_reached(self) -> None:
        """Count the instructions that no path leads to. Padding is none; without a caller, nothing is claimed."""
        for number, start, end in zip(*self.rows.pieces, strict=True):
            vaddr = start
            while vaddr < end:
                size = self.sizes.get(vaddr)
                if size is None:
                    found = self.flow.at(vaddr)
                    if found is None:
                        break
                    size = found.size
                    if found.effect is None or not found.effect.is_padding:
                        row = self.rows.at(vaddr).row
                        if row is not None and row.ra is NoRule.UNDEFINED:
                            self.outermost_count += 1
                        else:
                            self.undecided[number, Undecided.NOT_REACHED] += 1
                vaddr += size

    def _findings(self) -> Iterable[Contradiction]:
        """Return contradictions of neighbouring instructions that differ alike as one finding."""
        found: dict[tuple[int, RuleSubject], tuple[Contradiction, tuple[object, ...]]] = {}
        for each in sorted(self.contradictions, key=lambda each: (each.vaddr, each.subject.value)):
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


def _distinct(findings: list[Contradiction], sizes: dict[int, int]) -> Iterable[Contradiction]:
    """Join findings that differ alike in one function, or at one place of functions of one size, which are clones."""
    joined: dict[tuple[object, ...], Contradiction] = {}
    keys: dict[tuple[object, ...], tuple[object, ...]] = {}
    for each in findings:
        alike = each.subject, each.cfi_rule, each.code_rule
        here = (each.function_vaddr, *alike)
        clone = (sizes[each.function_vaddr], each.vaddr - each.function_vaddr, *alike)
        key = keys.get(here) or keys.get(clone) or here
        keys[here] = keys[clone] = key
        first = joined.get(key)
        if first is None:
            joined[key] = each
        else:
            count = first.instruction_count + each.instruction_count
            joined[key] = first._replace(instruction_count=count, also_at=(*first.also_at, each.vaddr))
    return joined.values()


def _finding(first: _Contradicted, function_vaddr: int, arch: Arch) -> Contradiction:
    """Return the finding that begins with a contradiction."""
    directive = directive_for(first.subject, first.cfi_rule, first.code_rule, arch)
    code_rule = "" if first.code_rule is None else _text(first.subject, first.code_rule, arch)
    return Contradiction(
        function_vaddr, first.vaddr, 1, first.subject, _text(first.subject, first.cfi_rule, arch), code_rule, directive
    )


def _text(subject: RuleSubject, rule: CfaRule | RegisterRule | None, arch: Arch) -> str:
    if rule in UNCHANGED:
        return "unchanged"
    if rule is None or (subject is RuleSubject.CFA and not isinstance(rule, NoRule)):
        return describe_cfa(rule, arch)
    return describe_rule(rule, arch)
