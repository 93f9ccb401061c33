# SPDX-License-Identifier: Apache-2.0
"""The CFI of an image, held to its instructions: functions are followed from their FDEs, and states compared."""

from __future__ import annotations

from collections import Counter
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.audit.findings import CodeReader, Contradiction, Finding, Subject, findings_of
from cfi2sframe.audit.flow import CfiFlow, RowsInForce
from cfi2sframe.audit.opinions import Answer, opinions_of
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.instructions.machine import Machine
from cfi2sframe.instructions.rows import row_of
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from cfi2sframe.audit.flow import InForce
    from cfi2sframe.audit.opinions import Opinions
    from cfi2sframe.dwarf.programs import CfiEntries
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.function import Followed
    from cfi2sframe.instructions.states import State

SUBJECTS: Final[tuple[Subject, ...]] = ("CFA", "RA", "FP")
#: Functions that were not compared, and are named.
_MAX_FUNCTIONS: Final = 20


class Undecided(Enum):
    """Why an instruction is not compared with its CFI. The value is the text that reports print."""

    NOT_REACHED = "no known path leads there"
    SIGNAL_FRAME = "the CFI describes interrupted code (a signal frame)"
    STATE_UNKNOWN = "the instructions do not tell where the caller is"
    OTHER_PLACE = "the CFI names a place whose value is not followed"


class NotCompared(NamedTuple):
    """Instructions of a function that were not compared, and why."""

    place: str
    function: str
    reason: str
    instruction_count: int


class Audit(NamedTuple):
    """The result for a file; counts are of instructions, except `function_count` (FDEs) and `code_size` (bytes).

    An instruction is decided if its CFA, RA and FP all are, and agreed if nothing contradicts it. `tallies` has how
    many of them give each `Answer` about each of `SUBJECTS`, `undecided` the reasons, and `undecided_functions` the
    FDEs' addresses with the instructions for each reason; `not_compared` names those with the most. `findings` ascend.
    """

    name: str
    function_count: int
    code_size: int
    agreed_count: int
    contradicted_count: int
    tallies: dict[Subject, tuple[int, ...]]
    undecided: dict[Undecided, int]
    undecided_functions: tuple[tuple[int, Undecided, int], ...]
    not_compared: tuple[NotCompared, ...]
    findings: tuple[Finding, ...]

    @property
    def undecided_count(self) -> int:
        """Instructions of which at least one rule could not be decided, and none is contradicted."""
        return sum(self.undecided.values())

    @property
    def decided_count(self) -> int:
        """Instructions whose rules all were decided."""
        return self.agreed_count + self.contradicted_count


def audit(image: ElfImage, kind: CfiKind | None = None) -> Audit:
    """Compare the CFI of an image, of one kind or of all, with what its instructions do to the stack.

    Raises `InputError` when there is no CFI, it cannot be read, or capstone cannot be loaded.
    """
    return _Auditor(image, read_programs(image, *find_cfi(image, kind)).entries).run()


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
        self.tallies = Counter[tuple[Answer, ...]]()
        self.undecided = Counter[tuple[int, Undecided]]()
        self.contradictions: list[Contradiction] = []
        #: States that the first rows of parts contradict: another function's empty part may be at the same address.
        self.doubted: dict[int, tuple[int, RowState, State]] = {}
        self.outermost_count = 0
        self._signal_frames = {program.number for program in entries.programs if program.cie.is_signal_frame}

    def run(self) -> Audit:
        """Follow all functions; return what is found."""
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
        return self._result()

    def _result(self) -> Audit:
        undecided = sorted(self.undecided.items(), key=lambda item: (item[0][0], item[0][1].value))
        functions = tuple((self.entries.starts[number], reason, count) for (number, reason), count in undecided)
        by_reason, by_worst = Counter[Undecided](), Counter[Answer]()
        for (_, reason), count in self.undecided.items():
            by_reason[reason] += count
        for answers, count in self.tallies.items():
            by_worst[max(answers)] += count
        tallies = {
            subject: tuple(
                sum(count for answers, count in self.tallies.items() if answers[n] is answer) for answer in Answer
            )
            for n, subject in enumerate(SUBJECTS)
        }
        reader = CodeReader(self.image, self.flow)
        few = sorted(functions, key=lambda each: (-each[2], each[0]))[:_MAX_FUNCTIONS]
        names = self.image.names_of(vaddr for vaddr, _, _ in few)
        pieces = self.rows.pieces
        return Audit(
            self.image.name,
            len(pieces.numbers),
            sum(pieces.ends) - sum(pieces.starts),
            by_worst[Answer.SILENT] + by_worst[Answer.AGREES] + self.outermost_count,
            by_worst[Answer.CONTRADICTS],
            tallies,
            dict(by_reason),
            functions,
            tuple(NotCompared(reader.place(v), names.get(v, ""), reason.value, count) for v, reason, count in few),
            reader.shown(findings_of(self.contradictions, self.entries, self.image.arch)),
        )

    def _compare(self, function: Followed) -> None:
        """Compare the states of a function with the rows in force."""
        if function.entry not in self.flow.starts:
            return
        self.called |= function.calls & self.flow.fde_starts
        abi, states, sizes = self.machine.abi, function.states, self.sizes
        found: InForce | None = None
        last: tuple[State, Opinions] | None = None
        for vaddr in sorted([vaddr for vaddr in states if vaddr not in sizes]):
            state = states[vaddr]
            if found is None or not found.start_vaddr <= vaddr < found.end_vaddr:
                found, last = self.rows.at(vaddr), None
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
            if last is None or last[0] is not state:
                last = state, opinions_of(row, state, abi)
            self._count(vaddr, number, row, last[1], state)

    def _count(self, vaddr: int, number: int, row: RowState, opinions: Opinions, state: State) -> None:
        """Count an instruction with a row of an FDE."""
        answers = tuple([opinion.answer for opinion in opinions])
        self.tallies[answers] += 1
        worst = max(answers)
        if worst < Answer.UNDECIDED:
            return
        ours = row_of(state, self.machine.abi)
        if worst is Answer.UNDECIDED:
            self.undecided[number, Undecided.STATE_UNKNOWN if ours is None else Undecided.OTHER_PLACE] += 1
            return
        rules = ((row.cfa, ours and ours.cfa), (row.ra, ours and ours.ra), (row.fp, ours and ours.fp))
        self.contradictions += [
            Contradiction(vaddr, number, subject, *both, opinion.value)
            for subject, opinion, both in zip(SUBJECTS, opinions, rules, strict=True)
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
