# SPDX-License-Identifier: Apache-2.0
"""The CFI of an image, held to its instructions: each function is followed from its FDE, and its states are compared.

The start of a cold part of a function is no entry: its CFI is not that of one, and jumps lead there. Where the CFA's
rule changes right after a call, the call does not come back.
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule, describe_cfa, describe_rule
from cfi2sframe.elf.constants import ET_EXEC, SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC
from cfi2sframe.elf.ranges import Span
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.audit_records import Answer, Audit, Contradiction, RuleSubject, RuleTally, Undecided
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.directives import directive_for
from cfi2sframe.instructions.effects import Op
from cfi2sframe.instructions.function import Code
from cfi2sframe.instructions.machine import Machine
from cfi2sframe.instructions.opinions import opinions_of
from cfi2sframe.instructions.rows import row_of
from cfi2sframe.instructions.rows_in_force import RowsInForce
from cfi2sframe.instructions.surroundings import JumpTables, NeverReturning, find_candidates
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.function import Followed
    from cfi2sframe.instructions.opinions import Opinions
    from cfi2sframe.instructions.rows_in_force import InForce
    from cfi2sframe.instructions.states import State, Value

_UNCHANGED: Final = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)
_FUNCTIONS: Final = (STT_FUNC, STT_GNU_IFUNC)


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
        spans = [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges]
        decoder = self.decoder = Decoder(image, spans, "the CFI is held to instructions")
        never = NeverReturning(image, decoder)
        self.fde_starts = frozenset(self.rows.pieces.starts)
        self.starts = self._functions()
        #: The starts of FDEs that these call.
        self.called: set[int] = set()
        code = Code(
            decoder.at,
            decoder.holds,
            self.fde_starts,
            JumpTables(image, decoder).targets,
            never.at,
            never.by_word,
            image.header.type == ET_EXEC,
            sum(end - start for start, end in spans),
            self._comes_back,
            self._may_hold,
            self._fits,
            self._in_table,
            needs_proof=False,
        )
        # Rules of CFI outlive what restores a register, as long as its slot is in the red zone.
        self.machine = Machine(decoder.abi._replace(kept=decoder.abi.red_zone), code)
        self.machine.results = self._compare
        self.counts: dict[tuple[RuleSubject, Answer], int] = Counter()
        self.agreed_count = 0
        self.contradicted_count = 0
        self.undecided: dict[tuple[int, Undecided], int] = Counter()
        self.contradictions: list[_Contradicted] = []
        self.reached: set[int] = set()
        self._signal_frames = {program.number for program in entries.programs if program.cie.is_signal_frame}

    def _functions(self) -> set[int]:
        """Return where the functions start whose first row is that of a function's entry, or that a file exports.

        A symbol makes up for what a row says of FP, which may be wrong.
        """
        abi, named = self.decoder.abi, find_candidates(self.image, self.decoder, ()).all
        cfa = Rule(abi.sp, -abi.entry_sp, deref=False)
        ras = _UNCHANGED if abi.ra_slot is None else (Rule(None, abi.ra_slot, deref=True),)
        found = set(self.fde_starts & _exported(self.image))
        for start in self.fde_starts - found:
            first = self.rows.at(start)
            row = first.row
            if row is None or row.cfa != cfa or row.ra not in ras or not (row.fp in _UNCHANGED or start in named):
                continue
            after = self.rows.at(first.end_vaddr)
            if after.number == first.number and after.row != row and self._only_fills(start, first.end_vaddr):
                # A cold part whose landing pad is first: the compiler puts a nop before a pad, which only unwinders
                # enter, so nothing is at the start that could make the frame that its next row has.
                continue
            found.add(start)
        return found

    def _only_fills(self, start: int, end: int) -> bool:
        """Whether a range has nothing but instructions that do nothing."""
        vaddr = start
        while vaddr < end:
            found = self.decoder.at(vaddr)
            if found is None or found.effect is None or not found.effect.is_padding:
                return False
            vaddr += found.size
        return True

    def _comes_back(self, vaddr: int, end: int) -> bool:
        """Whether a call may come back to an address, for all that the CFI says."""
        before, after = self.rows.at(vaddr), self.rows.at(end)
        if before.row is None or after.row is None:
            return before.row is after.row
        if before.number != after.number:
            return False
        return before.row.cfa == after.row.cfa or self._is_early(before.row.cfa, end, after)

    def _is_early(self, cfa: CfaRule | None, vaddr: int, row: InForce) -> bool:
        """Whether a row is right one instruction after its start, where the CFA was given by another rule before."""
        found = self.decoder.at(vaddr)
        if found is None or found.effect is None or vaddr + found.size >= row.end_vaddr:
            return False
        sp = self.decoder.abi.sp
        steps = found.effect.steps
        moved = sum(step.offset for step in steps if step.op is Op.MOVE and step.register == step.source == sp)
        return moved != 0 and row.row is not None and row.row.cfa == _plus(cfa, -moved)

    def _may_hold(self, entry: int, vaddr: int) -> bool:
        """Whether an address is not in the FDE of another function."""
        there = self.rows.at(vaddr)
        if there.number is None or there.row is None:
            return False
        start = self.entries.starts[there.number]
        return start == entry or start not in self.starts

    def _fits(self, vaddr: int, state: State) -> bool:
        """Whether the CFI of an address does not contradict a state."""
        row = self.rows.at(vaddr).row
        if row is None:
            return False
        return all(opinion.answer is not Answer.CONTRADICTS for opinion in opinions_of(row, state, self.decoder.abi))

    def _in_table(self, jump: int, targets: Sequence[int]) -> list[int]:
        """Return the targets of a table's words to which its jump leads, for all that the CFI says.

        A table may be followed by another one, and have words for what is never reached, past the end. A jump leaves
        the frame as it is: where the CFI says otherwise, it is contradicted by a word before one that agrees.
        """
        here = self.rows.at(jump)
        found: list[int] = []
        doubted: list[int] = []
        for target in targets:
            there = self.rows.at(target)
            if here.row and there.row and here.row[:3] == there.row[:3]:
                found += [*doubted, target]
                doubted = []
            elif there.number == here.number:
                doubted.append(target)
        return found

    def run(self) -> Audit:
        """Return what is found."""
        for start in sorted(self.starts):
            if start not in self.machine.summaries and self.decoder.holds(start):
                self.machine.follow(start)
        while called := self.called - self.starts:
            # What a function calls is one, whatever its first row says.
            self.starts |= called
            for start in sorted(called):
                self.machine.follow(start)
        self._not_reached()
        reasons: dict[Undecided, int] = Counter()
        for (_, reason), count in self.undecided.items():
            reasons[reason] += count
        pieces = self.rows.pieces
        ordered = sorted(self.undecided.items(), key=lambda item: (item[0][0], item[0][1].value))
        return Audit(
            self.image.name,
            len(pieces.numbers),
            sum(pieces.ends) - sum(pieces.starts),
            self.agreed_count,
            self.contradicted_count,
            {each: RuleTally(*(self.counts.get((each, answer), 0) for answer in Answer)) for each in RuleSubject},
            dict(reasons),
            tuple((self.entries.starts[number], reason, count) for (number, reason), count in ordered),
            tuple(sorted(self._findings(), key=lambda finding: (finding.vaddr, finding.subject.value))),
        )

    def _compare(self, function: Followed) -> None:
        """Compare the states of a function with the rows in force."""
        if function.entry not in self.starts:
            return
        self.called |= function.calls & self.fde_starts
        last: tuple[State, RowState | None, Opinions] | None = None
        found: InForce | None = None
        for vaddr in sorted(function.states.keys() - self.reached):
            state = function.states[vaddr]
            if found is None or vaddr >= found.end_vaddr or vaddr < found.start_vaddr:
                found = self.rows.at(vaddr)
            if found.row is None:
                continue
            if vaddr in function.call_sites and self.machine.abi.ra_slot is None:
                # Whoever unwinds from what is called uses this row, and the call has changed the RA's register.
                state = {key: value for key, value in state.items() if key != self.machine.abi.ra_register}
            if last is None or last[0] is not state or last[1] is not found.row:
                last = state, found.row, opinions_of(found.row, state, self.machine.abi)
            self._count(vaddr, found, last[2], state)

    def _count(self, vaddr: int, found: InForce, opinions: Opinions, state: State) -> None:
        """Count an instruction."""
        number, row = found.number, found.row
        if number is None or row is None:
            return
        self.reached.add(vaddr)
        if self.entries.program_numbers[number] in self._signal_frames:
            self.undecided[number, Undecided.SIGNAL_FRAME] += 1
            return
        for subject, opinion in zip(RuleSubject, opinions, strict=True):
            self.counts[subject, opinion.answer] += 1
        worst = max([opinion.answer for opinion in opinions])
        if worst == Answer.CONTRADICTS:
            self.contradicted_count += 1
            ours = row_of(state, self.machine.abi)
            rules = ((row.cfa, ours and ours.cfa), (row.ra, ours and ours.ra), (row.fp, ours and ours.fp))
            self.contradictions += [
                _Contradicted(vaddr, number, subject, *both, opinion.value)
                for subject, opinion, both in zip(RuleSubject, opinions, rules, strict=True)
                if opinion.answer is Answer.CONTRADICTS
            ]
        elif worst == Answer.UNDECIDED:
            is_unknown = row_of(state, self.machine.abi) is None
            self.undecided[number, Undecided.STATE_UNKNOWN if is_unknown else Undecided.OTHER_PLACE] += 1
        else:
            self.agreed_count += 1

    def _not_reached(self) -> None:
        """Count the instructions that no path leads to. Padding is none; without a caller, nothing is claimed."""
        for number, start, end in zip(*self.rows.pieces, strict=True):
            vaddr = start
            while vaddr < end:
                found = self.decoder.at(vaddr)
                if found is None:
                    break
                if vaddr not in self.reached and not (found.effect is not None and found.effect.is_padding):
                    row = self.rows.at(vaddr).row
                    if row is not None and row.ra is NoRule.UNDEFINED:
                        self.agreed_count += 1
                    else:
                        self.undecided[number, Undecided.NOT_REACHED] += 1
                vaddr += found.size

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


def _plus(cfa: CfaRule | None, offset: int) -> CfaRule | None:
    return cfa._replace(offset=cfa.offset + offset) if isinstance(cfa, Rule) else None


def _exported(image: ElfImage) -> set[int]:
    """Return the addresses of functions that other files may call."""
    found: set[int] = set()
    for table in image.symbol_tables:
        if table.type == SHT_DYNSYM or image.is_relocatable:
            with suppress(ElfError):
                # Local symbols come first (gABI, "Symbol Table": sh_info).
                symbols = islice(image.symbols(table), table.info, None)
                found.update(symbol.vaddr for symbol in symbols if symbol.vaddr and symbol.type in _FUNCTIONS)
    return found


def _finding(first: _Contradicted, function_vaddr: int, arch: Arch) -> Contradiction:
    """Return the finding that begins with a contradiction."""
    directive = directive_for(first.subject, first.cfi_rule, first.code_rule, arch)
    code_rule = "" if first.code_rule is None else _text(first.subject, first.code_rule, arch)
    return Contradiction(
        function_vaddr, first.vaddr, 1, first.subject, _text(first.subject, first.cfi_rule, arch), code_rule, directive
    )


def _text(subject: RuleSubject, rule: CfaRule | RegisterRule | None, arch: Arch) -> str:
    if rule in _UNCHANGED:
        return "unchanged"
    if rule is None or (subject is RuleSubject.CFA and not isinstance(rule, NoRule)):
        return describe_cfa(rule, arch)
    return describe_rule(rule, arch)
