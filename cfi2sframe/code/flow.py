# SPDX-License-Identifier: Apache-2.0
"""The state at every block of code that known entries reach, by data flow.

Functions are not told apart while control is followed: what two of them share has the join of their states. A call
comes back if its target does, which is known when control reaches a return from there, and with the registers that the
ABI keeps. Code is followed in rounds. Blocks that earlier rounds have kept do not change any more: control that leads
there has to arrive with their state.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import JUMP_TARGET, Condition, Flow, Op
from cfi2sframe.code.values import CALLER_FP, CFA, LIMITED, LOADED, RETURN_ADDRESS, Machine, Table, Value

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from cfi2sframe.code.decoder import Decoded, Decoder
    from cfi2sframe.code.effects import CodeArch, Effect
    from cfi2sframe.code.values import State

#: Microseconds of work on a block, and on an instruction of it.
_BLOCK_STEPS: Final = 8
_STEPS: Final = 1
_WHAT: Final = "the paths through code without CFI"
_CALLER_FP: Final = Value(CALLER_FP, 0)
_RA: Final = Value(RETURN_ADDRESS, 0)


class Surroundings(NamedTuple):
    """What the flow has to be told of code and data that it does not follow.

    `is_entry(vaddr)`: a function described by other means starts there. `returns(vaddr)`: such a function, or one that
    is imported, may come back to its caller; `import_returns(vaddr)`: the same of the function whose address is in the
    word at an address. `table_targets(table)` returns where the words of a table of jumps lead, None when that is not
    known. `is_start(vaddr)`: code starts there that control does not reach from the code before it.
    """

    is_entry: Callable[[int], bool]
    returns: Callable[[int], bool]
    import_returns: Callable[[int], bool]
    table_targets: Callable[[Table], tuple[int, ...] | None]
    is_start: Callable[[int], bool]


class Verdict(NamedTuple):
    """What the way out of a block says of the depth: it is that of a function's end, or another one, or neither."""

    confirms: bool = False
    contradicts: bool = False
    detail: str = ""


_NEUTRAL: Final = Verdict()
_CONFIRMS: Final = Verdict(confirms=True)


class Block(NamedTuple):
    """A block: `followers` are the blocks of the same function where control continues, `verdict` that of the way out.

    `stop` is the address of an instruction that is not known, None without one.
    """

    followers: tuple[int, ...]
    verdict: Verdict
    stop: int | None


