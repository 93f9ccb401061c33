# SPDX-License-Identifier: Apache-2.0
"""What the ways out of code say of the stack depth: that of a function's end, or another one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import CALLS, JUMP_TARGET, Flow, Op
from cfi2sframe.code.flow import branch_states
from cfi2sframe.code.values import CFA, LOADED, RETURN_ADDRESS, Value

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.code.blocks import Block, Change
    from cfi2sframe.code.effects import Effect
    from cfi2sframe.code.flow import FlowAnalysis
    from cfi2sframe.code.values import State

_RA: Final = Value(RETURN_ADDRESS, 0)


class DepthVerdict(NamedTuple):
    """What the way out of a block says of the depth: it is that of a function's end, or another one, or neither."""

    confirms: bool = False
    contradicts: bool = False


_INDIRECT: Final = frozenset({Flow.RETURN, Flow.BRANCH_INDIRECT, Flow.JUMP_INDIRECT})
_NEUTRAL: Final = DepthVerdict()
_CONFIRMS: Final = DepthVerdict(confirms=True)
_CONTRADICTS: Final = DepthVerdict(contradicts=True)


class BlockEnd(NamedTuple):
    """How a block ends.

    `followers` are the blocks of the same function where control continues. `stop` is the address of an instruction
    that is not known, None without one.
    """

    followers: tuple[int, ...] = ()
    verdict: DepthVerdict = _NEUTRAL
    stop: int | None = None


