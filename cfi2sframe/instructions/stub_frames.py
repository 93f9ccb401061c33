# SPDX-License-Identifier: Apache-2.0
"""The frame at each instruction of PLT stubs, by following the flow from their entries.

Code outside enters at the start of a stub and after each end of the flow (the second half of a lazy stub, whose address
is in its GOT slot), as it enters a function. What other stubs jump to or call is entered by them alone. What no flow
reaches (padding, the loop after a call that does not return) is never executed, and has the frame of what is before it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.instructions.effects import Effect, Flow, Op, words
from cfi2sframe.instructions.stub_records import StubReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.abi import Arch
    from cfi2sframe.instructions.decoder import Decoder
    from cfi2sframe.instructions.effects import Abi

#: The instructions that stubs have.
_NAMES: Final = {
    EM_X86_64: words("endbr64 pause lfence nop int3 hlt ud2 jmp call ret push pop mov movabs add sub"),
    EM_AARCH64: words("nop autia1716 autib1716 bti hint br b stp adr adrp ldr add"),
    EM_S390: words("larl lgfi jg brcl bcr bc nop nopr br basr lg lgf stg mvc"),
}
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
#: The size of bytes that are no instruction, such as the number after the direct jump of an s390x stub.
_LITERAL_SIZES: Final = {EM_X86_64: 1, EM_AARCH64: 4, EM_S390: 4}


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

    `leaders` are the addresses where a stub, or a second half of one, may begin.
    """

    def __init__(self, arch: Arch, decoder: Decoder, ranges: Iterable[tuple[int, int]]) -> None:
        self.arch = arch
        self.decoder = decoder
        self.entry = StubFrame(-arch.fixed_ra_offset - arch.sp_offset_from_cfa)
        self.instructions: dict[int, StubInstruction] = {}
        self.leaders: set[int] = set()
        self.frames: dict[int, StubFrame | Problem] = {}
        ranges = list(ranges)
        for start, end in ranges:
            self._read(start, end)
        self.targets = self._targets()
        self._follow([range(start, end) for start, end in ranges])

    def _read(self, start: int, end: int) -> None:
        """Decode a range from end to end."""
        vaddr, is_leader, has_literal = start, True, False
        while vaddr < end:
            for at, size, name, operands in () if has_literal else self.decoder.disassemble(vaddr, end):
                found = understand(self.arch, self.decoder, at, size, name, operands)
                is_leader = self._add(at, found, is_leader=is_leader)
                vaddr = at + size
                has_literal = self.arch.elf_machine == EM_S390 and _is_direct(found)
                if has_literal:
                    break
            if vaddr < end:
                size = min(_LITERAL_SIZES[self.arch.elf_machine], end - vaddr)
                found = StubInstruction(size, _LITERAL if has_literal else "no instruction")
                is_leader = self._add(vaddr, found, is_leader=is_leader)
                vaddr += size
            has_literal = False

    def _add(self, vaddr: int, found: StubInstruction, *, is_leader: bool) -> bool:
        """Add an instruction; return whether the next one follows an end of the flow."""
        self.instructions[vaddr] = found
        if is_leader and not found.is_filler and found.effect is not None:
            self.leaders.add(vaddr)
        return found.ends_flow or (is_leader and found.is_filler)

    def _targets(self) -> set[int]:
        """Return the addresses that stubs jump to or call; a loop's start is none where nothing else leads there."""
        return {
            found.effect.target
            for vaddr, found in self.instructions.items()
            if found.effect is not None and found.effect.target in self.instructions and found.effect.target != vaddr
        }

    def _follow(self, ranges: list[range]) -> None:
        """Let all frames reach each instruction; an instruction has one where only that does."""
        reached: dict[int, set[StubFrame]] = {}
        lone = [each for each in ranges if self._is_lone(each)]
        work = [(v, self.entry) for v in self._entries() if not any(v in each for each in lone)]
        while work:
            vaddr, frame = work.pop()
            found = self.instructions.get(vaddr)
            known = reached.setdefault(vaddr, set())
            if found is None or frame in known or len(known) > _MAX_FRAMES:
                continue
            known.add(frame)
            after = self._after(found, frame)
            if isinstance(after, Problem) or found.effect is None:
                self.frames[vaddr] = after
                continue
            flow, target = found.effect.flow, found.effect.target
            if target is not None:
                work.append((target, after._replace(depth=after.depth + _WORD_SIZE) if flow is Flow.CALL else after))
            if flow is Flow.NEXT:
                work.append((vaddr + found.size, after))
        for vaddr, frames in reached.items():
            if len(frames) == 1 and vaddr in self.instructions:
                self.frames.setdefault(vaddr, *frames)
            elif frames:
                depths = " or ".join(str(frame.depth) for frame in sorted(frames, key=lambda frame: frame.depth))
                self.frames.setdefault(vaddr, Problem(StubReason.DEPTH_CONFLICT, f"CFA is SP plus {depths}"))

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

    def _is_lone(self, whole: range) -> bool:
        """Whether a first block is all that there is in a range, and nothing enters it: it is left to its CFI."""
        inside: list[StubInstruction] = []
        vaddr = whole.start
        while vaddr < whole.stop:
            found = self.instructions[vaddr]
            if vaddr in self.targets:
                return False
            if not found.is_filler:
                inside.append(found)
            vaddr += found.size
        return sum(found.ends_flow for found in inside) == 1 and any(found.pushed for found in inside)

    def _after(self, found: StubInstruction, frame: StubFrame) -> StubFrame | Problem:
        """Return the frame after an instruction."""
        if found.effect is None:
            return Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
        if found.effect.flow is Flow.CALL and found.effect.target not in self.instructions:
            return Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
        depth = frame.depth + found.pushed
        if depth < self.entry.depth or (found.overwrites_top and frame.depth == self.entry.depth):
            return Problem(StubReason.UNBALANCED, found.text)
        return StubFrame(depth, frame.ra_offset if found.ra_at is None else found.ra_at - depth)

    def names_at_each_byte(self, start: int, end: int) -> tuple[str, ...]:
        """Return the mnemonic of the instruction that begins at each byte of a range of stubs, if one does."""
        found = (self.instructions.get(vaddr) for vaddr in range(start, end))
        return tuple("" if each is None or each.effect is None else each.text.partition(" ")[0] for each in found)

    def at_each_byte(self, start: int, end: int) -> list[StubFrame | Problem]:
        """Return the frame at each byte of a range of stubs."""
        frames: list[StubFrame | Problem] = []
        last: StubFrame | Problem = Problem(StubReason.ENTRY_UNKNOWN, "a first block")
        vaddr = start
        while vaddr < end:
            found = self.instructions[vaddr]
            last = self.frames.get(vaddr, last)
            if found.effect is None and not found.is_filler:
                last = Problem(StubReason.UNKNOWN_INSTRUCTION, found.text)
            frames += [last] * found.size
            vaddr += found.size
        return frames


