# SPDX-License-Identifier: Apache-2.0
"""Follow instructions from an entry, and keep what a return proves: entries are candidates, exits prove.

Whatever may be an entry is tried as one: SP, the RA and FP are assumed to be as a call leaves them. From there, each
instruction gets one state, the join of the states in which control reaches it. An exit proves it: where a return finds
SP, the RA and FP as the caller had them, every distance on the paths to it was right, because all were counted from the
same entry. What reaches no such return is dropped, whatever else speaks for it.

Control is followed in pieces: the entry up to calls and jumps with unknown targets, then the code after each call, and
at each word of a jump table. A piece is refused as a whole if it contains something unknown, contradicts the state of
an address that is accepted, or returns with another frame. A function whose first piece is refused is dropped. So is
one in which the code after a call meets accepted code and is refused then: it may have got there with another frame.
Any other piece, such as the bytes after a call that never returns, or a word past the end of a table and the code after
calls to which it leads, only refuses itself.

A proof passes back through a call unless SP is as at the entry: that call may be the last instruction of one function,
and the code after it the next one. There, and at a jump to another entry, the other function has to be proved. Nothing
passes back through a jump with an unknown target.

Code that no candidate reaches is swept: each instruction at which such code begins is tried, too, though most are in
the middle of a function. There, a return proves only if control reaches it without a jump back, to another entry or
through a table. A function that is proved in this way is followed like any other.

Assumptions about code:

- A return pops what the call pushed, and functions preserve the registers that the ABI has them preserve. For FP, this
  is checked where the function that is called is followed, too.
- Stores through pointers other than copies of SP and FP do not change what the frame has saved.
- Nobody owns the memory below SP and its red zone: it is forgotten, except for the `kept` bytes.
- Where SP gets an unknown value and FP has the CFA, what the frame has saved is not below SP, or SP is on another
  stack.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from cfi2sframe.instructions.code import Code
from cfi2sframe.instructions.effects import JUMP, RA_SIGN_STATE, Effect, Flow, Op, Step
from cfi2sframe.instructions.function import CodePiece, Followed, Summary
from cfi2sframe.instructions.states import (
    CALLER_FP,
    CFA,
    NO_CALLER,
    NUMBER,
    RETURN_ADDRESS,
    RefusedError,
    State,
    TableWord,
    Value,
    after,
    after_call,
    entry_state,
    joined,
    without_numbers,
    word_of,
)
from cfi2sframe.why import Reason

#: Instructions that are followed for each byte of code, pieces and repetitions included.
_STEPS_PER_BYTE: Final = 40
#: In a sweep: real programs need less than one.
_SWEEP_STEPS_PER_BYTE: Final = 4
_LEAST_STEPS: Final = 100_000
#: Functions on the way from one to its callees, which are followed first.
_MAX_NESTING: Final = 20


class Machine:
    """Follows functions of one image; `summaries` has those of the functions that were followed.

    `take` is called with each of them. `kept` bytes below SP are remembered when it moves up. `is_sweep`: there is no
    evidence that functions begin where they are tried.
    """

    def __init__(self, code: Code, take: Callable[[Followed], None], kept: int = 0, *, is_sweep: bool = False) -> None:
        self.code = code
        self.take = take
        self.kept = kept
        self.is_sweep = is_sweep
        self.abi, arch = code.abi, code.abi.arch
        self.sp = arch.sp_register
        self.summaries: dict[int, Summary] = {}
        self.entry_state = entry_state(arch)
        self.entry_sp = self.entry_state[self.sp]
        self._steps_left = (_SWEEP_STEPS_PER_BYTE if is_sweep else _STEPS_PER_BYTE) * code.size + _LEAST_STEPS
        self._active: set[int] = set()

    def summary_of(self, entry: int) -> Summary | None:
        """Return the summary of a function, which is followed first where that is possible."""
        is_new = entry not in self.summaries and entry not in self._active
        if is_new and len(self._active) < _MAX_NESTING and self.code.holds(entry):
            self.follow(entry)
        return self.summaries.get(entry)

    def follow(self, entry: int, state: State | None = None) -> Followed:
        """Follow control from an entry, with the state that a call leaves or another one, and prove what can be."""
        function = Followed(entry)
        self._active.add(entry)
        waiting = deque([CodePiece(entry, state or self.entry_state, None)])
        while waiting:
            piece = waiting.popleft()
            walk = _Walk(self, function, piece)
            try:
                waiting += walk.run()
            except RefusedError as refused:
                function.leave(self.abi.clobbered)
                # The first piece, or one that may have reached accepted code with another frame.
                if not piece.is_guess and (walk.has_joined or not piece.is_after_call):
                    function.refusal = refused.reason
                    break
                continue
            if piece.origin is not None:
                function.edges[piece.origin] = (*function.edges.get(piece.origin, ()), piece.vaddr)
        if function.refusal is None and self.code.needs_proof:
            function.prove()
        self._active.discard(entry)
        never = not function.exits and not function.is_open
        returns = entry in function.proven if self.code.needs_proof else bool(function.exits)
        self.summaries[entry] = Summary(returns, never, function.changed, function.spoils_fp)
        self.take(function)
        return function

    def spend(self) -> None:
        """Count an instruction. Raises `RefusedError` when code is followed again and again."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RefusedError(Reason.UNKNOWN)


