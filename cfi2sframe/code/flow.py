# SPDX-License-Identifier: Apache-2.0
"""The state at every block of code that known entries reach, by data flow.

Functions are not told apart while control is followed: what two of them share has the join of their states. A call
comes back if its target does, which is known when control reaches a return from there, and with the registers that the
ABI keeps. Code is followed in rounds. Blocks that earlier rounds have kept do not change any more: control that leads
there has to arrive with their state.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.blocks import Blocks
from cfi2sframe.code.effects import JUMP_TARGET, JUMPS, Condition, Flow, Op, Step
from cfi2sframe.code.steps import Machine
from cfi2sframe.code.summaries import Summaries
from cfi2sframe.code.values import CALLER_FP, CFA, CONSTANT, LIMITED, LOADED, RETURN_ADDRESS, TableWord, Value
from cfi2sframe.elf.constants import PT_LOAD

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Sequence

    from cfi2sframe.code.blocks import Exit
    from cfi2sframe.code.decoder import Decoder
    from cfi2sframe.code.effects import CodeArch, Effect
    from cfi2sframe.code.values import State
    from cfi2sframe.elf.image import ElfImage

_PAGE_SIZE: Final = 0x1000
_CALLER_FP: Final = Value(CALLER_FP, 0)
_RA: Final = Value(RETURN_ADDRESS, 0)


class Surroundings(NamedTuple):
    """What the flow has to be told of code and data that it does not follow.

    `is_entry(vaddr)`: a function described by other means starts there. `returns(vaddr)`: such a function, or one that
    is imported, may come back to its caller; `import_returns(vaddr)`: the same of the function whose address is in the
    word at an address. `table_targets(table)` returns where the words of a table of jumps lead, None when that is not
    known. `is_start(vaddr)`: code starts there that control does not reach from the code before it.
    `definition(vaddr)` returns where the file itself defines what a stub at an address calls, None where it does not;
    `import_definition(vaddr)` the same of the word at an address.
    `landing_pad(vaddr)` returns where an exception leads that is thrown by the call at an address, None without one.
    """

    is_entry: Callable[[int], bool]
    returns: Callable[[int], bool]
    import_returns: Callable[[int], bool]
    table_targets: Callable[[TableWord], tuple[int, ...] | None]
    is_start: Callable[[int], bool]
    definition: Callable[[int], int | None]
    import_definition: Callable[[int], int | None]
    landing_pad: Callable[[int], int | None] = lambda _vaddr: None


class FlowAnalysis:
    """Follows control from entries; `states` has the state before each block, by its address.

    `entries` are those of functions, `kept` the blocks of earlier rounds, and `firm` entries whose state is certain.
    """

    def __init__(
        self, decoder: Decoder, arch: CodeArch, around: Surroundings, certain: Container[int] = frozenset()
    ) -> None:
        self.decoder = decoder
        self.arch = arch
        self.around = around
        self.certain = certain
        self.machine = Machine(arch, address_range(decoder.image))
        self.blocks = Blocks(decoder, self.machine.addresses)
        self.states: dict[int, State] = {}
        self.entries: set[int] = set()
        self.kept: set[int] = set()
        self._fresh: list[int] = []
        self.firm: set[int] = set()
        self._work: list[int] = []
        self._waiting: set[int] = set()
        self.summaries = Summaries(arch, self._wait)
        #: Functions that some caller expects to leave FP as it was.
        self.needing_fp: set[int] = set()
        self._entry_sp = Value(CFA, arch.entry_sp_offset)
        self._ra_place = None if arch.ra_slot is None else Value(CFA, arch.ra_slot)

    # Entries and rounds

    def enter(self, vaddr: int, *, has_caller: bool = True, is_firm: bool = False) -> None:
        """Add the entry of a function; `is_firm`: control that gets there otherwise says nothing of its state."""
        if is_firm:
            self.firm.add(vaddr)
        if vaddr not in self.entries:
            self.entries.add(vaddr)
            self._reach(vaddr, self.machine.entry_state(has_caller=has_caller))

    def run(self) -> None:
        """Follow control until nothing new is found."""
        # In the order of addresses, because control mostly leads forward.
        while self._work:
            start = heappop(self._work)
            self._waiting.discard(start)
            self._follow(start)

    def take_fresh(self) -> list[int]:
        """Return the blocks that control has reached since this was asked last."""
        fresh, self._fresh = self._fresh, []
        return fresh

    def keep(self, starts: Iterable[int]) -> None:
        """Let some blocks of this round stay as they are."""
        self.kept.update(starts)

    def forget(self, starts: Iterable[int]) -> None:
        """Forget some blocks of this round."""
        gone = list(starts)
        for start in gone:
            del self.states[start]
            self.entries.discard(start)
        self.blocks.remove(gone)

    def is_known_entry(self, vaddr: int) -> bool:
        """Whether an address is an entry for certain, or that of an earlier round."""
        return vaddr in self.entries and (vaddr in self.certain or vaddr in self.kept)

    def is_called(self, start: int) -> bool:
        """Whether kept code calls an address."""
        return any(caller in self.kept for caller in self.summaries.callers_of(start))

    def is_kept(self, vaddr: int) -> bool:
        """Whether a block of an earlier round has an address."""
        if vaddr in self.states:
            return vaddr in self.kept
        return self.blocks.holder_of(vaddr) in self.kept

    def comes_back(self, start: int, end: int) -> bool:
        """Whether the call at the end of a block comes back to an address."""
        return end in self.states and self.summaries.has_way(start, end)

    def is_at_return(self, state: State) -> bool:
        """Whether SP and the RA are what they were at the function's entry."""
        if state.registers.get(self.arch.sp_register) != self._entry_sp:
            return False
        if self._ra_place is not None:
            return state.slots.get(self._ra_place) == _RA
        return state.registers.get(self.arch.ra_register) == _RA

    def targets_of(self, state: State) -> tuple[int, ...] | None:
        """Return where an indirect jump leads; None where that is not known."""
        targets = state.targets_of(JUMP_TARGET)
        found: list[int] = []
        for target in targets or ():
            words = self.around.table_targets(target) if isinstance(target, TableWord) else (target,)
            if words is None:
                return None
            found += words
        return tuple(found) if targets else None

    # Following

    def _follow(self, start: int) -> None:
        block = self.blocks[start]
        state = self.states[start]
        if block.changes or block.exit is not None:
            state = state.copy()
            self.machine.run(state, block.changes)
        self.summaries.mark_changed(start, block.changed)
        if block.exit is not None and block.exit.effect is not None:
            if block.exit.effect.flow in JUMPS:
                self.machine.drop_restored(state, has_moved_sp=bool(block.changed >> self.arch.sp_register & 1))
            self._leave(start, block.exit, block.exit.effect, state)
        elif block.exit is None and not block.is_cut:
            self._go(start, block.end_vaddr, state)
        else:
            self.summaries.mark_unknown(start)

    def _leave(self, start: int, way_out: Exit, effect: Effect, state: State) -> None:
        """Pass the state after a block's last instruction on to where control continues."""
        flow, target, end = effect.flow, effect.target, way_out.end_vaddr
        if flow is Flow.CALL or flow is Flow.CALL_INDIRECT:
            self._land(start, way_out.vaddr, state)
        if flow is Flow.BRANCH and target is not None:
            taken, other = branch_states(self.arch, effect, way_out.comparison, state)
            self._go(start, target, taken)
            self._go(start, end, other)
        elif flow is Flow.JUMP and target is not None:
            self._go(start, target, state)
        elif flow is Flow.CALL and target is not None:
            self._call(start, (target,), way_out.vaddr, end, state)
        elif flow is Flow.CALL_INDIRECT:
            targets = self.targets_of(state)
            if targets is not None:
                self._call(start, targets, way_out.vaddr, end, state)
            elif self._jump_returns(start, state):
                self._come_back(start, end, state)
        elif flow is Flow.SYSTEM_CALL:
            if not self.is_last_call(state):
                self.after_system_call(state, way_out.vaddr)
                self._go(start, end, state)
        elif flow is Flow.BRANCH_INDIRECT:
            self._go(start, end, state)
            self._jump_to_target(start, state)
        elif flow is Flow.RETURN:
            self.summaries.mark_returning(start)
            if self.is_at_return(state) and state.registers.get(self.arch.fp_register) != _CALLER_FP:
                self.summaries.mark_spoiling_fp(start)
        elif flow is Flow.JUMP_INDIRECT:
            self._jump_to_target(start, state)

    def _jump_to_target(self, start: int, state: State) -> None:
        """Let control go where an indirect jump leads."""
        targets = self.targets_of(state)
        if targets is None and self._jump_returns(start, state):
            self.summaries.mark_unknown(start)
        for each in targets or ():
            self._go(start, each, state)

    def after_system_call(self, state: State, vaddr: int) -> None:
        """Change a state as a system call does, besides its steps: a new thread may have another stack."""
        value = state.registers.get(JUMP_TARGET)
        if value is not None and value.base == CONSTANT and value.offset in self.arch.clone_calls:
            self.machine.apply(state, Step(Op.FORGET, self.arch.sp_register), vaddr)

    def is_last_call(self, state: State) -> bool:
        """Whether a system call never comes back to the next instruction."""
        value = state.registers.get(JUMP_TARGET)
        return value is not None and value.base == CONSTANT and value.offset in self.arch.last_system_calls

    def _land(self, start: int, vaddr: int, state: State) -> None:
        """Let control go where the call at an address continues after an exception."""
        pad = self.around.landing_pad(vaddr)
        if pad is not None:
            landed = state.copy()
            self.machine.after_call(landed, self.summaries.clobbered)
            self._go(start, pad, landed)

    def _jump_returns(self, start: int, state: State) -> bool:
        """Whether the function at the address that a block jumps to may come back."""
        value = state.registers.get(JUMP_TARGET)
        if value is None or value.base != LOADED:
            return True
        return self.around.import_returns(value.offset) and self._own_returns(
            start, self.around.import_definition(value.offset)
        )

    def _own_returns(self, start: int, target: int | None) -> bool:
        """Whether a function of this code that a block calls as if it were imported may come back; None: another one.

        Where the loader takes another definition instead, that has the same contract.
        """
        if (
            target is None
            or self.decoder.span_of(target) is None
            or (target not in self.states and self.is_kept(target))
        ):
            return True
        self.enter(target)
        self.summaries.add_call(start, target)
        return self.summaries.returns(target)

    def _call(self, start: int, targets: Sequence[int], vaddr: int, end: int, state: State) -> None:
        """Let a block call functions, one of several if there are several."""
        if targets == (end,) and self.arch.ra_slot is not None:
            # It pushes its own address, to be popped.
            self.machine.push(state, vaddr)
            self._go(start, end, state)
            return
        summaries = self.summaries
        changed, keeps_fp, returns = 0, True, False
        for target in targets:
            if self.decoder.span_of(target) is None:
                is_returning = self.around.returns(target) and self._own_returns(start, self.around.definition(target))
                bits = summaries.clobbered
            elif target not in self.states and self.is_kept(target):
                # Into the midst of a block.
                is_returning, bits = True, self.summaries.clobbered
            else:
                self.enter(target)
                if self._needs_fp(state):
                    self.needing_fp.add(target)
                summaries.add_call(start, target)
                is_returning, bits = summaries.returns(target), summaries.changed_by(target)
                keeps_fp &= summaries.keeps_fp(target)
            if is_returning:
                returns, changed = True, changed | bits
        if returns:
            self._come_back(start, end, state, changed, keeps_fp=keeps_fp)

    def _needs_fp(self, state: State) -> bool:
        """Whether a caller's frame cannot be found without FP, or the caller's caller's FP is in no other place."""
        sp = state.registers.get(self.arch.sp_register)
        if sp is None or sp.base != CFA:
            return True
        if state.registers.get(self.arch.fp_register) != _CALLER_FP:
            return False
        return not any(value == _CALLER_FP and place >= sp for place, value in state.slots.items() if place.base == CFA)

    def _come_back(
        self, start: int, end: int, state: State, changed: int | None = None, *, keeps_fp: bool = True
    ) -> None:
        """Continue after a call, unless what is there shows that nothing comes back.

        `changed` has the registers that the function called changes; None: those that the ABI lets it change.
        """
        if changed is None:
            changed = self.summaries.clobbered
        if self.arch.ra_slot is None:
            # The call itself changes it.
            changed |= 1 << self.arch.ra_register
        self.summaries.mark_changed(start, changed)
        if self.around.is_start(end):
            return
        self.machine.after_call(state, changed, keeps_fp=keeps_fp)
        self._go(start, end, state)

    def _go(self, start: int, target: int, state: State) -> None:
        """Let control go from a block to an address."""
        if self.decoder.span_of(target) is None:
            if self.around.returns(target):
                self.summaries.mark_unknown(start)
            return
        known = self.states.get(target)
        if known is None and self.is_kept(target):
            # In the midst of a block.
            self.summaries.mark_unknown(start)
            return
        self.summaries.add_way(start, target)
        self._reach(target, state)

    def _reach(self, vaddr: int, state: State) -> None:
        """Let control reach an address; what earlier rounds have kept does not change."""
        known = self.states.get(vaddr)
        if known is None:
            if self.is_kept(vaddr):
                return
            self.states[vaddr] = state.copy()
            self._fresh.append(vaddr)
            before = self.blocks.add(vaddr)
            if before is not None:
                # What was followed past this address has to stop here, and join.
                self._wait(before)
        elif vaddr in self.kept or vaddr in self.firm or not known.join(state, self.machine.addresses):
            return
        self._wait(vaddr)

    def _wait(self, start: int) -> None:
        # Of a caller, an earlier round may have forgotten the block.
        if start not in self._waiting and start not in self.kept and start in self.states:
            self._waiting.add(start)
            heappush(self._work, start)


