# SPDX-License-Identifier: Apache-2.0
"""What the machine is told of code, and what it finds out about a function."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence  # noqa: TC003 - parts of a NamedTuple's fields
from typing import NamedTuple

from cfi2sframe.instructions.effects import Abi, Effect  # noqa: TC001 - part of a NamedTuple's fields
from cfi2sframe.instructions.reasons import CodeReason  # noqa: TC001
from cfi2sframe.instructions.states import State, TableWord  # noqa: TC001 - parts of a NamedTuple's fields


class DecodedInstruction(NamedTuple):
    """The size of an instruction, its effect, None where that is not known, and a bit for each register it changes."""

    size: int
    effect: Effect | None
    changed: int


class Code(NamedTuple):
    """What the machine asks of the code around it.

    `at(vaddr)` returns the instruction at an address, None where the code has none; `holds(vaddr)` tells whether an
    address is one of the code's. `entries` are all addresses that may be entries. `table_targets(word)` returns where
    the words of a table of jumps lead. `never_returns(vaddr)` tells it of a function outside of the code,
    `import_never_returns(vaddr)` of the one whose address is in a word. `size` is that of the code.

    What CFI says may narrow that: `comes_back(vaddr, end)`: the call at an address may come back to its end;
    `may_hold(entry, vaddr)`: a function may have code at an address; `fits(vaddr, state)`: a label may be reached with
    a state; `in_table(jump, targets)` returns those of a table's targets to which a jump may lead. Unless the code
    `needs_proof`, what returns with another frame is not refused, and before something unknown, states stay.
    """

    at: Callable[[int], DecodedInstruction | None]
    holds: Callable[[int], bool]
    entries: Container[int]
    table_targets: Callable[[TableWord], Iterable[int]]
    never_returns: Callable[[int], bool]
    import_never_returns: Callable[[int], bool]
    is_fixed: bool
    size: int
    comes_back: Callable[[int, int], bool] = lambda _vaddr, _end: True
    may_hold: Callable[[int, int], bool] = lambda _entry, _vaddr: True
    fits: Callable[[int, State], bool] = lambda _vaddr, _state: True
    in_table: Callable[[int, Sequence[int]], Iterable[int]] = lambda _jump, targets: targets
    needs_proof: bool = True


class Summary(NamedTuple):
    """What calls of a function need to know: whether it is proved to return, or never does; what it changes.

    `changed` has a bit for each register, but FP is only changed where the function `spoils_fp`.
    """

    returns: bool
    never_returns: bool
    changed: int
    spoils_fp: bool


class CodePiece(NamedTuple):
    """Something to follow, from `vaddr` on.

    Where it is accepted, control gets there from `origin` (None: no proof passes back). `is_guess`: it is, or follows a
    call in, what a word of a table or a label led to; `is_label`: it is a label.
    """

    vaddr: int
    state: State
    origin: int | None
    is_after_call: bool = False
    is_guess: bool = False
    is_label: bool = False


class Followed:
    """What was found from one entry.

    `states` has the state before each instruction, `proven` the addresses that reach a return of the function. `edges`
    has where control goes from an address, unless that is only the next instruction. `calls` are the addresses called,
    `labels` those of code that were loaded.
    """

    def __init__(self, entry: int) -> None:
        self.entry = entry
        self.states: dict[int, State] = {}
        self.edges: dict[int, tuple[int, ...]] = {}
        self.sizes: dict[int, int] = {}
        self.exits: set[int] = set()
        self.proven: set[int] = set()
        self.calls: set[int] = set()
        self.call_sites: set[int] = set()
        self.labels: dict[int, None] = {}
        self.changed = 0
        self.spoils_fp = False
        #: Whether control may leave on ways that are not known.
        self.is_open = False
        self.refusal: CodeReason | None = None
        #: What the addresses are that were followed in a piece that was refused.
        self.refused: dict[int, CodeReason] = {}
        self._dispatch: State | None = None

    def leave(self, abi: Abi) -> None:
        """Note that control may leave on a way that is not known."""
        self.is_open = True
        self.changed |= abi.clobbered

    def dispatch(self, state: State, sp: int) -> list[CodePiece]:
        """Return what to try after an unresolved jump: all labels, with what all such jumps agree on."""
        known = self._dispatch
        if known is not None:
            state = {key: value for key, value in known.items() if state.get(key) == value}
            if sp not in state or len(state) == len(known):
                return []
        self._dispatch = state
        return self.pieces_of_labels()

    def pieces_of_labels(self, first: int = 0) -> list[CodePiece]:
        """Return what to try for the labels from a number on, once there is an unresolved jump."""
        state = self._dispatch
        labels = () if state is None else list(self.labels)[first:]
        return [CodePiece(vaddr, state or {}, None, is_guess=True, is_label=True) for vaddr in labels]

    def prove(self) -> None:
        """Find the addresses from which control reaches a return."""
        before: dict[int, list[int]] = {}
        for vaddr in self.states:
            for target in self.edges.get(vaddr, (vaddr + self.sizes.get(vaddr, 0),)):
                before.setdefault(target, []).append(vaddr)
        waiting = list(self.exits)
        proven = self.proven
        while waiting:
            vaddr = waiting.pop()
            if vaddr not in proven:
                proven.add(vaddr)
                waiting += before.get(vaddr, ())
