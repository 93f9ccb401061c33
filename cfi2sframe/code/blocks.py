# SPDX-License-Identifier: Apache-2.0
"""Code cut into blocks: instructions that are executed one after the other, up to a jump or to another block."""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.code.effects import Flow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.code.effects import Effect, Step


class Change(NamedTuple):
    """An instruction of a block that changes values; `changed` is as in `decoder.Decoded`."""

    vaddr: int
    end_vaddr: int
    steps: tuple[Step, ...]
    changed: int


class Exit(NamedTuple):
    """The last instruction of a block whose flow does not simply continue; None is an effect that is not known."""

    vaddr: int
    end_vaddr: int
    effect: Effect | None


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
    """The blocks of some code, by their starts; a block ends where the next one starts."""

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        self._starts: list[int] = []
        self._known: set[int] = set()
        self._blocks: dict[int, Block] = {}

    def __getitem__(self, start: int) -> Block:
        block = self._blocks.get(start)
        if block is None:
            block = self._blocks[start] = self._cut(start)
        return block

    def add(self, start: int) -> int | None:
        """Let a block start at an address; return the start of the block that has the address so far, if any."""
        index = bisect_right(self._starts, start)
        insort(self._starts, start)
        self._known.add(start)
        if index == 0:
            return None
        before = self._starts[index - 1]
        block = self._blocks.get(before)
        if block is None or start >= block.end_vaddr:
            return None
        del self._blocks[before]
        return before

    def remove(self, starts: Iterable[int]) -> None:
        """Forget some blocks."""
        gone = set(starts)
        self._known -= gone
        self._starts = [start for start in self._starts if start not in gone]
        for start in gone:
            self._blocks.pop(start, None)

    def holder_of(self, vaddr: int) -> int | None:
        """Return the start of the block, of those that have been looked at, that has an address."""
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0:
            return None
        block = self._blocks.get(self._starts[index])
        return self._starts[index] if block is not None and vaddr < block.end_vaddr else None

    def _cut(self, start: int) -> Block:
        decoder, known, targets = self.decoder, self._known, self.decoder.branch_targets
        changes: list[Change] = []
        changed = 0
        vaddr = start
        while True:
            decoded = decoder.at(vaddr)
            if decoded is None:
                return Block(vaddr, tuple(changes), None, changed, is_cut=True)
            end, effect, bits = decoded
            if effect is None:
                return Block(end, tuple(changes), Exit(vaddr, end, None), changed, is_cut=False)
            changed |= bits
            if effect.steps:
                changes.append(Change(vaddr, end, effect.steps, bits))
            if effect.flow != Flow.NEXT:
                return Block(end, tuple(changes), Exit(vaddr, end, effect), changed, is_cut=False)
            if end in known or end in targets:
                return Block(end, tuple(changes), None, changed, is_cut=False)
            vaddr = end