def branch_states(arch: CodeArch, effect: Effect, compared: Step | None, state: State) -> tuple[State, State]:
    """Return the states where a branch is taken and where it is not: what was compared may tell more there."""
    condition = effect.condition
    if compared is None or condition is Condition.NONE:
        return state, state
    taken, other = state.copy(), state.copy()
    if condition in (Condition.EQUAL, Condition.NOT_EQUAL):
        equal = taken if condition is Condition.EQUAL else other
        for register, same in ((compared.register, compared.source), (compared.source, compared.register)):
            known = equal.registers.get(same)
            if register == arch.sp_register and known is not None and known.base == CFA:
                equal.registers[register] = known
    elif compared.source < 0:
        is_strict = condition in (Condition.ABOVE, Condition.BELOW_OR_EQUAL)
        below = other if condition in (Condition.ABOVE, Condition.ABOVE_OR_EQUAL) else taken
        number = compared.offset if is_strict else compared.offset - 1
        old = below.registers.get(compared.register)
        limit = old.offset if old is not None and old.base == LIMITED else None
        # A number that is not negative compares alike as a signed one.
        is_unsigned = not compared.is_signed or (limit is not None and limit >> (8 * compared.size - 1) == 0)
        if number >= 0 and is_unsigned and (old is None or limit is not None):
            below.registers[compared.register] = Value(LIMITED, number)
    return taken, other


def address_range(image: ElfImage) -> range:
    """Return the addresses of an image; of one that begins at 0, none of the first page."""
    first = min((segment.vaddr for segment in image.segments if segment.type == PT_LOAD), default=0)
    return range(max(first, _PAGE_SIZE), image.end_of_segments())
