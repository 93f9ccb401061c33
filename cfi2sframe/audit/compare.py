# SPDX-License-Identifier: Apache-2.0
"""Compare the CFI of an image with its instructions: functions are followed from their FDEs."""

from collections import Counter
from typing import Final, NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.audit.agreement import SILENT, Answer, Answers, signing_key
from cfi2sframe.audit.findings import SIGNATURES, Contradiction, Finding, Subject, findings_of
from cfi2sframe.audit.flow import CfiFlow, InForce
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import CfaRule, NoRule, RowState
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.effects import RA_SIGN_STATE
from cfi2sframe.instructions.function import Followed
from cfi2sframe.instructions.machine import Machine
from cfi2sframe.instructions.rows import row_of
from cfi2sframe.instructions.states import CFA, State
from cfi2sframe.process.guard import grant_for_code
from cfi2sframe.why import Reason

SUBJECTS: Final[tuple[Subject, ...]] = ("CFA", "RA", "FP", "signing")
_UNDECIDED: Final = (Answer.UNDECIDED,) * 4


class NotCompared(NamedTuple):
    """Instructions of a function that were not compared, and why."""

    place: str
    function: str
    reason: str
    instruction_count: int


class Audit(NamedTuple):
    """The result for a file; counts are of instructions, except `function_count` (FDEs) and `code_size` (bytes).

    An instruction is decided if its CFA, RA and FP are, on AArch64 also the RA's signature; it agrees if nothing
    contradicts it. `tallies` counts the instructions that give an `Answer` about each of `SUBJECTS`. `not_compared` is
    ordered by counts, highest first, `findings` by addresses.
    """

    name: str
    function_count: int
    code_size: int
    agreed_count: int
    contradicted_count: int
    tallies: dict[Subject, tuple[int, ...]]
    not_compared: tuple[NotCompared, ...]
    findings: tuple[Finding, ...]

    @property
    def undecided(self) -> dict[str, int]:
        """Instructions of which at least one rule is undecided, and none is contradicted, by reason."""
        counts = Counter[str]()
        for skipped in self.not_compared:
            counts[skipped.reason] += skipped.instruction_count
        return dict(counts)

    @property
    def decided_count(self) -> int:
        """Instructions whose rules all were decided."""
        return self.agreed_count + self.contradicted_count

    @property
    def instruction_count(self) -> int:
        """All instructions that were reached, or that CFI describes."""
        return self.decided_count + sum(self.undecided.values())


def audit(image: ElfImage, kind: CfiKind | None = None) -> Audit:
    """Compare the CFI of an image, of one kind or of all, with what its instructions do to the stack.

    Raises `InputError` when there is no CFI, none that can be read, or capstone cannot be loaded.
    """
    return _Auditor(image, read_programs(image, *find_cfi(image, kind)).or_raise().entries).run()


