# SPDX-License-Identifier: Apache-2.0
"""The frame at each instruction of PLT stubs, by following the flow from their entries.

Code outside enters at the start of a stub and after each end of the flow (the second half of a lazy stub, whose address
is in its GOT slot), as it enters a function. What other stubs jump to or call is entered by them alone. What no flow
reaches (padding, the loop after a call that does not return) is never executed, and has the frame of what is before it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.instructions.effects import Effect, Flow, Op, words
from cfi2sframe.stubs.records import StubReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.instructions.decoder import Decoder

_WRITERS: Final = words("pop mov movabs add sub")
_ENDS: Final = (Flow.JUMP, Flow.JUMP_INDIRECT, Flow.RETURN, Flow.STOP)
_WORD_SIZE: Final = 8
#: In place of an instruction's text, bytes that are no instruction, after the flow has ended.
_NO_CODE: Final = "number"
#: Steps of a return that only pops what it jumps to, or has that in a register.
_RETURN_STEPS: Final = 2
#: Frames with which an instruction is reached at most: more are those of a loop that pushes.
_MAX_FRAMES: Final = 4


class StubFrame(NamedTuple):
    """CFA = SP + `depth`; RA is saved at CFA + `ra_offset` (None: it is where it was at entry). Both count bytes."""

    depth: int
    ra_offset: int | None = None


class Problem(NamedTuple):
    """Why an instruction has no frame, and what tells about it."""

    reason: StubReason
    detail: str = ""


class StubInstruction(NamedTuple):
    """An instruction: its size in bytes, its text, and its effect (None: stubs have no such thing)."""

    size: int
    text: str
    effect: Effect | None = None

    @property
    def is_filler(self) -> bool:
        """Whether it only fills space, is a trap that does so, or is the number after an s390x stub."""
        if self.effect is None:
            return self.text == _NO_CODE
        return self.effect.is_padding or self.effect.flow is Flow.STOP

    @property
    def ends_flow(self) -> bool:
        """Whether control does not get to the next instruction."""
        return self.effect is not None and self.effect.flow in _ENDS


class Stubs:
    """The instructions of all stubs of a file by their addresses, and their frames.

    `entries` are the addresses where a stub, or a second half of one, may begin, without those that stubs jump to or
    call: a loop's start is none where nothing else leads there.
    """

    def __init__(self, decoder: Decoder, ranges: Iterable[tuple[int, int]]) -> None:
        self.decoder = decoder
        self.entry = StubFrame(decoder.abi.arch.entry_cfa_offset)
        by_range = [dict(decoded(decoder, start, end)) for start, end in ranges]
        self.instructions = {vaddr: found for inside in by_range for vaddr, found in inside.items()}
        self._targets = {
            found.effect.target
            for vaddr, found in self.instructions.items()
            if found.effect is not None and found.effect.target in self.instructions and found.effect.target != vaddr
        }
        self.entries = {vaddr for inside in by_range for vaddr in _leaders_of(inside)} - self._targets
        lone = {vaddr for inside in by_range if self._is_lone(inside) for vaddr in inside}
        self.frames = self._follow(self.entries - lone)

    def _is_lone(self, inside: dict[int, StubInstruction]) -> bool:
        """Whether a first block is all that there is in a range, and nothing enters it: it is left to its CFI."""
        effects = [each.effect for each in inside.values() if each.effect is not None and not each.is_filler]
        sp = self.decoder.abi.arch.sp_register
        pushes = any(step.op is Op.MOVE and step.register == sp for effect in effects for step in effect.steps)
        return pushes and sum(effect.flow in _ENDS for effect in effects) == 1 and self._targets.isdisjoint(inside)

    def _follow(self, entries: Iterable[int]) -> dict[int, StubFrame | Problem]:
        """Let all frames reach each instruction; an instruction has one where only that does."""
        reached: dict[int, set[StubFrame]] = {}
        frames: dict[int, StubFrame | Problem] = {}
        work = [(vaddr, self.entry) for vaddr in sorted(entries)]
        while work:
            vaddr, frame = work.pop()
            found, known = self.instructions.get(vaddr), reached.setdefault(vaddr, set())
            if found is None or frame in known or len(known) > _MAX_FRAMES:
                continue
            known.add(frame)
            after = self._after(found, frame)
            if isinstance(after, Problem) or found.effect is None:
                frames[vaddr] = after
                continue
            flow, target = found.effect.flow, found.effect.target
            if target is not None:
                work.append((target, after._replace(depth=after.depth + _WORD_SIZE) if flow is Flow.CALL else after))
            if flow is Flow.NEXT:
                work.append((vaddr + found.size, after))
        for vaddr, known in reached.items():
            if len(known) == 1:
                frames.setdefault(vaddr, *known)
            else:
                depths = " or ".join(str(depth) for depth in sorted(frame.depth for frame in known))
                frames.setdefault(vaddr, Problem(StubReason.DEPTH_CONFLICT, f"CFA is SP plus {depths}"))
        return frames

    def _after(self, found: StubInstruction, frame: StubFrame) -> StubFrame | Problem:
        """Return the frame after an instruction.

        A stub moves SP by words, saves the RA in what it pushes, and leaves FP alone. It stores nothing where a
        caller's frame may be.
        """
        abi, effect = self.decoder.abi, found.effect
        sp, entry_depth = abi.arch.sp_register, self.entry.depth
        unknown = Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
        if effect is None or (effect.flow is Flow.CALL and effect.target not in self.instructions):
            return unknown
        depth, ra_offset = frame
        # A return pops what it jumps to.
        for step in effect.steps if effect.flow is not Flow.RETURN else ():
            if step.op is Op.STORE:
                # Counted from SP at the entry.
                start = entry_depth - depth + step.offset
                if step.register != sp or not (start <= -step.size or 0 <= start <= abi.callee_area - step.size):
                    return unknown
                if step.source == abi.arch.ra_register:
                    ra_offset = start - entry_depth
            elif step.op is Op.MOVE and step.register == step.source == sp:
                depth -= step.offset
            elif step.register in (sp, abi.arch.fp_register, abi.arch.ra_register):
                return unknown
        if depth < entry_depth:
            return Problem(StubReason.UNBALANCED, found.text)
        return unknown if depth % _WORD_SIZE else StubFrame(depth, ra_offset)

    def at_each_byte(self, start: int, end: int) -> list[StubFrame | Problem]:
        """Return the frame at each byte of a range of stubs."""
        frames: list[StubFrame | Problem] = []
        frame: StubFrame | Problem = Problem(StubReason.ENTRY_UNKNOWN, "a first block")
        while start < end:
            found = self.instructions[start]
            frame = self.frames.get(start, frame)
            if found.effect is None and not found.is_filler:
                frame = Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
            frames += [frame] * found.size
            start += found.size
        return frames


def decoded(decoder: Decoder, vaddr: int, end: int) -> Iterator[tuple[int, StubInstruction]]:
    """Decode a range from end to end."""
    literal_size, has_ended = decoder.abi.stubs.literal_size, False
    while vaddr < end:
        size = decoder.abi.arch.instruction_alignment
        for at, length, name, operands in decoder.disassemble(vaddr, end):
            found = _understood(decoder, at, length, name, operands)
            yield at, found
            vaddr, has_ended = at + length, found.ends_flow
            if literal_size and found.effect is not None and found.effect.flow is Flow.JUMP:
                # The number may look like an instruction.
                size = literal_size
                break
        if vaddr < end:
            yield vaddr, StubInstruction(min(size, end - vaddr), _NO_CODE if has_ended else "no instruction")
            vaddr += size


def _understood(decoder: Decoder, vaddr: int, size: int, name: str, operands: str) -> StubInstruction:
    """Return an instruction, with its effect where stubs have such a one."""
    bare, target = name.removeprefix("bnd ").removeprefix("notrack "), operands.partition(",")[0]
    # The only word in memory that stubs of AMD64 write to.
    is_other_word = "[" in target and bare in _WRITERS and target != "qword ptr [rsp]"
    is_known = bare in decoder.abi.stubs.names and not is_other_word
    effect = decoder.effect_of(vaddr, size, name, operands) if is_known else None
    if effect is not None:
        is_direct = effect.flow in (*_ENDS, Flow.NEXT) or (effect.flow is Flow.CALL and effect.target is not None)
        is_plain = effect.flow is not Flow.RETURN or len(effect.steps) <= _RETURN_STEPS
        effect = effect if is_direct and is_plain else None
    return StubInstruction(size, f"{name} {operands}".strip(), effect)


def _leaders_of(inside: dict[int, StubInstruction]) -> Iterator[int]:
    """Yield the start of a range, and what follows the ends of the flow in it, both without what fills space."""
    is_leader = True
    for vaddr, found in inside.items():
        if is_leader and not found.is_filler and found.effect is not None:
            yield vaddr
        is_leader = found.ends_flow or (is_leader and found.is_filler)
