# SPDX-License-Identifier: Apache-2.0
"""Proofs from the bytes of code alone: the frames of PLT stubs, and padding.

Stubs are executed, instruction by instruction, from where code outside enters them. Only the few instructions that
linkers publish for them are known. After any other, the frame is unknown up to where code outside enters again.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import add, itemgetter
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants.elf import EM_AARCH64, EM_S390, EM_X86_64, SHT_NOBITS
from cfi2sframe.constants.sframe import SFRAME_VERSION_1
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.range_map import ADDRESS_END, Span, without
from cfi2sframe.sframe.model import FrameState, Rule, Section

_PLT_NAMES: Final = (".plt", ".iplt")
#: Padding up to the next function has fewer zeros than this, and padding between stubs fewer bytes of any kind.
_MOST_FILL: Final = 64
#: The most frames with which an instruction is executed: a loop that pushes has no end.
_MAX_FRAMES: Final = 4
#: Registers of AArch64 that are neither FP, RA nor SP, as the lowest byte of an instruction that writes one.
_OTHER: Final = rb"[\x00-\x1c\x20-\x3c\x40-\x5c\x60-\x7c\x80-\x9c\xa0-\xbc\xc0-\xdc\xe0-\xfc]"
#: Registers but RA, as the second byte of an STP to the stack that stores one second.
_SECOND: Final = b"[" + re.escape(bytes(register << 2 | 3 for register in range(30))) + b"]"


class _CodeForms(NamedTuple):
    """Instructions of an ABI: a pattern of padding, and one of the instructions of stubs, whose groups are effects.

    `more` leaves the frame as it is; `push`, `pair` and `save` push a word, two words, and a word below the RA; `leave`
    jumps through memory or a register, and `back` returns; `jump` and `call` lead to a target at the distance `t`, in
    units of `unit` bytes, from the start of the instruction or, with `counts_from_end`, its end. A number of `literal`
    bytes follows a jump. `trap` fills stubs, and may be code elsewhere, as `zeros`, of an instruction's alignment, may.
    `other` is an unknown instruction: where nothing tells its size, all that follows.
    """

    fill: bytes
    stub: bytes
    other: bytes = b".+"
    unit: int = 1
    counts_from_end: bool = False
    literal: int = 0
    trap: bytes = b""
    zeros: bytes = rb"\x00"


_FORMS: Final = {
    EM_X86_64: _CodeForms(
        # int3, and the nops of 1 to 15 bytes of the vendors' manuals
        rb"\xcc|[\x66\x2e]{0,13}(?:\x90|\x0f\x1f(?:\x00|\x40.|\x44\x00.|\x80.{4}|\x84\x00.{4}))",
        # endbr64, mov to r11 (immediate, from memory), mov r11, (rsp), pause, lfence
        rb"(?P<more>\xf3\x0f\x1e\xfa|\x41\xbb.{4}|\x49\xc7\xc3.{4}|\x4c\x8b\x1d.{4}|\x4c\x89\x1c\x24|\xf3\x90|\x0f\xae\xe8)"
        # push of memory, a number, r11; jmp of memory and r11, ret; jmp and call
        rb"|(?P<push>\xff\x35.{4}|\x68.{4}|\x41\x53)|(?P<leave>\xf2?\xff\x25.{4}|\x41\xff\xe3)|(?P<back>\xc3)"
        rb"|(?P<jump>\xf2?\xe9(?P<t>.{4})|\xeb(?P<t1>.))|(?P<call>\xe8(?P<t2>.{4}))",
        counts_from_end=True,
    ),
    EM_AARCH64: _CodeForms(
        rb"\x1f\x20\x03\xd5|[\x00\x20]\x00\x20\xd4",
        # adrp, ldr, add; bti, autia1716 and autib1716
        rb"(?P<more>" + _OTHER + rb"(?:..[\x90\xb0\xd0\xf0]|.[\x40-\x7f]\xf9|..\x91)|[\x1f\x5f\x9f\xdf]\x24\x03\xd5"
        rb"|[\x9f\xdf]\x21\x03\xd5)"
        # stp, [sp, #-16]!, of a register and x30, of two others; br, braa, brab; b
        rb"|(?P<save>[\xe0-\xfd]\x7b\xbf\xa9)|(?P<pair>[\xe0-\xfd]" + _SECOND + rb"\xbf\xa9)"
        rb"|(?P<leave>.[\x00-\x03]\x1f\xd6|.[\x08-\x0f]\x1f\xd7)"
        rb"|(?P<jump>(?P<t>...)[\x14\x17])",
        other=rb".{4}|.+",
        unit=4,
        trap=rb"|\x00\x7d\x20\xd4",
        zeros=rb"\x00{4}",
    ),
    EM_S390: _CodeForms(
        rb"\x07[\x00-\x0f]|\x47[\x00-\x0f]..|\xa7\x04..|\xc0\x04.{4}",
        # larl, lgfi; lg, lgf, stg, ly; mvc to the frame; basr; sums, differences and shifts; all of r0 and r1
        rb"(?P<more>\xc0[\x00\x01\x10\x11].{4}|\xe3[\x00\x10].{3}[\x04\x14\x24\x58]|\xd2\x07\xf0\x30..|\x0d[\x00\x10]|\x58\x10.."
        rb"|\xb9[\x04\x08\x09\x0b]\x00[\x00\x01\x10\x11]|\xeb[\x00\x01\x10\x11].{3}[\x0c\x0d]|\xa7[\x0b\x1b]..)"
        rb"|(?P<leave>\x07\xf1|\x0d\x01)|(?P<jump>\xc0\xf4(?P<t>.{4})|\xa7\xf4(?P<t1>..))",
        other=rb"[\x00-\x3f].|[\x40-\xbf].{3}|[\xc0-\xff].{5}|.+",
        unit=2,
        literal=4,
        zeros=rb"\x00\x00",
    ),
}


class _Instruction(NamedTuple):
    """An instruction of a stub: its effect, its end, and its target."""

    effect: str
    end: int
    target: int | None = None

    @property
    def ends_flow(self) -> bool:
        """True if control does not reach the next instruction."""
        return self.effect in ("leave", "back", "jump")


class _Frame(NamedTuple):
    """Bytes that a stub has pushed, and whether the RA is among them."""

    depth: int
    saves_ra: bool = False


#: The state after an unknown instruction.
_UNKNOWN: Final = FrameState(None)
_PUSHES: Final = {"push": _Frame(8), "call": _Frame(8), "pair": _Frame(16), "save": _Frame(16, saves_ra=True)}


class StubRows(NamedTuple):
    """The state in force at `[start, end)`; None: unknown. `is_due`: rows have to be there."""

    start: int
    end: int
    state: FrameState | None
    is_due: bool


def padding_ends(image: ElfImage, ends: Sequence[int], limits: Sequence[int]) -> dict[int, int]:
    """Return the end of the padding that begins at an end of code, by that address; none where no padding begins.

    `ends` ascend; padding ends at their limits at the latest.
    """
    forms = _FORMS[image.arch.elf_machine]
    nops, any_fill = b"(?=((?:" + forms.fill + b")*+))", b"(?:" + forms.fill + b"|" + forms.zeros + b")++"
    match = re.compile(nops + any_fill, re.DOTALL).match
    # Most padding has the bytes of other padding.
    size_of_gap: dict[bytes, int] = {}
    ends_by_start: dict[int, int] = {}
    for code in image.code_ranges:
        first, last = bisect_left(ends, code.start_vaddr), bisect_left(ends, code.end_vaddr)
        content = image.code_bytes(code, code.start_vaddr, code.end_vaddr) if first < last else b""
        # A header may give a section more bytes than any file has.
        code_end = code.start_vaddr + len(content)
        last = bisect_left(ends, code_end, first, last)
        for end, limit in zip(ends[first:last], limits[first:last], strict=True):
            begin, stop = end - code.start_vaddr, min(limit, code_end) - code.start_vaddr
            gap = content[begin : min(stop, begin + _MOST_FILL)]
            if gap in size_of_gap:
                ends_by_start[end] = end + size_of_gap[gap]
                continue
            # Gold begins with a jump over the rest.
            size = (
                int.from_bytes(content[begin + 1 : begin + 5], "little") if content[begin : begin + 1] == b"\xe9" else 0
            )
            skips = 5 if 0 < size == stop - begin - 5 and image.arch.elf_machine == EM_X86_64 else 0
            filled = match(content, begin + skips, stop)
            filled_end, nops_end = (begin, begin) if filled is None else (filled.end(), filled.end(1))
            # Zeros may be data, or code: they are padding where there are few of them, up to what follows.
            if nops_end < filled_end and (filled_end < stop or filled_end - nops_end >= _MOST_FILL):
                filled_end = nops_end
            if filled_end > begin:
                ends_by_start[end] = filled_end + code.start_vaddr
                if stop - begin < _MOST_FILL:
                    size_of_gap[gap] = filled_end - begin
    return ends_by_start


def stub_rows(image: ElfImage, section: Section, held: Iterable[tuple[int, int]]) -> list[StubRows]:
    """Return the states in force in the stubs of a linked file, ascending.

    Sections with their names have stubs. So has a range that the SFrame section describes, and that no FDE, and no
    padding after one, has `held`, if it has only instructions of stubs. Rows are due where all of a range is known; in
    version 1, that has no block size, only where all of it has one state.
    """
    places: list[dict[int, _Instruction]] = []
    for start, code, is_named in _places(image, section, held):
        decoded = dict(_decoded(image.arch, start, code))
        effects = {instruction.effect for instruction in decoded.values()}
        if is_named or ("other" not in effects and not effects.isdisjoint(("leave", "call"))):
            places.append(decoded)
    instructions = {vaddr: instruction for inside in places for vaddr, instruction in inside.items()}
    targets = {instruction.target for vaddr, instruction in instructions.items() if instruction.target != vaddr}
    entries = {vaddr for inside in places for vaddr in _entries(inside, targets)}
    frames = _followed(instructions, entries - targets)
    rows: list[StubRows] = []
    for inside in places:
        runs = [list(run) for _, run in groupby(_states(image.arch, inside, frames), key=itemgetter(2))]
        is_known = all(instruction.effect != "other" for instruction in inside.values())
        is_due = is_known and (section.version > SFRAME_VERSION_1 or len(runs) == 1)
        spans = [(run[0][0], run[-1][1], run[0][2]) for run in runs]
        rows += [
            StubRows(start, end, None if state is _UNKNOWN else state, is_due) for start, end, state in spans if state
        ]
    return rows


def _places(image: ElfImage, section: Section, held: Iterable[tuple[int, int]]) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the addresses and bytes of ranges that may be stubs, ascending, and whether their section is a PLT."""
    named = [
        Span(plt.vaddr, min(plt.end_vaddr, ADDRESS_END))
        for plt in image.sections
        if plt.is_code and plt.type != SHT_NOBITS and plt.name.startswith(_PLT_NAMES)
    ]
    ordered = section.ascending
    described = zip(ordered.starts, map(add, ordered.starts, ordered.sizes), strict=True)
    spans = [*named, *without(described, [*held, *named])]
    end = total = 0
    for start, following in sorted(spans):
        total += following - start
        # In a file smaller than its sections, these share bytes.
        if start < end or total > len(image.data):
            continue
        end = following
        part = image.code_range_of(start)
        code = image.code_bytes(part, start, min(end, part.end_vaddr)) if part is not None else b""
        if code:
            yield start, code, Span(start, following) in named


