# SPDX-License-Identifier: Apache-2.0
"""The frame at every instruction of all stubs, computed by following the flow from their entries.

Code outside the stubs may enter at the first instruction of a block and at each instruction after the end of the flow
(the second half of a lazy stub, whose address is in its GOT slot). The frame there is that of a function's entry. A
block that other stubs jump to is entered only by them, with their frames. Instructions that no flow reaches (padding,
and the endless loop after a call that does not return) are never executed; they get the frame of the one before.

The blocks of a run are treated as one: a frame that is possible in one of them is possible in all.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import Flow
from cfi2sframe.plt.stub_model import Problem
from cfi2sframe.plt.stub_reasons import StubReason

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.plt.stub_model import StubArch, StubEffect, Unit

#: Limits that real stubs do not reach: words on the stack, targets of a jump, states at an instruction.
_MAX_WORDS: Final = 8
_MAX_TARGETS: Final = 64
_MAX_STATES: Final = 8


class StubFrame(NamedTuple):
    """CFA = SP + `depth`; RA is saved at CFA + `ra_offset` (None: it is where it was at entry). Both count bytes."""

    depth: int
    ra_offset: int | None = None


class _FlowNode(NamedTuple):
    """An instruction, by the index of its unit and its index in the unit's block."""

    unit: int
    insn: int


class _State(NamedTuple):
    """A frame, and the words pushed since the entry: the instruction to which a call returns, None for others."""

    frame: StubFrame
    words: tuple[_FlowNode | None, ...] = ()


class UnitFrames(NamedTuple):
    """The frame at each instruction of a unit's block, or the problem there; `problem` concerns the whole unit."""

    frames: tuple[StubFrame | Problem, ...]
    problem: Problem | None = None


def follow(
    units: Sequence[Unit], stubs: StubArch, entry: StubFrame, first_entry: Callable[[Unit], StubFrame | None]
) -> tuple[UnitFrames, ...]:
    """Return the frames of all units, which have to be in ascending order.

    `entry` is the frame at the entry of a function. `first_entry(unit)` returns the frame at the entry of a first block
    that no stub jumps to, or None where nothing is known to enter it.
    """
    return _Flow(units, stubs, entry, first_entry).run()


