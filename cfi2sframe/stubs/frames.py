# SPDX-License-Identifier: Apache-2.0
"""Find the frame at each instruction of PLT stubs, by following control from their entries.

Code outside of stubs enters them like functions: at the start of a stub, and after an instruction that ends the flow,
at the second half of a lazy stub, whose address is in its GOT slot. Only stubs enter what stubs jump to or call. Code
that control does not reach (padding, the loop after a call that never returns) has the frame of the code before it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import NOTHING, Effect, Flow, Op, Step
from cfi2sframe.instructions.rows import row_of
from cfi2sframe.instructions.states import CALLER_FP, CFA, RefusedError, State, after, entry_state
from cfi2sframe.sframe.model import FrameState
from cfi2sframe.why import Reason, Why

_ENDS: Final = (Flow.JUMP, Flow.JUMP_INDIRECT, Flow.RETURN, Flow.STOP)
_WORD_SIZE: Final = 8
#: In place of an instruction's text, for bytes after the end of the flow that are no instruction.
_NO_CODE: Final = "number"
#: Two zeros, as an instruction of AMD64.
_ZEROS: Final = "add byte ptr [rax], al"
#: Traps with which no linker fills space: somebody has patched the stub.
_PATCHES: Final = ("ud0", "ud1", "ud2", "ud2b", "hlt", "int1")
#: The alignment of all stubs.
_ALIGNMENT: Final = 8
#: Frames that reach an instruction, at most: more are those of a loop that pushes.
_MAX_FRAMES: Final = 4


class StubInstruction(NamedTuple):
    """An instruction: its size in bytes, its text, and its effect (None: stubs have no such instruction)."""

    size: int
    text: str
    effect: Effect | None = None

    @property
    def is_filler(self) -> bool:
        """True if the instruction fills space, also as a trap, or is the number after an s390x stub."""
        if self.text == _ZEROS:
            return True
        if self.effect is None:
            return self.text == _NO_CODE
        return self.effect.is_padding or self.effect.flow is Flow.STOP

    @property
    def ends_flow(self) -> bool:
        """True if control does not continue at the next instruction."""
        return self.effect is not None and self.effect.flow in _ENDS

    def is_unfilled(self, vaddr: int) -> bool:
        """Return whether the instruction jumps to the next one, as GNU ld leaves jumps to PLT0 in static programs."""
        return self.effect is not None and self.effect.flow is Flow.JUMP and self.effect.target == vaddr + self.size


class Stubs:
    """The instructions of all stubs in a decoder's spans by their addresses, and their frames.

    `entries` are the addresses where a stub, or a second half of one, may begin, without those that stubs jump to or
    call: the start of a loop is none where nothing else leads there.
    """

    def __init__(self, decoder: Decoder) -> None:
        self.decoder = decoder
        by_range = [dict(decoded(decoder, *span)) for span in decoder.spans]
        self.instructions = {vaddr: instruction for inside in by_range for vaddr, instruction in inside.items()}
        self._targets = {
            instruction.effect.target
            for vaddr, instruction in self.instructions.items()
            if instruction.effect is not None
            and instruction.effect.target in self.instructions
            and instruction.effect.target != vaddr
            and not instruction.is_unfilled(vaddr)
        }
        self.entries = {vaddr for inside in by_range for vaddr in _leaders_of(inside)} - self._targets
        lone = {vaddr for inside in by_range if self._is_lone(inside) for vaddr in inside}
        self.frames = self._follow(self.entries - lone)

    def _is_lone(self, inside: dict[int, StubInstruction]) -> bool:
        """Return whether a range is only a first block, which nothing enters: it is left to its CFI."""
        effects = [i.effect for i in inside.values() if i.effect is not None and not i.is_filler]
        sp = self.decoder.abi.arch.sp_register
        pushes = any(step.op is Op.MOVE and step.register == sp for effect in effects for step in effect.steps)
        return pushes and sum(effect.flow in _ENDS for effect in effects) == 1 and self._targets.isdisjoint(inside)

    def _follow(self, entries: Iterable[int]) -> dict[int, FrameState | Why]:
        """Return the frame of each instruction that control reaches; a reason where it arrives with several frames."""
        reached: dict[int, dict[FrameState, int]] = {}
        frames: dict[int, FrameState | Why] = {}
        entry = entry_state(self.decoder.abi.arch)
        entry_frame = self._frame(entry)
        work = [(vaddr, entry, entry_frame) for vaddr in sorted(entries)]
        while work:
            vaddr, state, frame = work.pop()
            instruction, frames_here = self.instructions.get(vaddr), reached.setdefault(vaddr, {})
            if instruction is None or frame is None or frame in frames_here or len(frames_here) > _MAX_FRAMES:
                continue
            frames_here[frame] = -state[self.decoder.abi.arch.sp_register][1]
            effect = instruction.effect
            new = None if effect is None else self._after(vaddr, effect, state)
            after_frame = None if new is None else frame if new == state else self._frame(new)
            if effect is None or new is None or after_frame is None:
                frames[vaddr] = Why(Reason.UNKNOWN_INSTRUCTION, instruction.text)
                continue
            if effect.target is not None and not instruction.is_unfilled(vaddr):
                work.append((effect.target, new, after_frame))
            if effect.flow is Flow.NEXT:
                work.append((vaddr + instruction.size, new, after_frame))
        for vaddr, frames_here in reached.items():
            if len(frames_here) == 1:
                frames.setdefault(vaddr, *frames_here)
            else:
                depths = " or ".join(map(str, sorted(frames_here.values())))
                frames.setdefault(vaddr, Why(Reason.DEPTH_CONFLICT, f"CFA is SP plus {depths}"))
        return frames

    def _after(self, vaddr: int, effect: Effect, state: State) -> State | None:
        """Return the state after an instruction; None where it is unknown."""
        arch = self.decoder.abi.arch
        sp, steps = arch.sp_register, effect.steps
        if effect.flow is Flow.CALL:
            if effect.target not in self.instructions:
                return None
            steps = (Step(Op.STORE, sp, NOTHING, -_WORD_SIZE), Step(Op.MOVE, sp, sp, -_WORD_SIZE))
        elif effect.flow is Flow.RETURN:
            # A return pops the address to which it jumps, and nothing follows.
            steps = ()
        try:
            return after(state, steps, vaddr, arch, 0)
        except RefusedError:
            return None

    def _frame(self, state: State) -> FrameState | None:
        """Return the frame of a state.

        None where the CFA is not SP plus whole words, where rows of stubs cannot express the places of the RA and FP,
        or where more has been popped than pushed.
        """
        arch = self.decoder.abi.arch
        sp, row = state[arch.sp_register], row_of(state, self.decoder.abi)
        if sp[0] != CFA or sp[1] > -arch.entry_cfa_offset or sp[1] % _WORD_SIZE:
            return None
        if row is None or not isinstance(row.cfa, Rule) or state.get(arch.fp_register) != CALLER_FP:
            return None
        ra = row.ra if isinstance(row.ra, Rule) else None
        return FrameState(row.cfa, ra) if ra is None or ra.is_saved_at_cfa else None

    def at_each_byte(self, start: int, end: int) -> list[FrameState | Why]:
        """Return the frame at each byte of a range of stubs."""
        frames: list[FrameState | Why] = []
        frame: FrameState | Why = Why(Reason.ENTRY_UNKNOWN, "a first block")
        while start < end:
            instruction = self.instructions[start]
            frame = self.frames.get(start, frame)
            if instruction.effect is None and not instruction.is_filler:
                frame = Why(Reason.UNKNOWN_INSTRUCTION, instruction.text)
            frames += [frame] * instruction.size
            start += instruction.size
        return frames


def decoded(decoder: Decoder, vaddr: int, end: int) -> Iterator[tuple[int, StubInstruction]]:
    """Decode a range from end to end."""
    literal_size, has_ended = decoder.abi.stub_literal_size, False
    while vaddr < end:
        size = decoder.abi.arch.instruction_alignment
        for at, length, name, operands in decoder.disassemble(vaddr, end):
            instruction = _stub_instruction(decoder, at, length, name, operands)
            yield at, instruction
            vaddr, has_ended = at + length, instruction.ends_flow
            if literal_size and instruction.effect is not None and instruction.effect.flow is Flow.JUMP:
                # The number may look like an instruction.
                size = literal_size
                break
        if vaddr < end:
            yield vaddr, StubInstruction(min(size, end - vaddr), _NO_CODE if has_ended else "no instruction")
            vaddr += size


def _stub_instruction(decoder: Decoder, vaddr: int, size: int, name: str, operands: str) -> StubInstruction:
    """Return an instruction, with its effect where stubs have such instructions."""
    effect = decoder.effect_of(vaddr, size, name, operands)
    if effect is not None:
        is_direct_call = effect.flow is Flow.CALL and effect.target is not None
        if name in _PATCHES or not (is_direct_call or effect.flow in (*_ENDS, Flow.NEXT)):
            effect = None
    return StubInstruction(size, f"{name} {operands}".strip(), effect)


def _leaders_of(inside: dict[int, StubInstruction]) -> Iterator[int]:
    """Yield the first address of a range, and those after the ends of the flow in it; fillers are skipped.

    After fillers, and after instructions that stubs do not have, only an aligned address is the start of a stub.
    """
    is_leader, needs_alignment = True, False
    for vaddr, instruction in inside.items():
        if is_leader and not instruction.is_filler:
            needs_alignment = needs_alignment and vaddr % _ALIGNMENT != 0
            if not needs_alignment and instruction.effect is not None:
                yield vaddr
        is_leader = instruction.ends_flow or (is_leader and instruction.is_filler)
        needs_alignment = needs_alignment or instruction.is_filler or instruction.effect is None