def _decoded(arch: Arch, vaddr: int, code: bytes) -> Iterator[tuple[int, _Instruction]]:
    """Yield the instructions of stubs from an address on, up to bytes that are no instruction."""
    forms = _FORMS[arch.elf_machine]
    fill = b"(?P<fill>(?:" + forms.fill + b"|" + forms.zeros + forms.trap + b")++)|"
    match = re.compile(fill + forms.stub + b"|(?P<other>" + forms.other + b")", re.DOTALL).match
    order = arch.instruction_order
    at = 0
    while (matched := match(code, at)) is not None:
        start, at = at, matched.end()
        effect, target = matched.lastgroup or "", None
        if effect in ("jump", "call"):
            distance = next(text for text in matched.groups()[matched.lastindex or 0 :] if text is not None)
            base = at if forms.counts_from_end else start
            target = vaddr + base + forms.unit * int.from_bytes(distance, order, signed=True)
            # GNU ld leaves the jumps to PLT0 without a distance where a static program has none.
            target = None if effect == "jump" and target == vaddr + at else target
        yield vaddr + start, _Instruction(effect, vaddr + at, target)
        if effect == "jump" and forms.literal:
            yield vaddr + at, _Instruction("fill", vaddr + at + forms.literal)
            at += forms.literal


def _entries(inside: dict[int, _Instruction], targets: set[int | None]) -> Iterator[int]:
    """Yield where code outside may enter a range: at its start, and after each end of the flow and its padding."""
    end_count = sum(instruction.ends_flow for instruction in inside.values())
    has_push = any(instruction.effect in _PUSHES for instruction in inside.values())
    if end_count == 1 and has_push and targets.isdisjoint(inside):
        # A first block without stubs: nothing tells who enters it.
        return
    may_begin = True
    for vaddr, instruction in inside.items():
        if may_begin and instruction.effect != "fill":
            yield vaddr
        may_begin = instruction.ends_flow or (may_begin and instruction.effect == "fill")


