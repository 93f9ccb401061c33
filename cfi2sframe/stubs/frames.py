# SPDX-License-Identifier: Apache-2.0
"""The frame at each instruction of PLT stubs, by following the flow from their entries.

Code outside enters at the start of a stub and after each end of the flow (the second half of a lazy stub, whose address
is in its GOT slot), as it enters a function. What other stubs jump to or call is entered by them alone. What no flow
reaches (padding, the loop after a call that does not return) is never executed, and has the frame of what is before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.instructions.effects import Effect, Flow, Op, words
from cfi2sframe.stubs.records import StubReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.instructions.decoder import Decoder
    from cfi2sframe.instructions.effects import Abi

_WRITERS: Final = words("pop mov movabs add sub")
_ENDS: Final = (Flow.JUMP, Flow.JUMP_INDIRECT, Flow.RETURN, Flow.STOP)
_NUMBER: Final = re.compile(r"(?:- )?\b(?:0x[0-9a-f]+|\d+)\b")
_WORD_SIZE: Final = 8
#: In place of an instruction's text, a number after the last jump.
_LITERAL: Final = "number"
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
    """An instruction: its size, its text, its effect (None: stubs have no such thing), and what it does to the frame.

    It pushes `pushed` bytes, saves the RA at SP + `ra_at` after that (None: it does not), and may overwrite the word at
    the top of the stack.
    """

    size: int
    text: str
    effect: Effect | None = None
    pushed: int = 0
    ra_at: int | None = None
    overwrites_top: bool = False

    @property
    def is_filler(self) -> bool:
        """Whether it only fills space, or is the number after an s390x stub."""
        return self.text == _LITERAL if self.effect is None else self.effect.is_padding

    @property
    def ends_flow(self) -> bool:
        """Whether control does not get to the next instruction."""
        return self.effect is not None and self.effect.flow in _ENDS


class Stubs:
    """The instructions of all stubs of a file by their addresses, and their frames.

    `leaders` are the addresses where a stub, or a second half of one, may begin; `targets` those that stubs jump to or
    call: a loop's start is none where nothing else leads there.
    """

    def __init__(self, decoder: Decoder, ranges: Iterable[tuple[int, int]]) -> None:
        self.decoder = decoder
        self.entry = StubFrame(decoder.abi.arch.entry_cfa_offset)
        by_range = [dict(self._decoded(start, end)) for start, end in ranges]
        self.instructions = {vaddr: found for inside in by_range for vaddr, found in inside.items()}
        self.leaders = {vaddr for inside in by_range for vaddr in _leaders_of(inside)}
        self.targets = {
            found.effect.target
            for vaddr, found in self.instructions.items()
            if found.effect is not None and found.effect.target in self.instructions and found.effect.target != vaddr
        }
        lone = {vaddr for inside in by_range if self._is_lone(inside) for vaddr in inside}
        self.frames = self._follow([vaddr for vaddr in self._entries() if vaddr not in lone])

    def _decoded(self, vaddr: int, end: int) -> Iterator[tuple[int, StubInstruction]]:
        """Decode a range from end to end."""
        abi = self.decoder.abi
        while vaddr < end:
            text = "no instruction"
            for at, size, name, operands in self.decoder.disassemble(vaddr, end):
                found = understand(self.decoder, at, size, name, operands)
                yield at, found
                vaddr = at + size
                if abi.stubs.literal_size and found.effect is not None and found.effect.flow is Flow.JUMP:
                    text = _LITERAL
                    break
            if vaddr < end:
                size = min(abi.stubs.literal_size or abi.arch.instruction_alignment, end - vaddr)
                yield vaddr, StubInstruction(size, text)
                vaddr += size

    def _is_lone(self, inside: dict[int, StubInstruction]) -> bool:
        """Whether a first block is all that there is in a range, and nothing enters it: it is left to its CFI."""
        block = [found for found in inside.values() if not found.is_filler]
        ends = sum(found.ends_flow for found in block)
        return self.targets.isdisjoint(inside) and ends == 1 and any(found.pushed for found in block)

    def _entries(self) -> list[int]:
        """Return where code outside may enter: not where stubs jump to, unless others are like that."""
        others = {self._text_from(vaddr) for vaddr in self.leaders - self.targets}
        return sorted(v for v in self.leaders if v not in self.targets or self._text_from(v) in others)

    def _text_from(self, vaddr: int) -> tuple[str, ...]:
        """Return the instructions from an address up to an end of the flow, without their numbers."""
        texts: list[str] = []
        while (found := self.instructions.get(vaddr)) is not None:
            texts.append(_NUMBER.sub("", found.text))
            if found.ends_flow:
                break
            vaddr += found.size
        return tuple(texts)

    def _follow(self, entries: list[int]) -> dict[int, StubFrame | Problem]:
        """Let all frames reach each instruction; an instruction has one where only that does."""
        reached: dict[int, set[StubFrame]] = {}
        frames: dict[int, StubFrame | Problem] = {}
        work = [(vaddr, self.entry) for vaddr in entries]
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
        """Return the frame after an instruction."""
        effect = found.effect
        if effect is None or (effect.flow is Flow.CALL and effect.target not in self.instructions):
            return Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
        depth = frame.depth + found.pushed
        if depth < self.entry.depth or (found.overwrites_top and frame.depth == self.entry.depth):
            return Problem(StubReason.UNBALANCED, found.text)
        return StubFrame(depth, frame.ra_offset if found.ra_at is None else found.ra_at - depth)

    def at_each_byte(self, start: int, end: int) -> list[tuple[StubFrame | Problem, str]]:
        """Return the frame at each byte of a range of stubs, and the mnemonic of the instruction that begins there."""
        found: list[tuple[StubFrame | Problem, str]] = []
        frame: StubFrame | Problem = Problem(StubReason.ENTRY_UNKNOWN, "a first block")
        while start < end:
            each = self.instructions[start]
            frame = self.frames.get(start, frame)
            if each.effect is None and not each.is_filler:
                frame = Problem(StubReason.UNKNOWN_INSTRUCTION, each.text)
            name = "" if each.effect is None else each.text.partition(" ")[0]
            found += [(frame, name), *[(frame, "")] * (each.size - 1)]
            start += each.size
        return found


def _leaders_of(inside: dict[int, StubInstruction]) -> Iterator[int]:
    """Yield the start of a range, and what follows the ends of the flow in it, both without what fills space."""
    is_leader = True
    for vaddr, found in inside.items():
        if is_leader and not found.is_filler and found.effect is not None:
            yield vaddr
        is_leader = found.ends_flow or (is_leader and found.is_filler)


def understand(decoder: Decoder, vaddr: int, size: int, name: str, operands: str) -> StubInstruction:
    """Return what an instruction does to a stub's frame."""
    bare, target = name.removeprefix("bnd ").removeprefix("notrack "), operands.partition(",")[0]
    # The only word in memory that stubs of AMD64 write to.
    is_other_word = "[" in target and bare in _WRITERS and target != "qword ptr [rsp]"
    is_known = bare in decoder.abi.stubs.names and not is_other_word
    effect = decoder.effect_of(vaddr, size, name, operands) if is_known else None
    found = None if effect is None else _moves(effect, decoder.abi)
    text = f"{name} {operands}".strip()
    return StubInstruction(size, text) if found is None else StubInstruction(size, text, effect, *found)


