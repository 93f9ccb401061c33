# SPDX-License-Identifier: Apache-2.0
"""Follow instructions from an entry, and keep what a return proves: entries are candidates, exits prove.

Anything that may be an entry is tried as if it were one: SP, the RA and FP are assumed to be those that a call leaves.
From there each instruction gets one state, the join of those with which control reaches it. A way out proves it: where
a return finds SP, the RA and FP as the caller had them, all distances on the ways to it were right, because they were
counted from the same entry. What reaches no such return is not kept, whatever else speaks for it.

Control is followed in pieces: the entry up to calls and jumps whose targets are not known, then what follows each call,
each word of a table of jumps, each label that the function loads where nothing tells where a jump leads. A piece is
refused as a whole when it contains something unknown, when it disagrees with what is known about an address, or when it
returns with another frame. Of a function whose first piece is refused nothing is kept, and neither if what follows a
call is refused after it has met code that was accepted: that may have arrived there with another frame. Any other
piece, such as the bytes after a call that never returns, or a word after the end of a table with the calls in what it
leads to, only refuses itself.

A proof passes back through a call, but not where SP is as at the entry: that call may be the last instruction of one
function, and what follows it the next one. There, and for a jump to another entry, the other function has to be
proved. Nothing passes back through a jump whose target is not known.

What is assumed of code:

- A return pops what the call pushed, and the registers that the ABI has a function keep are kept by what is called. Of
  FP, this is checked where the function that is called is followed, too.
- Stores through other pointers than copies of SP and FP do not change what the frame has saved.
- What is below SP and its red zone belongs to nobody: it is forgotten.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from cfi2sframe.instructions.effects import RA_SIGN_STATE
from cfi2sframe.instructions.function import CodePiece, Followed, Summary
from cfi2sframe.instructions.reasons import CodeReason
from cfi2sframe.instructions.states import CALLER_FP, CFA, NUMBER, RETURN_ADDRESS, RefusedError
from cfi2sframe.instructions.walk import Walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.instructions.effects import Abi
    from cfi2sframe.instructions.function import Code
    from cfi2sframe.instructions.states import State, Value

#: Instructions that are followed for each byte of code, pieces and repetitions included.
_STEPS_PER_BYTE: Final = 40
_LEAST_STEPS: Final = 100_000
#: Functions whose callees are looked at first, each by the one before.
_MAX_NESTING: Final = 20


class Machine:
    """Follows functions of one image; `summaries` has what is known of those that were followed."""

    def __init__(self, abi: Abi, code: Code) -> None:
        self.abi = abi
        self.code = code
        self.summaries: dict[int, Summary] = {}
        self.results: Callable[[Followed], None] = lambda _followed: None
        self.entry_state: State = {abi.sp: (CFA, abi.entry_sp), abi.fp: (CALLER_FP, 0)}
        self._ra_place: int | Value = abi.ra_register if abi.ra_slot is None else (CFA, abi.ra_slot)
        self.entry_state[self._ra_place] = (RETURN_ADDRESS, 0)
        if abi.ra_slot is None:
            self.entry_state[RA_SIGN_STATE] = (NUMBER, 0)
        self._steps_left = _STEPS_PER_BYTE * code.size + _LEAST_STEPS
        self._nesting = 0
        self._active: set[int] = set()

    def summary_of(self, entry: int) -> Summary | None:
        """Return what is known of a function, which is followed first where that is possible."""
        if entry not in self.summaries and entry not in self._active and self._nesting < _MAX_NESTING:
            if not self.code.holds(entry):
                return None
            self.follow(entry)
        return self.summaries.get(entry)

    def follow(self, entry: int, state: State | None = None) -> Followed:
        """Follow control from an entry, with the state that a call leaves or another one, and prove what can be."""
        function = Followed(entry)
        self._active.add(entry)
        self._nesting += 1
        waiting = deque([CodePiece(entry, state or self.entry_state, None)])
        is_first = True
        while waiting:
            piece = waiting.popleft()
            labels = len(function.labels)
            walk = Walk(self, function, piece)
            try:
                waiting += walk.run()
            except RefusedError as refused:
                function.leave(self.abi)
                if is_first or (piece.is_after_call and walk.has_joined and not piece.is_guess):
                    function.refusal = refused.reason
                    break
                continue
            finally:
                is_first = False
            if piece.origin is not None:
                function.edges[piece.origin] = (*function.edges.get(piece.origin, ()), piece.vaddr)
            if len(function.labels) > labels:
                waiting += function.pieces_of_labels(labels)
        if function.refusal is None and self.code.needs_proof:
            function.prove()
        self._nesting -= 1
        self._active.discard(entry)
        never = not function.exits and not function.is_open
        returns = entry in function.proven if self.code.needs_proof else bool(function.exits)
        self.summaries[entry] = Summary(returns, never, function.changed, function.spoils_fp)
        self.results(function)
        return function

    def spend(self) -> None:
        """Count an instruction. Raises `RefusedError` when code is followed again and again."""
        self._steps_left -= 1
        if self._steps_left < 0:
            raise RefusedError(CodeReason.UNKNOWN)

    def is_home(self, state: State) -> bool:
        """Whether SP is as at an entry."""
        return state.get(self.abi.sp) == (CFA, self.abi.entry_sp)

    def is_entry_state(self, state: State) -> bool:
        """Whether SP, the RA and FP are as at an entry."""
        return all(state.get(key) == value for key, value in self.entry_state.items())

    def is_exit(self, state: State) -> bool:
        """Whether a jump to the return address returns to the caller, as far as SP and the RA go."""
        abi = self.abi
        if state.get(abi.sp) != (CFA, abi.exit_sp):
            return False
        return abi.ra_slot is not None or state.get(RA_SIGN_STATE) == (NUMBER, 0)

    def after_call(self, state: State, summary: Summary | None) -> State:
        """Return the state after a call comes back; `summary` is that of the function called, None: it is not known."""
        abi = self.abi
        changed = abi.clobbered if summary is None else summary.changed & abi.clobbered
        if abi.ra_slot is None:
            changed |= 1 << abi.ra_register
        if summary is not None and summary.spoils_fp:
            changed |= 1 << abi.fp
        base, offset = state[abi.sp][:2]
        lowest = offset + abi.callee_area
        return {
            key: value
            for key, value in state.items()
            if (not changed >> key & 1 if isinstance(key, int) else key[0] != base or key[1] >= lowest)
        }
