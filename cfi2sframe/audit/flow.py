# SPDX-License-Identifier: Apache-2.0
"""The CFI at an address, and the control flow that follows from it: starts of functions, and where no path leads.

The start of a cold part of a function is no entry: its CFI is not that of one, and jumps lead there. Where the CFA's
rule changes right after a call, the call does not return.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Final, NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.audit.agreement import Answer, Answers, answers_of
from cfi2sframe.constants.elf import SHT_DYNSYM, STT_FUNC, STT_GNU_IFUNC
from cfi2sframe.conversion.owners import owners_of_code
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import CfaRule, NoRule, RaSigning, RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.code import Code
from cfi2sframe.instructions.effects import RA_SIGN_STATE, Op, Step
from cfi2sframe.instructions.states import State
from cfi2sframe.range_map import Span

UNCHANGED: Final = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE)
_FUNCTIONS: Final = (STT_FUNC, STT_GNU_IFUNC)


class InForce(NamedTuple):
    """The row of an FDE, by its number, in force at `[start_vaddr, end_vaddr)`; without an FDE, both are None."""

    start_vaddr: int
    end_vaddr: int
    number: int | None = None
    row: RowState | None = None


class CfiFlow(Code):
    """An image's code, whose flow the rows in force narrow: where FDEs overlap, those that the conversion takes.

    `owners` has the FDE of each address, and `fde_starts` the starts of what FDEs own; those of functions are `starts`,
    to which others are added that turn out to be called.
    """

    needs_proof = False

    def __init__(self, image: ElfImage, entries: CfiEntries) -> None:
        self.cfi = entries
        self.owners = owners_of_code(entries, image).owners
        self.fde_starts = frozenset(start for start, _, _ in self.owners.held())
        spans = [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges]
        super().__init__(image, spans, "the CFI is held to instructions", entries=self.fde_starts)
        self.starts = self._functions()

    def in_force(self, vaddr: int) -> InForce:
        """Return the row in force at an address."""
        first, last, number = self.owners.range_at(vaddr)
        if number is None:
            return InForce(vaddr, last)
        start, table = self.cfi.starts[number], self.cfi.program(number).table
        following = bisect_right(table.starts, vaddr - start)
        end = start + table.starts[following] if following < len(table.starts) else last
        begin = start + table.starts[following - 1]
        return InForce(max(begin, first), min(end, last), number, table.states[following - 1])

    def _functions(self) -> set[int]:
        """Return the starts of functions whose first row has an entry's CFA and RA, or that a file exports."""
        arch = self.abi.arch
        cfa = Rule(arch.sp_register, arch.entry_cfa_offset, deref=False)
        ras = UNCHANGED if not arch.fixed_ra_offset else (Rule(None, arch.fixed_ra_offset, deref=True),)
        functions = set(self.fde_starts & _exported(self.image))
        for start in self.fde_starts - functions:
            first = self.in_force(start)
            row = first.row
            if row is None or row.cfa != cfa or row.ra not in ras:
                continue
            if row.signing is not RaSigning.NONE and not self._signs(start):
                # A cold part, whose function has signed the RA.
                continue
            is_changed = self.in_force(first.end_vaddr).row != row
            if is_changed and any(vaddr >= first.end_vaddr for vaddr in self.through_padding(start)):
                # A cold part that begins with a landing pad, which only unwinders enter: before a pad, compilers put a
                # nop, and nothing makes the frame of the next row.
                continue
            functions.add(start)
        return functions

    def _steps_at(self, vaddr: int) -> tuple[Step, ...]:
        instruction = self.at(vaddr)
        return instruction.effect.steps if instruction is not None and instruction.effect is not None else ()

    def _signs(self, vaddr: int) -> bool:
        return any(step.register == RA_SIGN_STATE and step.offset != 0 for step in self._steps_at(vaddr))

    def answers(self, number: int, row: RowState, state: State) -> Answers:
        """Return a state's answers to a row of an FDE."""
        return answers_of(row, state, self.abi, uses_b_key=self.cfi.program(number).cie.uses_b_key)

    def comes_back(self, vaddr: int, end: int) -> bool:
        """Return whether a call may return to an address, by the CFI."""
        before, after = self.in_force(vaddr), self.in_force(end)
        if before.row is None or after.row is None:
            return before.row is after.row
        if before.number != after.number:
            return False
        return before.row.cfa == after.row.cfa or self._is_early(before.row.cfa, end, after)

    def _is_early(self, cfa: CfaRule | None, vaddr: int, after: InForce) -> bool:
        """Return whether a row begins one instruction too early: where that moves SP, and `cfa` is right before it."""
        instruction, sp = self.at(vaddr), self.abi.arch.sp_register
        if instruction is None or vaddr + instruction.size >= after.end_vaddr or not isinstance(cfa, Rule):
            return False
        moves = [
            step.offset for step in self._steps_at(vaddr) if step.op is Op.MOVE and step.register == step.source == sp
        ]
        moved = cfa._replace(offset=cfa.offset - sum(moves))
        return moved != cfa and after.row is not None and after.row.cfa == moved

    def may_hold(self, entry: int, vaddr: int) -> bool:
        """Return whether an FDE of the function has an address, or one of a part of any function."""
        there = self.in_force(vaddr)
        if there.number is None or there.row is None:
            return False
        start = self.cfi.starts[there.number]
        return start == entry or start not in self.starts

    def fits(self, vaddr: int, state: State) -> bool:
        """Return whether an address has a row that a state does not contradict."""
        in_force = self.in_force(vaddr)
        if in_force.row is None or in_force.number is None:
            return False
        return Answer.CONTRADICTS not in self.answers(in_force.number, in_force.row, state)

    def in_table(self, jump: int, targets: Sequence[int]) -> list[int]:
        """Return the targets of a table's words to which its jump may lead, by the CFI.

        A table may be followed by another one, and have words for cases that never occur, past the end. As a jump does
        not change the frame, a target with another row contradicts the CFI only if a later word has one with this row.
        """
        here = self.in_force(jump)
        led_to: list[int] = []
        doubted: list[int] = []
        for target in targets:
            there = self.in_force(target)
            if here.row and there.row and here.row[:3] == there.row[:3]:
                led_to += [*doubted, target]
                doubted = []
            elif there.number == here.number:
                doubted.append(target)
        return led_to


def _exported(image: ElfImage) -> set[int]:
    """Return the addresses of functions that other files may call."""
    exported: set[int] = set()
    for table in image.symbol_tables:
        if table.type == SHT_DYNSYM or image.is_relocatable:
            with suppress(ElfError):
                # Local symbols come first (gABI, "Symbol Table": sh_info).
                symbols = islice(image.symbols(table), table.info, None)
                exported.update(symbol.vaddr for symbol in symbols if symbol.vaddr and symbol.type in _FUNCTIONS)
    return exported
