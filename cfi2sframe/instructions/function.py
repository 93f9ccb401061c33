# SPDX-License-Identifier: Apache-2.0
"""Records of a function that was followed: states, what control does, and what a return proves."""

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.instructions.states import State

if TYPE_CHECKING:
    from cfi2sframe.why import Reason


class Summary(NamedTuple):
    """Facts about a function, for its calls: whether it is proved to return, or never does; what it changes.

    `changed` has a bit for each register, but FP is only changed where the function `spoils_fp`.
    """

    returns: bool
    never_returns: bool
    changed: int
    spoils_fp: bool


class CodePiece(NamedTuple):
    """Something to follow, from `vaddr` on.

    Where it is accepted, control gets there from `origin` (None: no proof passes back). `is_guess`: it is, or follows a
    call in, what a word of a table led to.
    """

    vaddr: int
    state: State
    origin: int | None
    is_after_call: bool = False
    is_guess: bool = False


class Followed:
    """The states and ends of all paths from one entry.

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
        self.labels: set[int] = set()
        self.changed = 0
        self.spoils_fp = False
        #: Whether control may leave on ways that are not known.
        self.is_open = False
        self.refusal: Reason | None = None
        #: What the addresses are that were followed in a piece that was refused.
        self.refused: dict[int, Reason] = {}

    def leave(self, clobbered: int) -> None:
        """Note that control may leave on a way that is not known, which changes what calls do."""
        self.is_open = True
        self.changed |= clobbered

    def prove(self) -> None:
        """Find the addresses from which control reaches a return."""
        before: dict[int, list[int]] = {}
        for vaddr in self.states:
            for target in self.edges.get(vaddr, (vaddr + self.sizes.get(vaddr, 0),)):
                before.setdefault(target, []).append(vaddr)
        waiting = list(self.exits)
        while waiting:
            vaddr = waiting.pop()
            if vaddr not in self.proven:
                self.proven.add(vaddr)
                waiting += before.get(vaddr, ())
