# SPDX-License-Identifier: Apache-2.0
"""The CFI at an address, and what it tells of control: where functions start, where calls and jumps do not lead.

The start of a cold part of a function is no entry: its CFI is not that of one, and jumps lead there. Where the CFA's
rule changes right after a call, the call does not come back.
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
from cfi2sframe.instructions.effects import RA_SIGN_STATE, Op
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

    `owners` has the FDE of each address, `fde_starts` where what an FDE owns begins, and `starts` of those the ones of
    functions; what turns out to be called is added.
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
        """Return what is in force at an address."""
        first, last, number = self.owners.range_at(vaddr)
        if number is None:
            return InForce(vaddr, last)
        start, table = self.cfi.starts[number], self.cfi.program(number).table
        following = bisect_right(table.starts, vaddr - start)
        end = start + table.starts[following] if following < len(table.starts) else last
        begin = start + table.starts[following - 1]
        return InForce(max(begin, first), min(end, last), number, table.states[following - 1])

    def _functions(self) -> set[int]:
        """Return where the functions start whose first row has an entry's CFA and RA, or that a file exports."""
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
            after = self.in_force(first.end_vaddr)
            is_changed = after.number == first.number and after.row != row
            if is_changed and any(vaddr >= first.end_vaddr for vaddr in self.through_padding(start)):
                # A cold part whose landing pad is first: the compiler puts a nop before a pad, which only unwinders
                # enter, so nothing is at the start that could make the frame that its next row has.
                continue
            functions.add(start)
        return functions

    def _signs(self, vaddr: int) -> bool:
        instruction = self.at(vaddr)
        steps = instruction.effect.steps if instruction is not None and instruction.effect is not None else ()
        return any(step.register == RA_SIGN_STATE and step.offset != 0 for step in steps)

    def answers(self, number: int, row: RowState, state: State) -> Answers:
        """Return what a state says of a row of an FDE."""
        return answers_of(row, state, self.abi, uses_b_key=self.cfi.program(number).cie.uses_b_key)

    def comes_back(self, vaddr: int, end: int) -> bool:
        """Return whether a call may come back to an address, for all that the CFI says."""
        before, after = self.in_force(vaddr), self.in_force(end)
        if before.row is None or after.row is None:
            return before.row is after.row
        if before.number != after.number:
            return False
        return before.row.cfa == after.row.cfa or self._is_early(before.row.cfa, end, after)

    def _is_early(self, cfa: CfaRule | None, vaddr: int, row: InForce) -> bool:
        """Return whether a row is right one instruction after its start, and had another rule of the CFA before it."""
        instruction = self.at(vaddr)
        if (
            instruction is None
            or instruction.effect is None
            or vaddr + instruction.size >= row.end_vaddr
            or not isinstance(cfa, Rule)
        ):
            return False
        sp = self.abi.arch.sp_register
        steps = instruction.effect.steps
        moved = sum(step.offset for step in steps if step.op is Op.MOVE and step.register == step.source == sp)
        return moved != 0 and row.row is not None and row.row.cfa == cfa._replace(offset=cfa.offset - moved)

    def may_hold(self, entry: int, vaddr: int) -> bool:
        """Return whether an address is not in the FDE of another function."""
        there = self.in_force(vaddr)
        if there.number is None or there.row is None:
            return False
        start = self.cfi.starts[there.number]
        return start == entry or start not in self.starts

    def fits(self, vaddr: int, state: State) -> bool:
        """Return whether the CFI of an address does not contradict a state."""
        in_force = self.in_force(vaddr)
        if in_force.row is None or in_force.number is None:
            return False
        return Answer.CONTRADICTS not in self.answers(in_force.number, in_force.row, state)

    def in_table(self, jump: int, targets: Sequence[int]) -> list[int]:
        """Return the targets of a table's words to which its jump leads, for all that the CFI says.

        A table may be followed by another one, and have words for what is never reached, past the end. A jump leaves
        the frame as it is: where the CFI says otherwise, it is contradicted by a word before one that agrees.
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
