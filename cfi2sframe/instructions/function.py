# SPDX-License-Identifier: Apache-2.0
"""Records of a function that was followed: its states, its flow of control, and what its returns prove."""

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.instructions.states import State

if TYPE_CHECKING:
    from cfi2sframe.why import Reason


class Summary(NamedTuple):
    """Facts about a function for its callers: whether it is proved to return, or never does; what it changes.

    `changed` has a bit for each register, but FP only counts as changed where the function `spoils_fp`.
    """

    returns: bool
    never_returns: bool
    changed: int
    spoils_fp: bool


class CodePiece(NamedTuple):
    """Code to follow from `vaddr` on, with the state there.

    Once it is accepted, control gets there from `origin` (None: no proof passes back). `is_guess`: a word of a table
    led to it, or to the code whose call it follows.
    """

    vaddr: int
    state: State
    origin: int | None
    is_after_call: bool = False
    is_guess: bool = False


class Followed:
    """The states and ends of all paths from one entry.

    `states` has the state before each instruction, `proven` the addresses from which control reaches a return of the
    function, and `edges` the addresses that follow one, unless only the next instruction does. `calls` are addresses
    that are called, `labels` addresses of code that are loaded.
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
        #: Control may leave for code that is not followed.
        self.is_open = False
        self.refusal: Reason | None = None
        #: The addresses of refused pieces, and why they were refused.
        self.refused: dict[int, Reason] = {}

    def leave(self, clobbered: int) -> None:
        """Note that control may leave for code that is not followed: that changes the registers that calls change."""
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
