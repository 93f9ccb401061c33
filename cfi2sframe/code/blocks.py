# SPDX-License-Identifier: Apache-2.0
"""Code cut into blocks: instructions that are executed one after the other, up to a jump or to another block.

Most instructions compute what no frame depends on. A block keeps the steps that may change a state, whatever it is at
the start of the block: half of the time of the analysis would go into the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.ascending import Ascending
from cfi2sframe.code.effects import BETWEEN_STEPS, JUMP_TARGET, NOTHING, RA_SIGN_STATE, Condition, Flow, Op, Step
from cfi2sframe.code.values import signed
from cfi2sframe.elf.constants import ET_EXEC

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.code.effects import CodeArch, Effect

_WORD: Final = 8
#: Where a block is cut in any case, so that its cost is counted before too much of it has been spent.
_MAX_CHANGES: Final = 256


class Change(NamedTuple):
    """An instruction of a block that changes values; `changed` is as in `decoder.Decoded`."""

    vaddr: int
    end_vaddr: int
    steps: tuple[Step, ...]
    changed: int


class Exit(NamedTuple):
    """The last instruction of a block whose flow does not simply continue; None is an effect that is not known.

    `comparison` is what a branch depends on, where a state may tell more by that.
    """

    vaddr: int
    end_vaddr: int
    effect: Effect | None
    comparison: Step | None = None


class Block(NamedTuple):
    """The instructions from one address up to `end_vaddr`: those that change values, and the exit.

    Without an exit, another block follows; where `is_cut`, no instruction does. `changed` has a bit for each register
    that changes. Of an exit, too, the steps are among the changes.
    """

    end_vaddr: int
    changes: tuple[Change, ...]
    exit: Exit | None
    changed: int
    is_cut: bool


class Blocks:
    """The blocks of some code, by their starts; a block ends where the next one starts.

    `addresses` are those of code and data: other constants are kept in a system call's number only.
    """

    def __init__(self, decoder: Decoder, addresses: range) -> None:
        self.decoder = decoder
        self.addresses = addresses
        self._has_fixed_addresses = decoder.image.header.type == ET_EXEC
        self._starts = Ascending()
        self._known: set[int] = set()
        self._blocks: dict[int, Block] = {}

    def __getitem__(self, start: int) -> Block:
        block = self._blocks.get(start)
        if block is None:
            block = self._blocks[start] = self._cut(start)
        return block

    def add(self, start: int) -> int | None:
        """Let a block start at an address; return the start of the block that has the address so far, if any."""
        before = self._starts.at_most(start)
        self._starts.add(start)
        self._known.add(start)
        if before is None:
            return None
        block = self._blocks.get(before)
        if block is None or start >= block.end_vaddr:
            return None
        del self._blocks[before]
        return before

    def remove(self, starts: Iterable[int]) -> None:
        """Forget some blocks."""
        gone = set(starts)
        self._known -= gone
        self._starts.remove(gone)
        for start in gone:
            self._blocks.pop(start, None)

    def holder_of(self, vaddr: int) -> int | None:
        """Return the start of the block, of those that have been looked at, that has an address."""
        start = self._starts.at_most(vaddr)
        if start is None:
            return None
        block = self._blocks.get(start)
        return start if block is not None and vaddr < block.end_vaddr else None

    def _cut(self, start: int) -> Block:
        decoder, known, targets = self.decoder, self._known, self.decoder.branch_targets
        changes: list[Change] = []
        sieve = _Sieve(decoder.arch, self.addresses, has_fixed_addresses=self._has_fixed_addresses)
        changed = 0
        vaddr = start
        while True:
            decoded = decoder.at(vaddr)
            if decoded is None:
                return Block(vaddr, tuple(changes), None, changed, is_cut=True)
            size, effect, bits = decoded
            end = vaddr + size
            if effect is None:
                return Block(end, tuple(changes), Exit(vaddr, end, None), changed, is_cut=False)
            if effect.steps:
                changed |= bits
                steps = sieve.left_of(effect.steps)
                if steps:
                    changes.append(Change(vaddr, end, steps, bits))
            if effect.flow is not Flow.NEXT:
                comparison = sieve.comparison if effect.condition is not Condition.NONE else None
                return Block(end, tuple(changes), Exit(vaddr, end, effect, comparison), changed, is_cut=False)
            if end in known or end in targets or len(changes) == _MAX_CHANGES:
                return Block(end, tuple(changes), None, changed, is_cut=False)
            vaddr = end


class _Sieve:
    """Leaves out the steps of a block that change nothing that can be known, as what was forgotten in it before.

    `comparison` is the last one, as long as what it compared has not changed.
    """

    def __init__(self, arch: CodeArch, addresses: range, *, has_fixed_addresses: bool) -> None:
        self.comparison: Step | None = None
        self._sp_register = arch.sp_register
        #: Registers whose numbers matter, also those that are no addresses.
        self._numbered = (arch.system_call_register, JUMP_TARGET, RA_SIGN_STATE)
        self._addresses = addresses
        self._has_fixed_addresses = has_fixed_addresses
        #: Registers with a number, as the size of a large frame.
        self._numbers: dict[int, int] = {}
        #: Registers of which nothing is known, whatever was known at the block's start. The target of a jump that led
        #: to the block may be known there.
        self._lost = {BETWEEN_STEPS}

    def left_of(self, steps: tuple[Step, ...]) -> tuple[Step, ...]:
        """Return those of an instruction's steps that matter."""
        lost = self._lost
        left: list[Step] = []
        for step in steps:
            op, register = step.op, step.register
            is_number = op is Op.NUMBER or (op is Op.ABSOLUTE and not self._has_fixed_addresses)
            if op in (Op.NUMBER, Op.ABSOLUTE):
                op, step = Op.CONSTANT, step._replace(op=Op.CONSTANT)  # noqa: PLW2901
            if op in (Op.COMPARE, Op.COMPARE_AND_BRANCH):
                self.comparison = None if register == NOTHING else step
                continue
            if op is Op.STORE:
                if register not in lost:
                    left.append(step)
                continue
            comparison = self.comparison
            if comparison is not None and register in (comparison.register, comparison.source):
                self.comparison = None
            if op is Op.ADD and step.source in self._numbers and step.size == _WORD:
                number = signed(self._numbers[step.source]) * step.scale
                step = Step(Op.MOVE, register, register, number)  # noqa: PLW2901
            self._numbers.pop(register, None)
            if op is Op.CONSTANT and step.size == _WORD:
                self._numbers[register] = step.offset
            if register != self._sp_register and self._is_unknown(step, is_number=is_number):
                if register not in lost:
                    lost.add(register)
                    left.append(Step(Op.FORGET, register))
                continue
            left.append(step)
            lost.discard(register)
        return tuple(left)

    def _is_unknown(self, step: Step, *, is_number: bool) -> bool:
        """Whether a step gives its register a value of which nothing is known."""
        op, lost = step.op, self._lost
        if op is Op.MOVE:
            return step.source in lost
        if op is Op.FORGET:
            return True
        if op is Op.LOAD:
            return step.source in lost or step.size != _WORD
        if op is Op.CONSTANT:
            is_address = step.offset in self._addresses
            if step.register in self._numbered:
                # No system call has a number that is as high as the address of code.
                return is_number and is_address
            return is_number or not is_address
        if op is Op.ADD:
            return step.source in lost or step.register in lost
        return op is Op.LOAD_INDEXED and step.source in lost
