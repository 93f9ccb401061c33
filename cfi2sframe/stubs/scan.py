# SPDX-License-Identifier: Apache-2.0
"""The PLT stubs of a linked file as SFrame functions: what repeats is a PCMASK function.

Instructions decide: the frame at each byte of a section, then the smallest blocks at which it repeats. Whatever CFI
linkers have for stubs is not asked, but for a first block without stubs.
"""

from __future__ import annotations

from itertools import groupby, product
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.ranges import Span
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.sframe.constants import SFRAME_VERSION_1
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule
from cfi2sframe.stubs.frames import Problem, StubFrame, Stubs
from cfi2sframe.stubs.ranges import StubRange, find_stubs
from cfi2sframe.stubs.records import StubReason, StubScan, StubSkip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.image import ElfImage

#: The most kinds of blocks, and runs of them, in one range; real stubs have fewer.
_MAX_KINDS: Final = 4
_MAX_RUNS: Final = 32


def scan_stubs(image: ElfImage, version: int) -> StubScan:
    """Describe the PLT stubs of a linked file for a version of SFrame; objects have none.

    Raises `InputError` when there are stubs and capstone cannot be loaded.
    """
    ranges, unread = find_stubs(image)
    if not ranges:
        return StubScan((), unread)
    spans = [Span(each.start_vaddr, each.end_vaddr) for each in ranges]
    stubs = Stubs(Decoder(image, spans, "PLT stubs are described"), spans)
    functions: list[Function] = []
    left_out = list(unread)
    last_name = ""
    for piece in [piece for each in ranges for piece in _pieces(stubs, each)]:
        made = _describe(image.arch, version, piece)
        if isinstance(made, StubSkip):
            left_out.append(made)
        elif piece.section_name == last_name and _continues(functions[-1], made[0]):
            functions[-1] = functions[-1]._replace(size=functions[-1].size + made[0].size)
            functions += made[1:]
        else:
            functions += made
            last_name = piece.section_name
    return StubScan(tuple(functions), tuple(sorted(left_out, key=lambda skip: skip.start_vaddr)))


class _Piece(NamedTuple):
    """A part of a range, with the frames of a block that repeats (0: none does), or the problem with it."""

    section_name: str
    start_vaddr: int
    size: int
    frames: Sequence[StubFrame] | Problem
    block_size: int = 0


class _Shape(NamedTuple):
    """A way to cut a range: sizes in bytes, and the blocks' runs of equal frames, by their numbers.

    Of two, the one with fewer unknown bytes is better, then that of smaller blocks, then that of fewer kinds.
    """

    unknown_size: int
    block_size: int
    kind_count: int
    header_size: int
    runs: tuple[int, ...]


def _pieces(stubs: Stubs, whole: StubRange) -> Iterator[_Piece]:
    """Cut a range: what is before the blocks, runs of equal blocks, what is after them."""
    cells = stubs.at_each_byte(whole.start_vaddr, whole.end_vaddr)
    frames = [frame for frame, _ in cells]
    shape = min(_shapes_of(stubs, whole, cells), key=lambda shape: shape[:3], default=None)
    if shape is None:
        yield from _plain(whole, 0, frames)
        return
    yield from _plain(whole, 0, frames[: shape.header_size])
    offset = shape.header_size
    for count in shape.runs:
        block, size = frames[offset : offset + shape.block_size], count * shape.block_size
        known = [frame for frame in block if isinstance(frame, StubFrame)]
        if len(known) < len(block) and count == 1:
            yield from _plain(whole, offset, block)
        else:
            problem = next((frame for frame in block if isinstance(frame, Problem)), None)
            yield _Piece(whole.name, whole.start_vaddr + offset, size, problem or known, shape.block_size)
        offset += size
    yield from _plain(whole, offset, frames[offset:])


def _plain(whole: StubRange, offset: int, frames: list[StubFrame | Problem]) -> Iterator[_Piece]:
    """Yield the parts of a range of which nothing repeats, those with frames and those without."""
    for _, group in groupby(frames, lambda frame: isinstance(frame, Problem)):
        first, *others = group
        known = [frame for frame in (first, *others) if isinstance(frame, StubFrame)]
        vaddr, size = whole.start_vaddr + offset, 1 + len(others)
        yield _Piece(whole.name, vaddr, size, first if isinstance(first, Problem) else known)
        offset += size


