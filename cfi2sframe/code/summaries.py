# SPDX-License-Identifier: Apache-2.0
"""What is known of functions while control is followed: whether they come back, and what they leave as it was.

A function is known by the block that it begins with. What a block does holds of each block from which control gets
there, too; where that is the first one of a function, the blocks that call it are followed again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cfi2sframe.code.effects import CodeArch

#: A bit for each general register of any ABI.
_ALL: Final = (1 << 32) - 1


class Summaries:
    """The ways between blocks, and what follows from them.

    `follow_again(block)` is called for callers of a function of which more is known. Registers are bits of a number.
    """

    def __init__(self, arch: CodeArch, follow_again: Callable[[int], None]) -> None:
        #: Registers that a function of the ABI may change; and those that the functions here are watched for.
        self.clobbered = sum(1 << register for register in arch.call_clobbered)
        self._watched = _ALL & ~(1 << arch.sp_register | 1 << arch.fp_register)
        self._follow_again = follow_again
        #: By block, those from which control gets there within a function; by entry, the blocks that call it.
        self._before: dict[int, set[int]] = {}
        self._callers: dict[int, set[int]] = {}
        self._returning: set[int] = set()
        self._spoiling_fp: set[int] = set()
        #: By block, the registers that are changed on some way from there to a return.
        self._changed: dict[int, int] = {}

    # Ways

    def add_way(self, start: int, target: int) -> None:
        """Note that control gets from one block to another."""
        before = self._before.setdefault(target, set())
        if start in before:
            # What is known of the target since then has been passed on.
            return
        before.add(start)
        if target in self._returning:
            self.mark_returning(start)
        if target in self._spoiling_fp:
            self.mark_spoiling_fp(start)
        self.mark_changed(start, self._changed.get(target, 0))

    def add_call(self, start: int, target: int) -> None:
        """Note that a block calls a function."""
        self._callers.setdefault(target, set()).add(start)

    def has_way(self, start: int, target: int) -> bool:
        """Whether control gets from one block to another."""
        return start in self._before.get(target, ())

    def callers_of(self, start: int) -> Collection[int]:
        """Return the blocks that call a function, also those that the flow has forgotten."""
        return self._callers.get(start, ())

    def is_only_called(self, start: int, blocks: Collection[int]) -> bool:
        """Whether calls lead to a block, and otherwise only control from among some blocks."""
        return start in self._callers and all(before in blocks for before in self._before.get(start, ()))

    # What functions do

    def returns(self, start: int) -> bool:
        """Whether a function may come back to its caller."""
        return start in self._returning

    def keeps_fp(self, start: int) -> bool:
        """Whether a function leaves FP as it was, for all that is known."""
        return start not in self._spoiling_fp

    def changed_by(self, start: int) -> int:
        """Return the registers that a function may change, of those that are watched: all but SP and FP."""
        return self._changed.get(start, 0)

    def mark_returning(self, start: int) -> None:
        """Note that a block returns from its function."""
        self._mark(start, self._returning)

    def mark_spoiling_fp(self, start: int) -> None:
        """Note that a block returns with another FP than its caller's."""
        self._mark(start, self._spoiling_fp)

    def mark_unknown(self, start: int) -> None:
        """Note that a block is left for code of which nothing is known but the ABI."""
        self.mark_changed(start, self.clobbered)
        self.mark_returning(start)

    def mark_changed(self, start: int, registers: int) -> None:
        """Note that registers are changed in a block."""
        registers &= self._watched
        waiting = [start]
        while waiting:
            block = waiting.pop()
            known = self._changed.get(block, 0)
            if known | registers == known:
                continue
            self._changed[block] = known | registers
            for caller in self._callers.get(block, ()):
                self._follow_again(caller)
            waiting += self._before.get(block, ())

    def _mark(self, start: int, marked: set[int]) -> None:
        """Mark a block, and those from which control gets there."""
        if start in marked:
            return
        marked.add(start)
        waiting = [start]
        while waiting:
            block = waiting.pop()
            for caller in self._callers.get(block, ()):
                self._follow_again(caller)
            for before in self._before.get(block, ()):
                if before not in marked:
                    marked.add(before)
                    waiting.append(before)