def _moves(effect: Effect, abi: Abi) -> tuple[int, int | None, bool] | None:
    """Return what an effect does to a stub's frame, as the last fields of `StubInstruction`; None: what none does.

    A stub moves SP by words, saves the RA in what it pushes, and leaves FP alone. It stores nothing where a caller's
    frame may be.
    """
    if effect.flow is Flow.CALL and effect.target is None:
        return None
    if effect.flow not in (*_ENDS, Flow.NEXT, Flow.CALL):
        return None
    if effect.flow is Flow.RETURN and len(effect.steps) > _RETURN_STEPS:
        return None
    pushed = 0
    stores = []
    # A return pops what it jumps to.
    steps = effect.steps if effect.flow is not Flow.RETURN else ()
    for step in steps:
        if step.op is Op.STORE:
            if step.register != abi.arch.sp_register:
                return None
            # From where SP was before.
            stores.append((step.offset - pushed, step.size, step.source))
        elif step.op is Op.MOVE and step.register == step.source == abi.arch.sp_register:
            pushed -= step.offset
        elif step.register in (abi.arch.sp_register, abi.arch.fp_register, abi.arch.ra_register):
            return None
    ra_at: int | None = None
    overwrites_top = False
    for offset, size, source in stores:
        if -pushed <= offset <= -size:
            ra_at = offset + pushed if source == abi.arch.ra_register else ra_at
        elif offset == pushed == 0 and size == _WORD_SIZE and not abi.callee_area:
            overwrites_top = True
        elif not 0 <= offset <= abi.callee_area - size:
            return None
    return None if pushed % _WORD_SIZE else (pushed, ra_at, overwrites_top)