class _Flow:
    """The work of `follow`: instructions with the states that reach them, until nothing new is found."""

    def __init__(
        self,
        units: Sequence[Unit],
        stubs: StubArch,
        entry: StubFrame,
        first_entry: Callable[[Unit], StubFrame | None],
    ) -> None:
        self.units = units
        self.stubs = stubs
        self.entry = entry
        self.first_entry = first_entry
        self.starts = [unit.start_vaddr for unit in units]
        self.index_at = [{insn.offset: index for index, insn in enumerate(unit.block.instructions)} for unit in units]
        self.problems: dict[int, Problem] = {}
        self.node_problems: dict[_FlowNode, Problem] = {}
        #: Where each direct jump or call leads; None: out of the stubs.
        self.targets: dict[_FlowNode, tuple[_FlowNode | None, ...]] = {}
        self.states: dict[_FlowNode, set[_State]] = {}
        self.work: list[tuple[_FlowNode, _State]] = []

    def run(self) -> tuple[UnitFrames, ...]:
        """Return the frames of all units, in their order."""
        for number, unit in enumerate(self.units):
            for index, insn in enumerate(unit.block.instructions):
                if insn.effect.target_delta is not None:
                    node = _FlowNode(number, index)
                    self.targets[node] = self._targets_of(node)
        jumped_to = self._jumped_to()
        for number, unit in enumerate(self.units):
            for index in unit.block.entries:
                node = _FlowNode(number, index)
                if unit.block_count == 1 and node in jumped_to:
                    continue
                frame = self.first_entry(unit) if self._is_first_block(unit) else self.entry
                if frame is None:
                    self.problems[number] = Problem(StubReason.ENTRY_UNKNOWN, "a first block")
                else:
                    self._reach(node, _State(frame))
        while self.work:
            self._step(*self.work.pop())
        return tuple(self._frames_of(number) for number in range(len(self.units)))

    def _is_first_block(self, unit: Unit) -> bool:
        """Whether a block pushes and jumps to the dynamic loader: a first block, which only stubs should enter."""
        effects = [insn.effect for insn in unit.block.instructions]
        return (
            unit.block_count == 1
            and unit.block.entries == (0,)
            and any(effect.push_size > 0 for effect in effects)
            and all(effect.target_delta is None for effect in effects)
        )

    def _jumped_to(self) -> set[_FlowNode]:
        """Return the targets of jumps and calls; a block's own jumps to its start leave that start an entry."""
        return {
            node
            for source, targets in self.targets.items()
            for node in targets
            if node is not None and (node.insn or source.unit != node.unit)
        }

    def _targets_of(self, node: _FlowNode) -> tuple[_FlowNode | None, ...]:
        unit = self.units[node.unit]
        insn = unit.block.instructions[node.insn]
        size, delta_of = unit.block_size, self.stubs.branch_delta
        inside: set[int] = set()
        vaddrs: set[int] = set()
        for start in range(0, len(unit.data), size):
            delta = delta_of(unit.data, start + insn.offset, insn.size) - start
            if 0 <= delta < size:
                inside.add(delta)
            else:
                vaddrs.add(unit.start_vaddr + start + delta)
        if len(vaddrs) > _MAX_TARGETS:
            self.problems[node.unit] = Problem(StubReason.MIXED_BLOCKS, f"jumps to {len(vaddrs)} places")
            return ()
        targets = {self._node_in(node.unit, delta) for delta in inside}
        targets |= {self._node_at(vaddr) for vaddr in vaddrs}
        return tuple(targets)

    def _node_at(self, vaddr: int) -> _FlowNode | None:
        number = bisect_right(self.starts, vaddr) - 1
        if number < 0 or vaddr >= self.units[number].end_vaddr:
            return None
        unit = self.units[number]
        return self._node_in(number, (vaddr - unit.start_vaddr) % unit.block_size)

    def _node_in(self, number: int, offset: int) -> _FlowNode | None:
        index = self.index_at[number].get(offset)
        if index is None:
            self.problems[number] = Problem(StubReason.JUMP_INTO_INSTRUCTION, "a jump leads there", offset)
            return None
        return _FlowNode(number, index)

    def _reach(self, node: _FlowNode, state: _State) -> None:
        if node.insn >= len(self.units[node.unit].block.instructions):
            self._fail(
                _FlowNode(node.unit, node.insn - 1),
                StubReason.UNKNOWN_INSTRUCTION,
                "control runs past its end",
            )
            return
        known = self.states.setdefault(node, set())
        if state in known:
            return
        if len(known) >= _MAX_STATES or len(state.words) > _MAX_WORDS:
            self.node_problems[node] = Problem(StubReason.DEPTH_CONFLICT, "a loop that pushes or pops")
            return
        known.add(state)
        self.work.append((node, state))

    def _step(self, node: _FlowNode, state: _State) -> None:
        """Pass the state after an instruction on to the instructions where the flow continues."""
        effect = self.units[node.unit].block.instructions[node.insn].effect
        following = _FlowNode(node.unit, node.insn + 1)
        after = self._apply(effect, node, state)
        if after is None:
            return
        match effect.flow:
            case Flow.NEXT:
                self._reach(following, after)
            case Flow.JUMP:
                self._go(node, after)
            case Flow.CALL:
                if None in self.targets[node]:
                    self._fail(node, StubReason.CALL_OUTSIDE, "call")
                self._go(node, _State(_push(after.frame, 8), (*after.words, following)))
            case Flow.RETURN:
                # Otherwise the flow leaves the stubs: to the caller, or to the address in a word of unknown value.
                if after.words and after.words[-1] is not None:
                    self._reach(after.words[-1], _State(_push(after.frame, -8), after.words[:-1]))

    def _apply(self, effect: StubEffect, node: _FlowNode, state: _State) -> _State | None:
        """Return the state after an instruction, before a call pushes or a return pops; None on failure."""
        frame, words = state
        if effect.overwrites_top:
            if not words:
                self._fail(node, StubReason.UNBALANCED, "the caller's stack is written to")
                return None
            words = (*words[:-1], None)
        if effect.push_size == 0:
            return _State(frame, words)
        frame = _push(frame, effect.push_size)
        word_count = abs(effect.push_size) // 8
        if effect.push_size > 0:
            words += (None,) * min(word_count, _MAX_WORDS + 1)
        elif word_count > len(words):
            self._fail(node, StubReason.UNBALANCED, f"{word_count} words, {len(words)} were pushed")
            return None
        else:
            words = words[:-word_count]
        if effect.ra_at is not None:
            frame = StubFrame(frame.depth, effect.ra_at - frame.depth)
        return _State(frame, words)

    def _go(self, node: _FlowNode, state: _State) -> None:
        for target in self.targets[node]:
            if target is not None:
                self._reach(target, state)

    def _fail(self, node: _FlowNode, reason: StubReason, detail: str) -> None:
        offset = self.units[node.unit].block.instructions[node.insn].offset
        self.problems.setdefault(node.unit, Problem(reason, detail, offset))

    def _frames_of(self, number: int) -> UnitFrames:
        frames: list[StubFrame | Problem] = []
        for index, insn in enumerate(self.units[number].block.instructions):
            node = _FlowNode(number, index)
            reaching = {state.frame for state in self.states.get(node, ())}
            frame: StubFrame | Problem
            if node in self.node_problems:
                frame = self.node_problems[node]._replace(offset=insn.offset)
            elif len(reaching) == 1:
                frame = reaching.pop()
            elif reaching:
                depths = ", ".join(str(frame.depth) for frame in sorted(reaching, key=_depth_of))
                frame = Problem(StubReason.DEPTH_CONFLICT, f"CFA is SP plus one of {depths}", insn.offset)
            elif frames:
                frame = frames[-1]
            else:
                frame = Problem(StubReason.NEVER_REACHED, "", insn.offset)
            frames.append(frame)
        return UnitFrames(tuple(frames), self.problems.get(number))


def _push(frame: StubFrame, size: int) -> StubFrame:
    """Move SP; offsets from the CFA do not change."""
    return StubFrame(frame.depth + size, frame.ra_offset)


def _depth_of(frame: StubFrame) -> int:
    return frame.depth