class _Next(NamedTuple):
    """An address where control continues; `is_next`: from the instruction before, whose comparison `compared` is."""

    vaddr: int
    state: State
    is_next: bool = False
    compared: Step | None = None


class _Walk:
    """The walk through one piece: its own states and edges, which are the function's once the piece is accepted.

    Its methods follow a path from one instruction to the next; where the path ends, they return None.
    """

    def __init__(self, machine: Machine, function: Followed, piece: CodePiece) -> None:
        self.machine = machine
        self.code = machine.code
        self.function = function
        self.piece = piece
        self.states: dict[int, State] = {}
        self.edges: dict[int, tuple[int, ...]] = {}
        self.exits: set[int] = set()
        self.has_joined = False
        self.next_pieces: list[CodePiece] = []
        self.work = [_Next(piece.vaddr, piece.state)]

    def run(self) -> list[CodePiece]:
        """Follow the piece; return those to which it leads. Raises `RefusedError`."""
        function, piece = self.function, self.piece
        if piece.is_after_call and self._begins_function(piece.vaddr):
            return []
        while self.work:
            at: _Next | None = self.work.pop()
            try:
                while at is not None:
                    at = self._step(at)
            except RefusedError as refused:
                if self.code.needs_proof:
                    function.refused.update(dict.fromkeys(self.states, refused.reason))
                    raise
                # Without proof, only the rest of this path is unknown.
                self._leave()
        function.states.update(self.states)
        for vaddr, targets in self.edges.items():
            # Other pieces may have added edges.
            function.edges[vaddr] = tuple(dict.fromkeys((*function.edges.get(vaddr, ()), *targets)))
        function.exits |= self.exits
        return self.next_pieces

    def _leave(self) -> None:
        """Note that control leaves for code that is not followed."""
        self.function.leave(self.machine.abi.clobbered)

    def _begins_function(self, vaddr: int) -> bool:
        """Return whether only padding is between the end of a call and something that may be an entry."""
        return any(place in self.code.entries for place in self.code.through_padding(vaddr))

    def _step(self, at: _Next) -> _Next | None:
        """Give the instruction at an address its state; return where control continues."""
        machine, function, code = self.machine, self.function, self.code
        vaddr, state = at.vaddr, at.state
        state_before = self.states.get(vaddr)
        if state_before is None:
            state_before = function.states.get(vaddr)
            self.has_joined |= state_before is not None
        if state_before is not None:
            state = joined(vaddr, state_before, state, machine.sp)
            if state is state_before:
                return None
        elif vaddr != self.piece.vaddr and self._ends_at_entry(at):
            return None
        instruction = code.at(vaddr)
        if instruction is None:
            if not code.never_returns(vaddr):
                self._leave()
            return None
        self.states[vaddr] = state
        machine.spend()
        size, effect, changed = instruction
        function.sizes[vaddr] = size
        if effect is None:
            raise RefusedError(Reason.UNKNOWN)
        function.changed |= changed
        steps = effect.steps
        if steps:
            state = after(state, steps, vaddr, machine.abi.arch, machine.kept)
        if effect.flow is not Flow.NEXT:
            return self._branch(vaddr, vaddr + size, effect, state, at.compared)
        if steps:
            self._note_labels(steps, state)
        return _Next(vaddr + size, state, True, steps[-1] if steps and steps[-1].op is Op.COMPARE else None)

    def _ends_at_entry(self, at: _Next) -> bool:
        """Return whether a path ends at an address because another function begins there."""
        machine, code, vaddr = self.machine, self.code, at.vaddr
        is_entry = vaddr in code.entries
        if machine.is_sweep:
            # The target of a branch that is never taken may be whatever follows a function.
            is_other = is_entry or vaddr < self.function.entry or (not at.is_next and code.padding_size(vaddr) > 0)
            if is_other:
                self._leave()
            return is_other
        if not is_entry:
            return False
        # The code after a call that does not return leads into the next function.
        falls_out = at.is_next and (self.piece.is_after_call or not code.needs_proof)
        if falls_out and at.state[machine.sp] != machine.entry_sp:
            return True
        return self._ends_in_tail_call(vaddr, at.state)

    def _ends_in_tail_call(self, vaddr: int, state: State) -> bool:
        """Return whether a path ends at an entry because it arrives as a call would: that function's summary decides.

        The path does not end where no return is proved there, and the state has more than that of a call, such as the
        address to which the function jumps in the end: with that, a return may be proved.
        """
        machine, function = self.machine, self.function
        if not machine.entry_state.items() <= state.items():
            return False
        summary = machine.summary_of(vaddr)
        if summary is not None and summary.returns:
            self.states[vaddr] = state
            self.exits.add(vaddr)
            function.changed |= summary.changed
            function.spoils_fp |= summary.spoils_fp
            self.edges[vaddr] = ()
            return True
        if len(state) != len(machine.entry_state):
            return False
        if summary is None or not summary.never_returns:
            self._leave()
        return True

    def _note_labels(self, steps: tuple[Step, ...], state: State) -> None:
        """Note the addresses of code that an instruction loads, in one step or as a page and an offset."""
        for step in steps:
            if step.op is Op.NUMBER or (step.op is Op.MOVE and (step.offset or step.source == step.register)):
                value = state.get(step.register)
                is_address = step.op is Op.MOVE or step.size == 8 or (step.size == 4 and self.code.is_fixed)
                if value is not None and value[0] == NUMBER and is_address and self._may_be_label(value[1]):
                    self.function.labels.add(value[1])

    def _may_be_label(self, vaddr: int) -> bool:
        """Return whether a jump may stay in the function; without proof, no other function is tried at its target."""
        code = self.code
        if not code.holds(vaddr):
            return False
        return code.needs_proof or (vaddr not in code.entries and code.may_hold(self.function.entry, vaddr))

    def _branch(self, vaddr: int, end: int, effect: Effect, state: State, compared: Step | None) -> _Next | None:
        """Follow an instruction that ends at `end` and does more than to pass control on. Other paths become work.

        Raises `RefusedError` for a return with another frame.
        """
        flow, target = effect.flow, effect.target
        value = state.pop(JUMP, None)
        following = _Next(end, state, is_next=True)
        match flow:
            case Flow.CALL:
                return self._call(vaddr, end, target, value, state)
            case Flow.SYSTEM_CALL if value is None or value[0] != NUMBER or value[1] not in self.machine.abi.last_calls:
                return following
            case Flow.JUMP if target is not None:
                self.edges[vaddr] = (target,)
                return _Next(target, state, is_next=target == end)
            case Flow.BRANCH if target is not None:
                self.edges[vaddr] = (target, end)
                if not self.code.needs_proof:
                    state = without_numbers(state)
                taken, not_taken = self._branch_states(compared, effect.equal, state)
                self.work.append(_Next(target, taken))
                return _Next(end, not_taken, is_next=True)
            case Flow.BRANCH_INDIRECT:
                self.edges[vaddr] = (end,)
                elsewhere = self._jump(vaddr, value, state, is_return=False)
                self.work += [] if elsewhere is None else [elsewhere]
                return following
        self.edges[vaddr] = ()
        is_jump = flow in (Flow.JUMP_INDIRECT, Flow.RETURN)
        return self._jump(vaddr, value, state, is_return=flow is Flow.RETURN) if is_jump else None

    def _branch_states(self, compared: Step | None, equal: bool | None, state: State) -> tuple[State, State]:  # noqa: FBT001
        """Return the states where a branch is taken and where it is not: equality with another register may tell SP."""
        sp = self.machine.sp
        if compared is None or equal is None or sp not in (compared.register, compared.source):
            return state, state
        value = state.get(compared.source if compared.register == sp else compared.register)
        if value is None or value[0] != CFA:
            return state, state
        same = {**state, sp: value}
        return (same, state) if equal else (state, same)

    def _call(
        self, vaddr: int, end: int, target: int | None, value: Value | TableWord | None, state: State
    ) -> _Next | None:
        """Follow a call of the function at `target`, or at an address that is a value."""
        machine, function, code = self.machine, self.function, self.code
        function.call_sites.add(vaddr)
        self.edges.setdefault(vaddr, ())
        summary = None
        if target is not None:
            function.calls.add(target)
            summary = machine.summary_of(target)
        if summary is not None:
            never_returns = summary.never_returns
        elif target is not None:
            never_returns = not code.holds(target) and code.never_returns(target)
        else:
            never_returns = code.import_never_returns(word_of(value))
        if never_returns or not code.comes_back(vaddr, end):
            return None
        changed = machine.abi.clobbered if summary is None else summary.changed
        function.changed |= changed
        back = after_call(state, machine.abi, changed, spoils_fp=summary is not None and summary.spoils_fp)
        if not code.needs_proof:
            return None if self._begins_function(end) else _Next(end, back, is_next=True)
        is_proof = state[machine.sp] != machine.entry_sp or (summary is not None and summary.returns)
        origin = vaddr if is_proof else None
        self.next_pieces.append(CodePiece(end, back, origin, is_after_call=True, is_guess=self.piece.is_guess))
        return None

    def _jump(self, vaddr: int, value: Value | TableWord | None, state: State, *, is_return: bool) -> _Next | None:
        """Follow a jump to the address that a value is. Raises `RefusedError` where that returns with another frame."""
        machine, function, code = self.machine, self.function, self.code
        arch = machine.abi.arch
        if value == NO_CALLER:
            return None
        if value == RETURN_ADDRESS or (is_return and (value is None or value[0] != NUMBER)):
            if code.needs_proof:
                is_signed = not arch.fixed_ra_offset and state.get(RA_SIGN_STATE) != (NUMBER, 0)
                if value != RETURN_ADDRESS or state[machine.sp] != (CFA, arch.sp_offset_from_cfa) or is_signed:
                    raise RefusedError(Reason.NOT_PROVEN)
                if state.get(arch.fp_register) != CALLER_FP:
                    function.spoils_fp = True
                    raise RefusedError(Reason.NOT_PROVEN)
            self.exits.add(vaddr)
            return None
        if isinstance(value, TableWord) and not machine.is_sweep:
            labels = [target for target in code.table_targets(value) if self._may_be_label(target)]
            targets = code.in_table(vaddr, labels)
            self.next_pieces += [CodePiece(target, state, vaddr, is_guess=True) for target in targets]
            # Without labels, it is a table of functions.
            leaves = not labels
        elif value is not None and value[0] == NUMBER and code.holds(value[1]):
            self.edges[vaddr] = (*self.edges[vaddr], value[1])
            return _Next(value[1], state)
        else:
            leaves = not code.import_never_returns(word_of(value))
        if leaves:
            self._leave()
        return None