class FlowAnalysis:
    """Follows control from entries; `states` has the state before each block, by its address."""

    def __init__(self, decoder: Decoder, arch: CodeArch, around: Surroundings) -> None:
        self.decoder = decoder
        self.arch = arch
        self.around = around
        self.machine = Machine(arch)
        self.states: dict[int, State] = {}
        #: Entries of functions, whether or not a caller is known.
        self.entries: set[int] = set()
        #: Blocks of earlier rounds, and the addresses of their instructions.
        self.kept: set[int] = set()
        self.kept_instructions: set[int] = set()
        self._starts: list[int] = []
        self._work: list[int] = []
        self._waiting: set[int] = set()
        self._before: dict[int, set[int]] = {}
        self._callers: dict[int, set[int]] = {}
        self._returning: set[int] = set()
        self._spoiling_fp: set[int] = set()
        #: By block, a bit for each register that is changed on some way from there to a return.
        self._changed: dict[int, int] = {}
        self._clobbered = sum(1 << register for register in arch.call_clobbered)
        self._entry_sp = Value(CFA, arch.entry_sp_offset)
        self._ra_place = None if arch.ra_slot is None else Value(CFA, arch.ra_slot)

    # Entries and rounds

    def enter(self, vaddr: int, *, has_caller: bool = True) -> None:
        """Add the entry of a function."""
        self.entries.add(vaddr)
        self._reach(vaddr, self.machine.entry_state(has_caller=has_caller))

    def run(self) -> None:
        """Follow control until nothing new is found. Raises `BudgetError`."""
        while self._work:
            start = self._work.pop()
            self._waiting.discard(start)
            self._follow(start)

    def keep(self, starts: Iterable[int], instructions: Iterable[int]) -> None:
        """Let some blocks of this round, with the addresses of their instructions, stay as they are."""
        self.kept.update(starts)
        self.kept_instructions.update(instructions)

    def forget(self, starts: Iterable[int]) -> None:
        """Forget some blocks of this round."""
        for start in starts:
            del self.states[start]
            self.entries.discard(start)
        self._starts = sorted(self.states)

    def block(self, start: int, look: Callable[[int, int, State], None]) -> Block:
        """Return a block, once all work is done.

        `look(vaddr, end_vaddr, state)` is called for each instruction, with the state before it, which then changes.
        """
        state = self.states[start].copy()
        end = start
        last: Effect | None = None
        for vaddr, (end, effect, _) in self._instructions(start):
            look(vaddr, end, state)
            if effect is None:
                return Block((), _NEUTRAL, vaddr)
            for step in effect.steps:
                self.machine.apply(state, step, vaddr)
            if effect.flow != Flow.NEXT:
                return Block(*self._way_out(start, effect, vaddr, end, state, last), None)
            last = effect
        if end > start and self._is_leader(end):
            return Block(*self._arrival(end, state), None)
        return Block((), _NEUTRAL, end)

    # Following

    def _instructions(self, start: int) -> Iterator[tuple[int, Decoded]]:
        """Yield the instructions of a block; the last one ends the flow, or another block follows, or nothing does."""
        vaddr = start
        while True:
            decoded = self.decoder.at(vaddr)
            if decoded is None:
                return
            yield vaddr, decoded
            end, effect, _ = decoded
            if effect is None or effect.flow != Flow.NEXT or self._is_leader(end):
                return
            vaddr = end

    def _is_leader(self, vaddr: int) -> bool:
        return vaddr in self.states or vaddr in self.decoder.branch_targets or vaddr in self.kept_instructions

    def _follow(self, start: int) -> None:
        state = self.states[start].copy()
        machine, budget = self.machine, self.decoder.image.budget
        count = 0
        end = start
        changed = 0
        for vaddr, (end, effect, bits) in self._instructions(start):
            count += 1
            changed |= bits
            if effect is None:
                changed |= self._clobbered
                self._mark_returning(start)
                break
            for step in effect.steps:
                machine.apply(state, step, vaddr)
            if effect.flow != Flow.NEXT:
                self._leave(start, effect, end, state, vaddr)
                break
        else:
            if count and self._is_leader(end):
                self._go(start, end, state)
            else:
                self._mark_returning(start)
        self._mark_changed(start, changed)
        budget.spend(_BLOCK_STEPS + _STEPS * count, _WHAT)

    def _leave(self, start: int, effect: Effect, end: int, state: State, vaddr: int) -> None:
        """Pass the state after a block's last instruction on to where control continues."""
        flow, target = effect.flow, effect.target
        if flow == Flow.BRANCH and target is not None:
            taken, other = self._branch_states(effect, state)
            self._go(start, target, taken)
            self._go(start, end, other)
        elif flow == Flow.JUMP and target is not None:
            self._go(start, target, state)
        elif flow == Flow.CALL and target is not None:
            self._call(start, target, end, state, vaddr)
        elif flow == Flow.CALL_INDIRECT:
            value = state.registers.get(JUMP_TARGET)
            if value is None or value.base != LOADED or self.around.import_returns(value.offset):
                self._come_back(start, end, state)
        elif flow == Flow.RETURN:
            self._mark_returning(start)
            if self._is_at_return(state) and state.registers.get(self.arch.fp_register) != _CALLER_FP:
                self._mark_spoiling_fp(start)
        elif flow == Flow.JUMP_INDIRECT:
            targets = self._targets(state)
            if targets is None:
                value = state.registers.get(JUMP_TARGET)
                if value is None or value.base != LOADED or self.around.import_returns(value.offset):
                    self._mark_changed(start, self._clobbered)
                    self._mark_returning(start)
            for each in targets or ():
                self._go(start, each, state)

    def _targets(self, state: State) -> tuple[int, ...] | None:
        """Return where an indirect jump leads; None where that is not known."""
        targets = state.targets_of(JUMP_TARGET)
        found: list[int] = []
        for target in targets or ():
            words = self.around.table_targets(target) if isinstance(target, Table) else (target,)
            if words is None:
                return None
            found += words
        return tuple(found) if targets else None

    def _branch_states(self, effect: Effect, state: State) -> tuple[State, State]:
        """Return the states where a branch is taken and where it is not: what was compared may tell more there."""
        compared = state.compared
        if compared is None or effect.condition is Condition.NONE:
            return state, state
        taken, other = state.copy(), state.copy()
        condition = effect.condition
        if condition in (Condition.EQUAL, Condition.NOT_EQUAL):
            equal = taken if condition is Condition.EQUAL else other
            known = equal.registers.get(compared.source)
            if compared.register == self.arch.sp_register and known is not None and known.base == CFA:
                equal.registers[self.arch.sp_register] = known
            known = equal.registers.get(compared.register)
            if compared.source == self.arch.sp_register and known is not None and known.base == CFA:
                equal.registers[self.arch.sp_register] = known
        elif compared.source < 0:
            number = compared.number
            if condition in (Condition.ABOVE, Condition.BELOW_OR_EQUAL):
                below = other if condition is Condition.ABOVE else taken
            else:
                below = other if condition is Condition.ABOVE_OR_EQUAL else taken
                number -= 1
            old = below.registers.get(compared.register)
            if number >= 0 and (old is None or old.base == LIMITED):
                below.registers[compared.register] = Value(LIMITED, number)
        return taken, other

    def _call(self, start: int, target: int, end: int, state: State, vaddr: int) -> None:
        if target == end and self.arch.ra_slot is not None:
            # It pushes its own address, to be popped.
            self.machine.push(state, vaddr)
            self._go(start, end, state)
            return
        if self.decoder.span_of(target) is None:
            if self.around.returns(target):
                self._come_back(start, end, state)
            return
        self.enter(target)
        self._callers.setdefault(target, set()).add(start)
        if target in self._returning:
            changed = self._changed.get(target, 0)
            self._come_back(start, end, state, changed, keeps_fp=target not in self._spoiling_fp)
        elif target in self.kept_instructions and target not in self.kept:
            self._come_back(start, end, state)

    def _come_back(
        self, start: int, end: int, state: State, changed: int | None = None, *, keeps_fp: bool = True
    ) -> None:
        """Continue after a call, unless what is there shows that nothing comes back.

        `changed` has the registers that the function called changes, of those that calls may change; None: all of them.
        """
        if changed is None:
            changed = self._clobbered
        self._mark_changed(start, changed)
        if self.around.is_start(end):
            return
        self.machine.after_call(state, changed, keeps_fp=keeps_fp)
        self._go(start, end, state)

    def _go(self, start: int, target: int, state: State) -> None:
        """Let control go from a block to an address."""
        if self.decoder.span_of(target) is None:
            if self.around.returns(target):
                self._mark_changed(start, self._clobbered)
                self._mark_returning(start)
            return
        self._before.setdefault(target, set()).add(start)
        if target in self._returning:
            self._mark_returning(start)
        if target in self._spoiling_fp:
            self._mark_spoiling_fp(start)
        self._mark_changed(start, self._changed.get(target, 0))
        if target not in self.kept_instructions:
            self._reach(target, state)
        elif target not in self.kept:
            # In the midst of a block of an earlier round, which may do anything for all that is known.
            self._mark_changed(start, self._clobbered)
            self._mark_returning(start)

    def _reach(self, vaddr: int, state: State) -> None:
        """Let control reach an address that no earlier round has kept."""
        if vaddr in self.kept_instructions:
            return
        known = self.states.get(vaddr)
        if known is None:
            self.states[vaddr] = state.copy()
            index = bisect_right(self._starts, vaddr) - 1
            if index >= 0:
                # What was followed past this address has to stop here, and join.
                self._wait(self._starts[index])
            insort(self._starts, vaddr)
        elif not known.join(state):
            return
        self._wait(vaddr)

    def _wait(self, start: int) -> None:
        if start not in self._waiting and start not in self.kept:
            self._waiting.add(start)
            self._work.append(start)

    def _mark_returning(self, start: int) -> None:
        self._mark(start, self._returning)

    def _mark_spoiling_fp(self, start: int) -> None:
        self._mark(start, self._spoiling_fp)

    def _mark(self, start: int, marked: set[int]) -> None:
        """Mark a block and those from which control gets there; those that call marked functions go on."""
        if start in marked:
            return
        marked.add(start)
        waiting = [start]
        while waiting:
            block = waiting.pop()
            for caller in self._callers.get(block, ()):
                self._wait(caller)
            for before in self._before.get(block, ()):
                if before not in marked:
                    marked.add(before)
                    waiting.append(before)

    def _mark_changed(self, start: int, bits: int) -> None:
        """Note that registers are changed in a block, and so behind those from which control gets there."""
        bits &= self._clobbered
        waiting = [start]
        while waiting:
            block = waiting.pop()
            known = self._changed.get(block, 0)
            if known | bits == known:
                continue
            self._changed[block] = known | bits
            for caller in self._callers.get(block, ()):
                self._wait(caller)
            waiting += self._before.get(block, ())

    # Ways out

    def _is_at_return(self, state: State) -> bool:
        """Whether SP and the RA are what they were at the function's entry."""
        if state.registers.get(self.arch.sp_register) != self._entry_sp:
            return False
        if self._ra_place is not None:
            return state.slots.get(self._ra_place) == _RA
        return state.registers.get(self.arch.ra_register) == _RA

    def _way_out(
        self, start: int, effect: Effect, vaddr: int, end: int, state: State, last: Effect | None
    ) -> tuple[tuple[int, ...], Verdict]:
        """Return where control continues in the same function, and what the way out says of the depth."""
        flow, target = effect.flow, effect.target
        if flow == Flow.BRANCH and target is not None:
            taken, other = self._branch_states(effect, state)
            first, first_verdict = self._arrival(target, taken)
            second, second_verdict = self._arrival(end, other)
            return first + second, _worse(first_verdict, second_verdict)
        if flow == Flow.JUMP and target is not None:
            return self._arrival(target, state)
        if flow in (Flow.CALL, Flow.CALL_INDIRECT):
            comes_back = end in self.states and start in self._before.get(end, ())
            return ((end,) if comes_back else ()), _NEUTRAL
        if flow == Flow.RETURN:
            return (), self._return_verdict(effect, state, last)
        if flow == Flow.JUMP_INDIRECT:
            targets = self._targets(state)
            if targets:
                return tuple(each for each in targets if self.decoder.span_of(each) is not None), _NEUTRAL
            value = state.registers.get(JUMP_TARGET)
            if value is not None and value.base == LOADED:
                return (), self._exit_verdict(state)
        return (), _NEUTRAL

    def _arrival(self, target: int, state: State) -> tuple[tuple[int, ...], Verdict]:
        """Return the block at a target if it is of the same function, and what arriving there says of the depth."""
        if self.decoder.span_of(target) is None:
            return (), self._exit_verdict(state) if self.around.is_entry(target) else _NEUTRAL
        if target in self.entries and self._is_at_return(state):
            return (), _CONFIRMS
        if target not in self.kept_instructions:
            return (target,), _NEUTRAL
        known = self._state_at(target)
        if known is None or known.copy().join(state):
            return (), Verdict(contradicts=True, detail=f"a jump to 0x{target:x} with another state")
        return (), _CONFIRMS

    def _state_at(self, vaddr: int) -> State | None:
        """Return the state before an instruction of an earlier round."""
        if vaddr in self.states:
            return self.states[vaddr]
        index = bisect_right(self._starts, vaddr) - 1
        if index < 0:
            return None
        state = self.states[self._starts[index]].copy()
        for address, (_, effect, _) in self._instructions(self._starts[index]):
            if address == vaddr:
                return state
            for step in effect.steps if effect is not None else ():
                self.machine.apply(state, step, address)
        return None

    def _exit_verdict(self, state: State) -> Verdict:
        """Return what a jump to another function says."""
        sp = state.registers.get(self.arch.sp_register)
        if self._is_at_return(state):
            return _CONFIRMS
        if sp is not None and sp.base == CFA and sp != self._entry_sp:
            return Verdict(contradicts=True, detail=f"a jump with SP at CFA{sp.offset:+d}")
        return _NEUTRAL

    def _return_verdict(self, effect: Effect, state: State, last: Effect | None) -> Verdict:
        sp = state.registers.get(self.arch.sp_register)
        if sp is None or sp.base != CFA:
            return _NEUTRAL
        if self._ra_place is None:
            # Another address than the RA is jumped to.
            if state.registers.get(JUMP_TARGET) != _RA:
                return _NEUTRAL
        elif last is not None and any(step.op == Op.STORE and step.register == self.machine.sp for step in last.steps):
            # It jumps to an address that it has just pushed: this is no return.
            return _NEUTRAL
        if sp == self._entry_sp and not effect.popped:
            return _CONFIRMS if self._is_at_return(state) or self._ra_place is None else _NEUTRAL
        return Verdict(contradicts=True, detail=f"a return with SP at CFA{sp.offset:+d}")


def _worse(first: Verdict, second: Verdict) -> Verdict:
    if first.contradicts or second.contradicts:
        return first if first.contradicts else second
    return first if first.confirms else second