def _is_direct(found: StubInstruction) -> bool:
    return found.effect is not None and found.effect.flow is Flow.JUMP


def understand(arch: Arch, decoder: Decoder, vaddr: int, size: int, name: str, operands: str) -> StubInstruction:
    """Return what an instruction does to a stub's frame."""
    text = f"{name} {operands}".strip()
    bare = name.removeprefix("bnd ").removeprefix("notrack ")
    target = operands.partition(",")[0]
    is_known = bare in _NAMES[arch.elf_machine]
    if "[" in target and bare in _WRITERS and target != "qword ptr [rsp]":
        # The only word in memory that stubs of AMD64 write to.
        is_known = False
    effect = decoder.effect_of(vaddr, size, name, operands) if is_known else None
    found = None if effect is None else _moves(effect, decoder.abi)
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


def pieces_of(frames: list[StubFrame | Problem]) -> Iterator[tuple[int, list[StubFrame] | list[Problem]]]:
    """Yield the parts of some bytes, by offset, that have frames or that have none."""
    frames_here: list[StubFrame] = []
    problems: list[Problem] = []
    for offset, frame in enumerate(frames):
        if isinstance(frame, StubFrame):
            if problems:
                yield offset - len(problems), problems
                problems = []
            frames_here.append(frame)
        else:
            if frames_here:
                yield offset - len(frames_here), frames_here
                frames_here = []
            problems.append(frame)
    if frames_here or problems:
        yield len(frames) - len(frames_here) - len(problems), frames_here or problems