class _Auditor:
    """Follows the functions of an image, compares their states with the rows in force, and counts."""

    def __init__(self, image: ElfImage, entries: CfiEntries) -> None:
        self.image = image
        self.entries = entries
        self.flow = CfiFlow(image, entries)
        #: The functions whose states were compared, and the starts of FDEs that they call.
        self.compared: set[int] = set()
        self.called: set[int] = set()
        #: The sizes of the instructions that were reached.
        self.sizes: dict[int, int] = {}
        self.tallies = Counter[Answers]()
        self.undecided = Counter[tuple[int, Reason]]()
        self.contradictions: list[Contradiction] = []
        #: States that contradict the first rows of parts: another function's empty part may be at the same address.
        self.doubted: dict[int, tuple[int, RowState, State]] = {}

    def run(self) -> Audit:
        """Follow all functions; return the result."""
        grant_for_code(self.flow.stored_size)
        # Rules of CFI outlive what restores a register, as long as its slot is in the red zone.
        machine = Machine(self.flow, self._compare, kept=self.flow.abi.red_zone)
        waiting = self.flow.starts
        while waiting:
            for start in sorted(waiting):
                if start not in self.compared and self.flow.holds(start):
                    machine.follow(start)
            # What a function calls is a function, whatever its first row is.
            waiting = self.called - self.flow.starts
            self.flow.starts |= waiting
        for vaddr, (number, row, state) in self.doubted.items():
            if vaddr not in self.sizes:
                self._count(vaddr, number, row, self.flow.answers(number, row, state), state)
        self._not_reached()
        return self._result()

    def _result(self) -> Audit:
        tallies = {
            subject: tuple(
                sum(count for answers, count in self.tallies.items() if answers[n] is answer) for answer in Answer
            )
            for n, subject in enumerate(SUBJECTS)
            if subject != "signing" or self.image.arch.ra_may_be_signed
        }
        undecided = [(self.entries.starts[number], reason, count) for (number, reason), count in self.undecided.items()]
        undecided.sort(key=lambda counted: (-counted[2], counted[0], counted[1].value))
        names = self.image.names_of(vaddr for vaddr, _, _ in undecided)
        owned = [end - start for start, end, _ in self.flow.owners.held()]
        return Audit(
            self.image.name,
            len(owned),
            sum(owned),
            sum(count for answers, count in self.tallies.items() if max(answers) <= Answer.AGREES),
            sum(count for answers, count in self.tallies.items() if max(answers) is Answer.CONTRADICTS),
            tallies,
            tuple(
                NotCompared(self.image.place_text(vaddr), names.get(vaddr, ""), reason.value, count)
                for vaddr, reason, count in undecided
            ),
            findings_of(self.contradictions, self.entries, self.flow),
        )

    def _compare(self, function: Followed) -> None:
        """Compare the states of a function with the rows in force."""
        if function.entry not in self.flow.starts:
            return
        self.compared.add(function.entry)
        self.called |= function.calls & self.flow.fde_starts
        abi, states, sizes = self.flow.abi, function.states, self.sizes
        in_force: InForce | None = None
        last: tuple[State, Answers] | None = None
        for vaddr in sorted([vaddr for vaddr in states if vaddr not in sizes]):
            state = states[vaddr]
            if in_force is None or not in_force.start_vaddr <= vaddr < in_force.end_vaddr:
                in_force, last = self.flow.in_force(vaddr), None
            number, row = in_force.number, in_force.row
            if row is None or number is None:
                continue
            if vaddr in self.flow.fde_starts and vaddr not in self.flow.starts and not self.flow.fits(vaddr, state):
                self.doubted.setdefault(vaddr, (number, row, state))
                continue
            if vaddr in function.call_sites and not abi.arch.fixed_ra_offset:
                # Unwinding from the called function uses this row, and the call has changed the RA's register.
                state = {key: value for key, value in state.items() if key != abi.arch.ra_register}
            if last is None or last[0] is not state:
                last = state, self.flow.answers(number, row, state)
            self._count(vaddr, number, row, last[1], state)

    def _count(self, vaddr: int, number: int, row: RowState, answers: Answers, state: State) -> None:
        """Count an instruction with a row of an FDE."""
        instruction = self.flow.at(vaddr)
        self.sizes[vaddr] = 1 if instruction is None else instruction.size
        if self.entries.program(number).cie.is_signal_frame:
            # The CFI describes interrupted code.
            answers = _UNDECIDED
        self.tallies[answers] += 1
        worst = max(answers)
        if worst is Answer.UNDECIDED:
            self.undecided[number, Reason.NOT_FOLLOWED] += 1
        elif worst is Answer.CONTRADICTS:
            ours = row_of(state, self.flow.abi)
            cfa = _cfa_from(row.cfa, state) or (ours and ours.cfa)
            key = signing_key(row.signing, uses_b_key=self.entries.program(number).cie.uses_b_key)
            signatures = SIGNATURES[key], SIGNATURES[state.get(RA_SIGN_STATE, (0, 0))[1]]
            rules = ((row.cfa, cfa), (row.ra, ours and ours.ra), (row.fp, ours and ours.fp), signatures)
            self.contradictions += [
                Contradiction(vaddr, number, subject, *both)
                for subject, answer, both in zip(SUBJECTS, answers, rules, strict=True)
                if answer is Answer.CONTRADICTS
            ]

    def _not_reached(self) -> None:
        """Count the instructions to which no path leads, without padding. Rows without a caller claim nothing."""
        for start, end, number in self.flow.owners.held():
            vaddr = start
            while vaddr < end:
                size = self.sizes.get(vaddr)
                if size is None:
                    instruction = self.flow.at(vaddr)
                    if instruction is None:
                        break
                    size = instruction.size
                    if instruction.effect is None or not instruction.effect.is_padding:
                        row = self.flow.in_force(vaddr).row
                        if row is not None and row.ra is NoRule.UNDEFINED:
                            self.tallies[SILENT] += 1
                        else:
                            self.undecided[number, Reason.NO_PATH] += 1
                vaddr += size


def _cfa_from(rule: CfaRule | None, state: State) -> Rule | None:
    """Return the CFA's rule by the register that the CFI has, where that leads to the CFA: only the offset is wrong."""
    register = rule.register if isinstance(rule, Rule) else None
    value = None if register is None else state.get(register)
    return Rule(register, -value[1], deref=False) if value is not None and value[0] == CFA else None