def _followed(instructions: dict[int, _Instruction], entries: set[int]) -> dict[int, set[_Frame]]:
    """Return the frames with which each instruction is reached."""
    frames: dict[int, set[_Frame]] = {}
    work = [(vaddr, _Frame(0)) for vaddr in sorted(entries)]
    while work:
        vaddr, frame = work.pop()
        instruction, frames_here = instructions.get(vaddr), frames.setdefault(vaddr, set())
        if instruction is None or frame in frames_here or len(frames_here) > _MAX_FRAMES:
            continue
        frames_here.add(frame)
        pushed = _PUSHES.get(instruction.effect, _Frame(0))
        after = _Frame(frame.depth + pushed.depth, frame.saves_ra or pushed.saves_ra)
        if instruction.target is not None:
            work.append((instruction.target, after))
        if not instruction.ends_flow and instruction.effect not in ("call", "other"):
            work.append((instruction.end, after))
    return frames


def _states(
    arch: Arch, inside: dict[int, _Instruction], frames: dict[int, set[_Frame]]
) -> Iterator[tuple[int, int, FrameState | None]]:
    """Yield the state at each instruction of a range; None where several frames reach it, or none is known to.

    What is never executed has the state of what is before it; after `_MOST_FILL` bytes of padding it is `_UNKNOWN`.
    """
    state: FrameState | None = None
    for vaddr, instruction in inside.items():
        reached = frames.get(vaddr)
        if instruction.effect == "other" or (instruction.effect == "fill" and instruction.end - vaddr >= _MOST_FILL):
            state = _UNKNOWN
        elif reached is not None:
            frame = next(iter(reached))
            cfa = Rule(arch.sp_register, arch.entry_cfa_offset + frame.depth, deref=False)
            has_ra = arch.fixed_ra_offset or frame.saves_ra
            state = FrameState(cfa, Rule(None, -8, deref=True) if has_ra else None) if len(reached) == 1 else None
        yield vaddr, instruction.end, state