def _shapes_of(stubs: Stubs, whole: StubRange, cells: list[tuple[StubFrame | Problem, str]]) -> Iterator[_Shape]:
    """Yield the ways to cut a range of which each byte has a frame, and a name where an instruction begins."""
    forms, size = stubs.decoder.abi.stubs, len(cells)
    leaders = {vaddr - whole.start_vaddr for vaddr in stubs.leaders if whole.start_vaddr <= vaddr < whole.end_vaddr}
    inner = {vaddr - whole.start_vaddr for vaddr in stubs.targets}
    for block_size, tail_size, header_size in product(forms.blocks, forms.tails, forms.headers):
        end = size - tail_size
        starts = range(header_size, end, block_size)
        if not starts or (end - header_size) % block_size:
            continue
        # Each block begins with an entry; what is before the blocks is one piece.
        if not leaders.issuperset(starts) or (tail_size and end not in leaders):
            continue
        if any(0 < leader < header_size and leader not in inner for leader in leaders):
            continue
        blocks = [tuple(cells[start : start + block_size]) for start in starts]
        runs = tuple(sum(1 for _ in same) for _, same in groupby(blocks))
        kind_count = len(set(blocks))
        if kind_count <= _MAX_KINDS and len(runs) <= _MAX_RUNS:
            unknown_size = sum(isinstance(frame, Problem) for frame, _ in cells[header_size:])
            yield _Shape(unknown_size, block_size, kind_count, header_size, runs)


def _describe(arch: Arch, version: int, piece: _Piece) -> tuple[Function, ...] | StubSkip:
    if isinstance(piece.frames, Problem):
        return _skip(piece, piece.frames, 0)
    start, frames, block_size = piece.start_vaddr, tuple(piece.frames), piece.block_size
    body = _body(arch, frames)
    if not block_size:
        return (Function(start, piece.size, body),)
    if version == SFRAME_VERSION_1:
        wrong = first_wrong_mask(body.starts, start, block_size)
        if wrong is not None:
            return _skip(piece, Problem(StubReason.VERSION_1_MASK, f"PC & {wrong[0]} at distance {wrong[1]}"), wrong[1])
    # The specification uses the PC modulo the block size, libsframe the distance from the function's start. They agree
    # only on aligned starts, so the PCMASK function starts at the first aligned address, within a block.
    prefix_size = -start % block_size if len(body.starts) > 1 else 0
    if prefix_size == 0:
        return (Function(start, piece.size, body._replace(repeat_size=block_size)),)
    if piece.size == block_size:
        return (Function(start, piece.size, body),)
    rotated = _body(arch, frames[prefix_size:] + frames[:prefix_size])
    return (
        Function(start, prefix_size, _body(arch, frames[:prefix_size])),
        Function(start + prefix_size, piece.size - prefix_size, rotated._replace(repeat_size=block_size)),
    )


def _skip(piece: _Piece, problem: Problem, offset: int) -> StubSkip:
    detail = f"{problem.detail} at 0x{piece.start_vaddr + offset:x}".strip()
    return StubSkip(piece.start_vaddr, piece.size, piece.section_name, problem.reason, detail)


def _body(arch: Arch, frames: tuple[StubFrame, ...]) -> FunctionBody:
    starts = tuple(n for n, frame in enumerate(frames) if n == 0 or frame != frames[n - 1])
    return FunctionBody(starts, tuple(_state(arch, frames[start]) for start in starts))


def _state(arch: Arch, frame: StubFrame) -> FrameState:
    offset = arch.fixed_ra_offset or frame.ra_offset
    ra = None if offset is None else Rule(None, offset, deref=True)
    return FrameState(Rule(arch.sp_register, frame.depth, deref=False), ra)


def first_wrong_mask(starts: tuple[int, ...], start_vaddr: int, block_size: int) -> tuple[int, int] | None:
    """Return the row start and the distance in a block at which version 1's mask test fails, or None.

    Version 1 stores no block size: a reader chooses the last row with `PC & start >= start`. That has to be the right
    row whether PC is the address or its distance from the function's start. The test is tried on so many blocks that
    all bits of the starts occur in all combinations.
    """
    bits = 1 << max(starts).bit_length()
    for distance in range(block_size * bits):
        wanted = max(start for start in starts if start <= distance % block_size)
        for pc in (distance, start_vaddr + distance):
            if [start for start in starts if pc & start >= start][-1] != wanted:
                return wanted, distance % block_size
    return None


def _continues(last: Function, function: Function) -> bool:
    """Whether a PCMASK function of equal rows follows another without a gap."""
    return bool(
        last.body.repeat_size and last.body == function.body and last.start_vaddr + last.size == function.start_vaddr
    )
