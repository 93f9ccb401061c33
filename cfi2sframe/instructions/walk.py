# SPDX-License-Identifier: Apache-2.0
"""Follow one piece of a function: from an address up to calls, exits, jumps to anywhere, and what is known already."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.instructions.effects import BETWEEN, JUMP, Effect, Flow, Op, Step
from cfi2sframe.instructions.function import CodePiece
from cfi2sframe.instructions.reasons import CodeReason
from cfi2sframe.instructions.states import (
    CALLER_FP,
    CFA,
    NO_CALLER,
    NUMBER,
    RETURN_ADDRESS,
    WORD,
    RefusedError,
    TableWord,
    after,
    joined,
    without_numbers,
)

if TYPE_CHECKING:
    from cfi2sframe.instructions.function import Followed, Summary
    from cfi2sframe.instructions.machine import Machine
    from cfi2sframe.instructions.states import State, Value

_CALLER: Final = (CALLER_FP, 0)
_RA: Final = (RETURN_ADDRESS, 0)


class Walk:
    """One piece: its own states and edges, which are the function's once the piece is accepted."""

    def __init__(self, machine: Machine, function: Followed, piece: CodePiece) -> None:
        self.machine = machine
        self.function = function
        self.piece = piece
        self.states: dict[int, State] = {}
        self.edges: dict[int, tuple[int, ...]] = {}
        self.exits: set[int] = set()
        self.has_joined = False
        self.found: list[CodePiece] = []
        self.work: list[tuple[int, State]] = [(piece.vaddr, piece.state)]

    def run(self) -> list[CodePiece]:
        """Follow the piece; return what it leads to. Raises `RefusedError`."""
        if self.piece.is_after_call and self._begins_function(self.piece.vaddr):
            return []
        function = self.function
        if self.piece.is_label and not self.machine.code.fits(self.piece.vaddr, self.piece.state):
            return []
        while self.work:
            try:
                self._path(*self.work.pop())
            except RefusedError as refused:
                if self.machine.code.needs_proof:
                    function.refused.update(dict.fromkeys(self.states, refused.reason))
                    raise
                # Without proof, only what follows is not known.
                function.leave(self.machine.abi)
        function.states.update(self.states)
        for vaddr, targets in self.edges.items():
            # What other pieces have added stays.
            function.edges[vaddr] = tuple(dict.fromkeys((*function.edges.get(vaddr, ()), *targets)))
        function.exits |= self.exits
        return self.found

    def _begins_function(self, vaddr: int) -> bool:
        """Whether only padding is between the end of a call and something that may be an entry."""
        code = self.machine.code
        while vaddr not in code.entries:
            found = code.at(vaddr)
            if found is None or found.effect is None or not found.effect.is_padding:
                return False
            vaddr += found.size
        return True

    def _path(self, vaddr: int, state: State) -> None:
        """Follow control until it meets what is known, or leaves the piece."""
        machine, function = self.machine, self.function
        at, entries = machine.code.at, machine.code.entries
        states, known_states, sizes = self.states, function.states, function.sizes
        compared: Step | None = None
        #: Whether control gets to the address from the instruction before it.
        is_next = False
        while True:
            known = states.get(vaddr)
            if known is None:
                known = known_states.get(vaddr)
                self.has_joined |= known is not None
            if known is not None:
                state = joined(vaddr, known, state, machine.abi.sp)
                if state is known:
                    return
            elif vaddr in entries and vaddr != self.piece.vaddr:
                falls_out = is_next and (self.piece.is_after_call or not machine.code.needs_proof)
                if (falls_out and not machine.is_home(state)) or self._is_other_function(vaddr, state):
                    # What follows a call that does not come back leads into the next function.
                    return
            found = at(vaddr)
            if found is None:
                if not machine.code.never_returns(vaddr):
                    function.leave(machine.abi)
                return
            states[vaddr] = state
            machine.spend()
            size, effect, changed = found
            sizes[vaddr] = size
            if effect is None:
                raise RefusedError(CodeReason.UNKNOWN)
            function.changed |= changed
            if effect.steps:
                state = after(state, effect.steps, vaddr, machine.abi)
                if effect.flow is Flow.NEXT:
                    self._note_labels(effect.steps, state)
            if effect.flow is not Flow.NEXT:
                following = self._leave(vaddr, size, effect, state, compared)
                if following is None:
                    return
                is_next = following[0] == vaddr + size
                vaddr, state = following
                compared = None
                continue
            compared = effect.steps[-1] if effect.steps and effect.steps[-1].op is Op.COMPARE else None
            vaddr += size
            is_next = True

    def _note_labels(self, steps: tuple[Step, ...], state: State) -> None:
        """Note the addresses of code that an instruction loads, in one step or as a page and an offset."""
        for step in steps:
            if step.op is Op.NUMBER or (step.op is Op.MOVE and (step.offset or step.source == step.register)):
                value = state.get(step.register)
                is_address = step.op is Op.MOVE or step.size == 8 or (step.size == 4 and self.machine.code.is_fixed)
                if value is not None and value[0] == NUMBER and is_address and self._may_be_label(value[1]):
                    self.function.labels[value[1]] = None

    def _may_be_label(self, vaddr: int) -> bool:
        """Whether a jump may lead to an address within the function; without proof, another function is not tried."""
        code = self.machine.code
        if not code.holds(vaddr):
            return False
        return code.needs_proof or (vaddr not in code.entries and code.may_hold(self.function.entry, vaddr))

    def _is_other_function(self, vaddr: int, state: State) -> bool:
        """Whether control arrives at another function as a call would: then what is known of that decides.

        What is known of other registers, such as the address that the function jumps to in the end, may tell more.
        """
        machine = self.machine
        if not machine.is_entry_state(state):
            return False
        summary = machine.summary_of(vaddr)
        if summary is None or not summary.returns:
            is_left = len(state) == len(machine.entry_state)
            if is_left and (summary is None or not summary.never_returns):
                self.function.leave(machine.abi)
            return is_left
        self.states[vaddr] = state
        self.exits.add(vaddr)
        self.function.changed |= summary.changed
        self.function.spoils_fp |= summary.spoils_fp
        self.edges[vaddr] = ()
        return True

    def _leave(
        self, vaddr: int, size: int, effect: Effect, state: State, compared: Step | None
    ) -> tuple[int, State] | None:
        """Follow what is not just the next instruction; return where this path continues."""
        flow, target, end = effect.flow, effect.target, vaddr + size
        if flow is Flow.JUMP and target is not None:
            self.edges[vaddr] = (target,)
            return target, state
        if flow is Flow.BRANCH and target is not None:
            self.edges[vaddr] = (target, end)
            if not self.machine.code.needs_proof:
                state = without_numbers(state)
            taken, other = self._compared(compared, effect, state)
            self.work.append((target, taken))
            return end, other
        if flow is Flow.CALL:
            return self._call(vaddr, end, target, state)
        if flow in (Flow.JUMP_INDIRECT, Flow.BRANCH_INDIRECT, Flow.RETURN):
            self.edges[vaddr] = (end,) if flow is Flow.BRANCH_INDIRECT else ()
            self._jump(vaddr, state, is_return=flow is Flow.RETURN)
            state = {key: value for key, value in state.items() if key != JUMP}
            return (end, state) if flow is Flow.BRANCH_INDIRECT else None
        if flow is Flow.SYSTEM_CALL:
            return self._system_call(vaddr, end, state)
        self.edges[vaddr] = ()
        return None

    def _compared(self, compared: Step | None, effect: Effect, state: State) -> tuple[State, State]:
        """Return the states where a branch is taken and where it is not: of equal values, one may tell SP."""
        equal = effect.equal
        sp = self.machine.abi.sp
        if compared is None or equal is None or sp not in (compared.register, compared.source):
            return state, state
        value = state.get(compared.source if compared.register == sp else compared.register)
        if value is None or value[0] != CFA:
            return state, state
        same = {**state, sp: value}
        return (same, state) if equal else (state, same)

    def _call(self, vaddr: int, end: int, target: int | None, state: State) -> tuple[int, State] | None:
        machine, function, abi = self.machine, self.function, self.machine.abi
        if target == end and abi.ra_slot is not None and end not in machine.code.entries:
            # It pushes its own address, to be popped.
            push = (
                Step(Op.NUMBER, BETWEEN, offset=end),
                Step(Op.STORE, abi.sp, BETWEEN, -8),
                Step(Op.MOVE, abi.sp, abi.sp, -8),
            )
            return end, after(state, push, vaddr, abi)
        function.call_sites.add(vaddr)
        self.edges.setdefault(vaddr, ())
        summary = None
        if target is not None:
            function.calls.add(target)
            summary = machine.summary_of(target)
        if self._never_returns(target, summary, state.pop(JUMP, None)) or not machine.code.comes_back(vaddr, end):
            return None
        back = machine.after_call(state, summary)
        function.changed |= abi.clobbered if summary is None else summary.changed
        if not machine.code.needs_proof:
            return None if self._begins_function(end) else (end, back)
        is_proof = state[abi.sp] != (CFA, abi.entry_sp) or (summary is not None and summary.returns)
        origin = vaddr if is_proof else None
        self.found.append(CodePiece(end, back, origin, is_after_call=True, is_guess=self.piece.is_guess))
        return None

    def _never_returns(self, target: int | None, summary: Summary | None, value: Value | TableWord | None) -> bool:
        """Whether a call of a function, or of the one at a value, never comes back."""
        if summary is not None:
            return summary.never_returns
        code = self.machine.code
        if target is not None:
            return not code.holds(target) and code.never_returns(target)
        return value is not None and value[0] == WORD and code.import_never_returns(value[1])

    def _jump(self, vaddr: int, state: State, *, is_return: bool) -> None:
        """Follow a jump to the address in `JUMP`. Raises `RefusedError` where that returns with another frame."""
        machine, function = self.machine, self.function
        value = state.get(JUMP)
        state = {key: known for key, known in state.items() if key != JUMP}
        if value is not None and value[0] == NO_CALLER:
            return
        is_exit = value == _RA or (is_return and (value is None or value[0] != NUMBER))
        if is_exit and not machine.code.needs_proof:
            self.exits.add(vaddr)
        elif is_exit:
            if value != _RA or not machine.is_exit(state):
                raise RefusedError(CodeReason.NOT_PROVEN)
            if state.get(machine.abi.fp) != _CALLER:
                function.spoils_fp = True
                raise RefusedError(CodeReason.NOT_PROVEN)
            self.exits.add(vaddr)
        elif isinstance(value, TableWord):
            labels = [target for target in machine.code.table_targets(value) if self._may_be_label(target)]
            words = machine.code.in_table(vaddr, labels)
            self.found += [CodePiece(target, state, vaddr, is_guess=True) for target in words]
            if not labels:
                # A table of functions.
                function.leave(machine.abi)
        elif value is not None and value[0] == NUMBER and machine.code.holds(value[1]):
            self.edges[vaddr] = (*self.edges[vaddr], value[1])
            self.work.append((value[1], state))
        elif not (value is not None and value[0] == WORD and machine.code.import_never_returns(value[1])):
            function.leave(machine.abi)
            self.found += function.dispatch(state, machine.abi.sp)

    def _system_call(self, vaddr: int, end: int, state: State) -> tuple[int, State] | None:
        value = state.get(JUMP)
        state = {key: known for key, known in state.items() if key != JUMP}
        if value is not None and value[0] == NUMBER:
            if value[1] in self.machine.abi.last_calls:
                self.edges[vaddr] = ()
                return None
            if value[1] in self.machine.abi.clone_calls:
                raise RefusedError(CodeReason.UNKNOWN)
        return end, state
