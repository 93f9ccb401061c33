# SPDX-License-Identifier: Apache-2.0
"""Describe the PLT stubs of a linked file as SFrame functions: blocks that repeat are a PCMASK function.

Instructions decide: the frame at each byte of a section, then the smallest blocks at which it repeats. CFI that linkers
have for stubs is only used for a first block without stubs.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, product
from typing import Final, NamedTuple

from cfi2sframe.constants.sframe import SFRAME_VERSION_1
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody
from cfi2sframe.stubs import StubScan, StubSkip
from cfi2sframe.stubs.frames import Stubs
from cfi2sframe.stubs.places import StubRange, find_stubs
from cfi2sframe.why import Reason, Why

#: Sizes of blocks, of the code before the first one, and of code after the last (the trampoline of lazy TLS
#: descriptors), as linkers make them.
_BLOCKS: Final = range(8, 65, 8)
_HEADERS: Final = range(0, 65, 16)
_TAILS: Final = (0, 16, 32)


def scan_stubs(image: ElfImage, version: int) -> StubScan:
    """Describe the PLT stubs of a linked file for a version of SFrame.

    Raises `InputError` when there are stubs and capstone cannot be loaded.
    """
    ranges, unread = find_stubs(image)
    if not ranges:
        return StubScan((), unread)
    spans = [Span(stub_range.start_vaddr, stub_range.end_vaddr) for stub_range in ranges]
    stubs = Stubs(Decoder(image, spans, "PLT stubs are described"))
    functions: list[Function] = []
    left_out = list(unread)
    for part in [part for stub_range in ranges for part in _parts(stubs, stub_range)]:
        described = _describe(version, part)
        if isinstance(described, StubSkip):
            left_out.append(described)
        else:
            functions += described
    return StubScan(tuple(functions), tuple(sorted(left_out, key=lambda skip: skip.start_vaddr)))


class _Part(NamedTuple):
    """A part of a range, with the frame at each byte: of one block if blocks of a size repeat (0: nothing repeats)."""

    section_name: str
    start_vaddr: int
    size: int
    frames: Sequence[FrameState | Why]
    block_size: int = 0


def _parts(stubs: Stubs, whole: StubRange) -> Iterator[_Part]:
    """Cut a range into the code before the blocks, equal blocks, and the code after them, both where frames end."""
    frames = stubs.at_each_byte(whole.start_vaddr, whole.end_vaddr)
    header_size, block_size, tail_start = _shape_of(stubs, whole, frames) or (len(frames), 0, len(frames))
    yield from _unlike(whole, 0, frames[:header_size])
    if block_size:
        block, size = frames[header_size : header_size + block_size], tail_start - header_size
        yield _Part(whole.name, whole.start_vaddr + header_size, size, block, block_size)
    yield from _unlike(whole, tail_start, frames[tail_start:])


def _unlike(whole: StubRange, offset: int, frames: list[FrameState | Why]) -> Iterator[_Part]:
    """Yield the parts of a range in which nothing repeats, those with frames and those without."""
    for _, group in groupby(frames, lambda frame: isinstance(frame, Why)):
        inside = list(group)
        yield _Part(whole.name, whole.start_vaddr + offset, len(inside), inside)
        offset += len(inside)


def _shape_of(stubs: Stubs, whole: StubRange, frames: list[FrameState | Why]) -> tuple[int, int, int] | None:
    """Return the start of the blocks of a range, the smallest possible size of one, and their end, as offsets."""
    entries = {vaddr - whole.start_vaddr for vaddr in stubs.entries if whole.start_vaddr <= vaddr < whole.end_vaddr}
    for block_size, tail_size, header_size in product(_BLOCKS, _TAILS, _HEADERS):
        end = len(frames) - tail_size
        starts = range(header_size, end, block_size)
        if not starts or (end - header_size) % block_size:
            continue
        # A block begins with an entry, and the code before the blocks has none inside.
        if not entries.issuperset(starts) or (tail_size and end not in entries):
            continue
        if any(0 < entry < header_size for entry in entries):
            continue
        block = frames[header_size : header_size + block_size]
        # A block that does not recur may be several stubs, one of which cannot be described.
        is_block = len(starts) > 1 or not any(isinstance(frame, Why) for frame in block)
        if is_block and frames[header_size:end] == block * len(starts):
            return header_size, block_size, end
    return None


def _describe(version: int, part: _Part) -> tuple[Function, ...] | StubSkip:
    start, block_size = part.start_vaddr, part.block_size
    problem = next((frame for frame in part.frames if isinstance(frame, Why)), None)
    if problem is not None:
        return _skip(part, problem, 0)
    frames = tuple([frame for frame in part.frames if isinstance(frame, FrameState)])
    body = _body(frames)
    if not block_size:
        return (Function(start, part.size, body),)
    if version == SFRAME_VERSION_1:
        wrong = _first_wrong_mask(body.starts, start, block_size)
        if wrong is not None:
            return _skip(part, Why(Reason.VERSION_1_MASK, f"PC & {wrong[0]} at distance {wrong[1]}"), wrong[1])
    # The specification uses the PC modulo the block size, libsframe the distance from the function's start. They agree
    # only on aligned starts, so the PCMASK function starts at the first aligned address, within a block.
    prefix_size = -start % block_size if len(body.starts) > 1 else 0
    if prefix_size == 0:
        return (Function(start, part.size, body._replace(repeat_size=block_size)),)
    if part.size == block_size:
        return (Function(start, part.size, body),)
    rotated = _body(frames[prefix_size:] + frames[:prefix_size])
    return (
        Function(start, prefix_size, _body(frames[:prefix_size])),
        Function(start + prefix_size, part.size - prefix_size, rotated._replace(repeat_size=block_size)),
    )


def _skip(part: _Part, problem: Why, offset: int) -> StubSkip:
    detail = f"{problem.detail} at 0x{part.start_vaddr + offset:x}".strip()
    return StubSkip(part.start_vaddr, part.size, part.section_name, problem.reason, detail)


def _body(frames: tuple[FrameState, ...]) -> FunctionBody:
    starts = tuple(n for n, frame in enumerate(frames) if n == 0 or frame != frames[n - 1])
    return FunctionBody(starts, tuple(frames[start] for start in starts))


def _first_wrong_mask(starts: tuple[int, ...], start_vaddr: int, block_size: int) -> tuple[int, int] | None:
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
