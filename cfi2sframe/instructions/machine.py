# SPDX-License-Identifier: Apache-2.0
"""Follow instructions from an entry, and keep what a return proves: entries are candidates, exits prove.

Anything that may be an entry is tried as if it were one: SP, the RA and FP are assumed to be those that a call leaves.
From there each instruction gets one state, the join of those with which control reaches it. A way out proves it: where
a return finds SP, the RA and FP as the caller had them, all distances on the ways to it were right, because they were
counted from the same entry. What reaches no such return is not kept, whatever else speaks for it.

Control is followed in pieces: the entry up to calls and jumps whose targets are not known, then what follows each call,
and each word of a table of jumps. A piece is refused as a whole when it contains something unknown, when it disagrees
with what is known about an address, or when it returns with another frame. A function whose first piece is refused
is dropped, and so is one where the code after a call is refused once it has met accepted code, which that may have
reached with another frame. Any other piece, such as the bytes after a call that never returns, or a word after
the end of a table with the calls in what it leads to, only refuses itself.

A proof passes back through a call, but not where SP is as at the entry: that call may be the last instruction of one
function, and what follows it the next one. There, and for a jump to another entry, the other function has to be
proved. Nothing passes back through a jump whose target is not known.

What is left after all candidates is swept: each instruction with which unknown code begins is a candidate, too, though
most are in the midst of a function. There only a return proves, which control reaches without leaving the code that
follows: not a jump back, nor one to another entry or by a table. A function proved by that is then followed as others.

What is assumed of code:

- A return pops what the call pushed, and the registers that the ABI has a function keep are kept by what is called. Of
  FP, this is checked where the function that is called is followed, too.
- Stores through other pointers than copies of SP and FP do not change what the frame has saved.
- What is below SP and its red zone belongs to nobody: it is forgotten, but for what is `kept`.
- Where SP gets a value that is not known, and FP has the CFA, what the frame has saved is not below SP, or SP is on
  another stack.
"""

from collections import deque
from collections.abc import Callable
from enum import Enum
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
    WORD,
    RefusedError,
    State,
    TableWord,
    Value,
    after,
    entry_state,
    joined,
    without_numbers,
)
from cfi2sframe.why import Reason

#: Instructions that are followed for each byte of code, pieces and repetitions included.
_STEPS_PER_BYTE: Final = 40
#: In a sweep: real programs need less than one.
_SWEEP_STEPS_PER_BYTE: Final = 4
_LEAST_STEPS: Final = 100_000
#: Functions whose callees are looked at first, each by the one before.
_MAX_NESTING: Final = 20
_CALLER: Final = (CALLER_FP, 0)
_RA: Final = (RETURN_ADDRESS, 0)


class Machine:
    """Follows functions of one image; `summaries` has what is known of those that were followed.

    `take` is given each function that was followed. `kept` bytes below SP are remembered when it moves up. `is_sweep`:
    nothing says that functions begin where they are tried.
    """

    def __init__(self, code: Code, take: Callable[[Followed], None], kept: int = 0, *, is_sweep: bool = False) -> None:
        self.code = code
        self.take = take
        self.kept = kept
        self.is_sweep = is_sweep
        self.abi, arch = code.abi, code.abi.arch
        self.sp = arch.sp_register
        self.summaries: dict[int, Summary] = {}
        self.home: Value = (CFA, -arch.entry_cfa_offset)
        self.entry_state = entry_state(arch)
        self._steps_left = (_SWEEP_STEPS_PER_BYTE if is_sweep else _STEPS_PER_BYTE) * code.size + _LEAST_STEPS
        self._active: set[int] = set()

    def summary_of(self, entry: int) -> Summary | None:
        """Return what is known of a function, which is followed first where that is possible."""
        if entry not in self.summaries and entry not in self._active and len(self._active) < _MAX_NESTING:
            if not self.code.holds(entry):
                return None
            self.follow(entry)
        return self.summaries.get(entry)

    def follow(self, entry: int, state: State | None = None) -> Followed:
        """Follow control from an entry, with the state that a call leaves or another one, and prove what can be."""
        function = Followed(entry)
        self._active.add(entry)
        waiting = deque([CodePiece(entry, state or self.entry_state, None)])
        is_first = True
        while waiting:
            piece = waiting.popleft()
            walk = _Walk(self, function, piece)
            try:
                waiting += walk.run()
            except RefusedError as refused:
                function.leave(self.abi.clobbered)
                if is_first or (piece.is_after_call and walk.has_joined and not piece.is_guess):
                    function.refusal = refused.reason
                    break
                continue
            finally:
                is_first = False
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

    def after_call(self, state: State, summary: Summary | None) -> State:
        """Return the state after a call comes back; `summary` is that of the function called, None: it is not known."""
        abi = self.abi
        changed = abi.clobbered if summary is None else summary.changed & abi.clobbered
        if not abi.arch.fixed_ra_offset:
            changed |= 1 << abi.arch.ra_register
        if summary is not None and summary.spoils_fp:
            changed |= 1 << abi.arch.fp_register
        base, offset = state[self.sp][:2]
        lowest = offset + abi.callee_area
        return {
            key: value
            for key, value in state.items()
            if (not changed >> key & 1 if isinstance(key, int) else key[0] != base or key[1] >= lowest)
        }