class Exits:
    """Reads the blocks of a flow once all work is done."""

    def __init__(self, flow: FlowAnalysis) -> None:
        self.flow = flow
        self.arch = flow.arch
        #: Whether control has arrived in code of an earlier round.
        self.has_shared_code = False
        self._entry_sp = Value(CFA, flow.arch.entry_sp_offset)

    def read(
        self,
        start: int,
        look: Callable[[int, Change | None, State], None],
        look_at_call: Callable[[int, State], None],
    ) -> BlockEnd:
        """Return how a block ends.

        `look(vaddr, change, state)` is called for the block's start, without a change, and then for each address where
        an instruction has changed values, with the state there, which changes afterwards. `look_at_call(vaddr, state)`
        is called for a call, with the state before it: that is where the function stays until the call comes back.
        """
        flow = self.flow
        block = flow.blocks[start]
        state = flow.states[start].copy()
        look(start, None, state)
        call_vaddr = _call_vaddr(block)
        for change in block.changes:
            if change.vaddr == call_vaddr:
                look_at_call(change.vaddr, state)
            for step in change.steps:
                flow.machine.apply(state, step, change.vaddr)
            look(change.end_vaddr, change, state)
        if call_vaddr is not None and not (block.changes and block.changes[-1].vaddr == call_vaddr):
            look_at_call(call_vaddr, state)
        return self._ending(start, block, state)

    def _ending(self, start: int, block: Block, state: State) -> BlockEnd:
        if block.is_cut:
            return BlockEnd(stop=block.end_vaddr)
        if block.exit is None:
            return BlockEnd(*self._arrival(block.end_vaddr, state))
        effect, end = block.exit.effect, block.end_vaddr
        if effect is None:
            return BlockEnd(stop=block.exit.vaddr)
        if effect.flow in _INDIRECT:
            return self._indirect_ending(effect, state, block)
        flow, target = effect.flow, effect.target
        if flow is Flow.BRANCH and target is not None:
            taken, other = branch_states(self.arch, effect, block.exit.comparison, state)
            first, second = self._arrival(target, taken), self._arrival(end, other)
            return BlockEnd(first[0] + second[0], _stronger(first[1], second[1]))
        if flow is Flow.JUMP and target is not None:
            return BlockEnd(*self._arrival(target, state))
        if flow in CALLS:
            return BlockEnd((end,) if self.flow.comes_back(start, end) else ())
        if flow is Flow.SYSTEM_CALL:
            return self._system_call(block.exit.vaddr, end, state)
        return BlockEnd()

    def _indirect_ending(self, effect: Effect, state: State, block: Block) -> BlockEnd:
        """Return the ending of a block that leads to an address in a register."""
        if effect.flow is Flow.RETURN:
            return BlockEnd(verdict=self._return_verdict(effect, state, block))
        if effect.flow is Flow.BRANCH_INDIRECT:
            return self._conditional(block.end_vaddr, effect, state, block)
        return self._indirect(state)

    def _system_call(self, vaddr: int, end: int, state: State) -> BlockEnd:
        if not self.flow.is_last_call(state):
            self.flow.after_system_call(state, vaddr)
            return BlockEnd(*self._arrival(end, state))
        number = state.registers[JUMP_TARGET].offset
        if number in self.arch.sigreturn_calls:
            # What comes here was not called: the kernel has made the frame of a signal above SP.
            return BlockEnd(verdict=_CONTRADICTS)
        return BlockEnd()

    def _conditional(self, end: int, effect: Effect, state: State, block: Block) -> BlockEnd:
        """Return the ending of a branch to an address in a register, or to the next instruction."""
        follower, verdict = self._arrival(end, state)
        if state.registers.get(JUMP_TARGET) == _RA:
            return BlockEnd(follower, _stronger(self._return_verdict(effect, state, block), verdict))
        other = self._indirect(state)
        return BlockEnd(follower + other.followers, _stronger(other.verdict, verdict))

    def _indirect(self, state: State) -> BlockEnd:
        targets = self.flow.targets_of(state)
        if targets:
            return BlockEnd(tuple(each for each in targets if self.flow.decoder.span_of(each) is not None))
        value = state.registers.get(JUMP_TARGET)
        if value is not None and value.base == LOADED:
            return BlockEnd(verdict=self._jump_verdict(state))
        return BlockEnd()

    def _arrival(self, target: int, state: State) -> tuple[tuple[int, ...], DepthVerdict]:
        """Return the block at a target if it is of the same function, and what arriving there says of the depth."""
        flow = self.flow
        if flow.decoder.span_of(target) is None:
            return (), self._jump_verdict(state) if flow.around.is_entry(target) else _NEUTRAL
        if flow.is_known_entry(target) and flow.is_at_return(state):
            return (), _CONFIRMS
        if not flow.is_kept(target):
            return (target,), _NEUTRAL
        known = self._state_at(target)
        if known is None or not self._is_same_frame(known, state):
            return (), _CONTRADICTS
        self.has_shared_code = True
        return (), _CONFIRMS

    def _is_same_frame(self, known: State, state: State) -> bool:
        """Whether a state has the frame of a known one: SP, FP and the RA, and what is saved of them."""
        arch = self.arch
        return all(
            known.registers.get(register) == state.registers.get(register)
            for register in (arch.sp_register, arch.fp_register, arch.ra_register)
        ) and all(state.slots.get(place) == value for place, value in known.slots.items())

    def _state_at(self, vaddr: int) -> State | None:
        """Return the state before an instruction of an earlier round; None where its blocks have none."""
        flow = self.flow
        if vaddr in flow.states:
            return flow.states[vaddr]
        start = flow.blocks.holder_of(vaddr)
        if start is None or not _has_instruction(flow, start, vaddr):
            return None
        state = flow.states[start].copy()
        changes = flow.blocks[start].changes
        for change in changes:
            if change.vaddr >= vaddr:
                break
            for step in change.steps:
                flow.machine.apply(state, step, change.vaddr)
        return state

    def _jump_verdict(self, state: State) -> DepthVerdict:
        """Return what a jump to another function says."""
        sp = state.registers.get(self.arch.sp_register)
        if self.flow.is_at_return(state):
            return _CONFIRMS
        if sp is not None and sp.base == CFA and sp != self._entry_sp:
            return _CONTRADICTS
        return _NEUTRAL

    def _return_verdict(self, effect: Effect, state: State, block: Block) -> DepthVerdict:
        sp = state.registers.get(self.arch.sp_register)
        if sp is None or sp.base != CFA:
            return _NEUTRAL
        if self.arch.ra_slot is None:
            # Another address than the RA is jumped to.
            if state.registers.get(JUMP_TARGET) != _RA:
                return _NEUTRAL
        elif block.changes and _pushes(block.changes[-1], self.arch.sp_register):
            # It jumps to an address that it has just pushed: this is no return.
            return _NEUTRAL
        if sp == self._entry_sp and not effect.popped:
            return _CONFIRMS if self.flow.is_at_return(state) or self.arch.ra_slot is None else _NEUTRAL
        return _CONTRADICTS


def _call_vaddr(block: Block) -> int | None:
    """Return the address of the call at a block's end; None without one."""
    if block.exit is None or block.exit.effect is None or block.exit.effect.flow not in CALLS:
        return None
    return block.exit.vaddr


def _has_instruction(flow: FlowAnalysis, start: int, vaddr: int) -> bool:
    """Whether an instruction of the block at `start` is at an address."""
    at = start
    while at < vaddr:
        decoded = flow.decoder.at(at)
        if decoded is None:
            return False
        at += decoded.size
    return at == vaddr


def _pushes(change: Change, sp_register: int) -> bool:
    return any(step.op == Op.STORE and step.register == sp_register for step in change.steps)


def _stronger(first: DepthVerdict, second: DepthVerdict) -> DepthVerdict:
    """Return the verdict that says more: a contradiction, else a confirmation."""
    if first.contradicts or second.contradicts:
        return first if first.contradicts else second
    return first if first.confirms else second