class _Next(NamedTuple):
    """An address where control continues; `is_next`: from the instruction before, whose comparison `compared` is."""

    vaddr: int
    state: State
    is_next: bool = False
    compared: Step | None = None


class _PathEnd(Enum):
    """The end of a path that is not refused."""

    KNOWN = "control gets nowhere from here, or where it has been followed"
    LEFT = "control leaves for what is not followed, which may change what calls change"


class _Walk:
    """One piece: its own states and edges, which are the function's once the piece is accepted."""

    def __init__(self, machine: Machine, function: Followed, piece: CodePiece) -> None:
        self.machine = machine
        self.code = machine.code
        self.function = function
        self.piece = piece
        self.states: dict[int, State] = {}
        self.edges: dict[int, tuple[int, ...]] = {}
        self.exits: set[int] = set()
        self.has_joined = False
        self.found: list[CodePiece] = []
        self.work: list[_Next | _PathEnd] = [_Next(piece.vaddr, piece.state)]

    def run(self) -> list[CodePiece]:
        """Follow the piece; return what it leads to. Raises `RefusedError`."""
        function, piece = self.function, self.piece
        if piece.is_after_call and self._begins_function(piece.vaddr):
            return []
        while self.work:
            try:
                self._follow(self.work.pop())
            except RefusedError as refused:
                if self.code.needs_proof:
                    function.refused.update(dict.fromkeys(self.states, refused.reason))
                    raise
                # Without proof, only what follows is not known.
                self._follow(_PathEnd.LEFT)
        function.states.update(self.states)
        for vaddr, targets in self.edges.items():
            # What other pieces have added stays.
            function.edges[vaddr] = tuple(dict.fromkeys((*function.edges.get(vaddr, ()), *targets)))
        function.exits |= self.exits
        return self.found

    def _begins_function(self, vaddr: int) -> bool:
        """Return whether only padding is between the end of a call and something that may be an entry."""
        return any(place in self.code.entries for place in self.code.through_padding(vaddr))

    def _follow(self, at: _Next | _PathEnd) -> None:
        """Follow a path to its end. Raises `RefusedError` where it is refused."""
        while isinstance(at, _Next):
            at = self._pass(at)
        if at is _PathEnd.LEFT:
            self.function.leave(self.machine.abi.clobbered)

    def _pass(self, at: _Next) -> _Next | _PathEnd:
        """Give the instruction at an address its state; return what follows it."""
        machine, function, code = self.machine, self.function, self.code
        vaddr, state = at.vaddr, at.state
        state_before = self.states.get(vaddr)
        if state_before is None:
            state_before = function.states.get(vaddr)
            self.has_joined |= state_before is not None
        if state_before is not None:
            state = joined(vaddr, state_before, state, machine.sp)
            if state is state_before:
                return _PathEnd.KNOWN
        elif vaddr != self.piece.vaddr and (end := self._entered(at)) is not None:
            return end
        instruction = code.at(vaddr)
        if instruction is None:
            return _PathEnd.KNOWN if code.never_returns(vaddr) else _PathEnd.LEFT
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

    def _entered(self, at: _Next) -> _PathEnd | None:
        """Return how a path ends that enters another function; None where it stays in this one."""
        machine, code, vaddr = self.machine, self.code, at.vaddr
        is_entry = vaddr in code.entries
        if machine.is_sweep:
            # The target of a branch that is never taken may be whatever follows a function.
            is_other = is_entry or vaddr < self.function.entry or (not at.is_next and code.padding_size(vaddr) > 0)
            return _PathEnd.LEFT if is_other else None
        if not is_entry:
            return None
        # What follows a call that does not come back leads into the next function.
        falls_out = at.is_next and (self.piece.is_after_call or not code.needs_proof)
        if falls_out and at.state[machine.sp] != machine.home:
            return _PathEnd.KNOWN
        return self._called(vaddr, at.state)

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

    def _called(self, vaddr: int, state: State) -> _PathEnd | None:
        """Return how a path ends at an entry where it arrives as a call would: what is known of that function decides.

        None where it is not a call, or where nothing is known of the function, but more than a call tells of other
        registers, such as the address that the function jumps to in the end: that may tell more.
        """
        machine = self.machine
        if not machine.entry_state.items() <= state.items():
            return None
        summary = machine.summary_of(vaddr)
        if summary is None or not summary.returns:
            if len(state) != len(machine.entry_state):
                return None
            return _PathEnd.KNOWN if summary is not None and summary.never_returns else _PathEnd.LEFT
        self.states[vaddr] = state
        self.exits.add(vaddr)
        self.function.changed |= summary.changed
        self.function.spoils_fp |= summary.spoils_fp
        self.edges[vaddr] = ()
        return _PathEnd.KNOWN

    def _branch(self, vaddr: int, end: int, effect: Effect, state: State, compared: Step | None) -> _Next | _PathEnd:
        """Return what follows an instruction, up to `end`, that control may not just pass. Other ways are left as work.

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
                taken, other = self._compared(compared, effect.equal, state)
                self.work.append(_Next(target, taken))
                return _Next(end, other, is_next=True)
            case Flow.BRANCH_INDIRECT:
                self.edges[vaddr] = (end,)
                self.work.append(self._jump(vaddr, value, state, is_return=False))
                return following
        self.edges[vaddr] = ()
        is_jump = flow in (Flow.JUMP_INDIRECT, Flow.RETURN)
        return self._jump(vaddr, value, state, is_return=flow is Flow.RETURN) if is_jump else _PathEnd.KNOWN

    def _compared(self, compared: Step | None, equal: bool | None, state: State) -> tuple[State, State]:  # noqa: FBT001
        """Return the states where a branch is taken and where it is not: of equal values, one may tell SP."""
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
    ) -> _Next | _PathEnd:
        """Follow a call of a function, or of the one at a value."""
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
            never_returns = self._is_import_of_no_return(value)
        if never_returns or not code.comes_back(vaddr, end):
            return _PathEnd.KNOWN
        back = machine.after_call(state, summary)
        function.changed |= machine.abi.clobbered if summary is None else summary.changed
        if not code.needs_proof:
            return _PathEnd.KNOWN if self._begins_function(end) else _Next(end, back, is_next=True)
        is_proof = state[machine.sp] != machine.home or (summary is not None and summary.returns)
        origin = vaddr if is_proof else None
        self.found.append(CodePiece(end, back, origin, is_after_call=True, is_guess=self.piece.is_guess))
        return _PathEnd.KNOWN

    def _is_import_of_no_return(self, value: Value | TableWord | None) -> bool:
        return value is not None and value[0] == WORD and self.code.import_never_returns(value[1])

    def _jump(self, vaddr: int, value: Value | TableWord | None, state: State, *, is_return: bool) -> _Next | _PathEnd:
        """Follow a jump to the address that a value is. Raises `RefusedError` where that returns with another frame."""
        machine, function, code = self.machine, self.function, self.code
        arch = machine.abi.arch
        if value is not None and value[0] == NO_CALLER:
            return _PathEnd.KNOWN
        if value == _RA or (is_return and (value is None or value[0] != NUMBER)):
            if code.needs_proof:
                is_signed = not arch.fixed_ra_offset and state.get(RA_SIGN_STATE) != (NUMBER, 0)
                if value != _RA or state[machine.sp] != (CFA, arch.sp_offset_from_cfa) or is_signed:
                    raise RefusedError(Reason.NOT_PROVEN)
                if state.get(arch.fp_register) != _CALLER:
                    function.spoils_fp = True
                    raise RefusedError(Reason.NOT_PROVEN)
            self.exits.add(vaddr)
            return _PathEnd.KNOWN
        if isinstance(value, TableWord) and not machine.is_sweep:
            labels = [target for target in code.table_targets(value) if self._may_be_label(target)]
            words = code.in_table(vaddr, labels)
            self.found += [CodePiece(target, state, vaddr, is_guess=True) for target in words]
            # Without labels, it is a table of functions.
            return _PathEnd.KNOWN if labels else _PathEnd.LEFT
        if value is not None and value[0] == NUMBER and code.holds(value[1]):
            self.edges[vaddr] = (*self.edges[vaddr], value[1])
            return _Next(value[1], state)
        return _PathEnd.KNOWN if self._is_import_of_no_return(value) else _PathEnd.LEFT
