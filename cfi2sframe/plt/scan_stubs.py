# SPDX-License-Identifier: Apache-2.0
"""The stubs of a linked file to SFrame functions, or to the reasons why not: the door of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.plt.block_decoder import BlockDecoder
from cfi2sframe.plt.block_runs import cut_range
from cfi2sframe.plt.cfi_agreement import contradiction
from cfi2sframe.plt.first_block import FirstBlockEntries
from cfi2sframe.plt.flow import StubFrame, UnitFrames, follow
from cfi2sframe.plt.scan_records import StubScan
from cfi2sframe.plt.sp_distance import SpDistances
from cfi2sframe.plt.stub_model import Problem, Unit
from cfi2sframe.plt.stub_ranges import find_stubs
from cfi2sframe.plt.stub_reasons import StubReason, StubSkip
from cfi2sframe.sframe.constants import SFRAME_VERSION_1
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.plt.scan_records import CfiAt


def scan_stubs(image: ElfImage, version: int, cfi_at: CfiAt) -> StubScan:
    """Describe the PLT stubs of a linked file for a version of SFrame; objects have none.

    `cfi_at` returns the CFI in force at a virtual address; stubs whose CFI contradicts their instructions are left out.
    Raises `InputError` when there are stubs and capstone cannot be loaded.
    """
    decoder, evaluator = BlockDecoder(image.arch), SpDistances(image.arch)
    ranges, unread = find_stubs(image, cfi_at, decoder, evaluator)
    if not ranges:
        return StubScan((), unread)
    cuts = [cut_range(stubs, decoder) for stubs in ranges]
    units = tuple(unit for cut in cuts for unit in cut.units)
    left_out = [*unread, *(skip for cut in cuts for skip in cut.left_out)]
    entry = StubFrame(-image.arch.fixed_ra_offset - image.arch.sp_offset_from_cfa)
    entries = FirstBlockEntries(image, units, decoder.stubs, entry, cfi_at, evaluator)
    all_frames = follow(units, decoder.stubs, entry, entries.of_first_block)
    functions: list[Function] = []
    last_range = ""
    for unit, frames in zip(units, all_frames, strict=True):
        for piece in _pieces(unit, frames):
            made = _describe(evaluator, version, piece, cfi_at)
            if isinstance(made, StubSkip):
                left_out.append(made)
            elif unit.range_name == last_range and _continues(functions[-1], made[0]):
                functions[-1] = functions[-1]._replace(size=functions[-1].size + made[0].size)
                functions += made[1:]
            else:
                functions += made
                last_range = unit.range_name
    return StubScan(tuple(functions), tuple(sorted(left_out, key=lambda skip: skip.start_vaddr)))


class _Piece(NamedTuple):
    """A part of a unit (all of it, if blocks repeat), with the frame at each byte of one block, or with a problem."""

    unit: Unit
    start_vaddr: int
    size: int
    frame_at: tuple[StubFrame, ...] | Problem


def _pieces(unit: Unit, frames: UnitFrames) -> Iterator[_Piece]:
    """Cut a single block where instructions have no frame; a run is one piece, a problem unless all have one."""
    size = unit.block_size * unit.block_count
    problem = frames.problem
    if problem is None and unit.block_count > 1:
        problem = next((frame for frame in frames.frames if isinstance(frame, Problem)), None)
    if problem is not None:
        yield _Piece(unit, unit.start_vaddr, size, problem)
        return
    known: list[StubFrame] = []
    unknown_size = 0
    cause: Problem | None = None
    offset = 0
    for insn, frame in zip(unit.block.instructions, frames.frames, strict=True):
        if isinstance(frame, Problem):
            if known:
                yield _Piece(unit, unit.start_vaddr + offset - len(known), len(known), tuple(known))
                known = []
            cause = cause or frame
            unknown_size += insn.size
        else:
            if cause is not None:
                yield _unknown_piece(unit, offset - unknown_size, unknown_size, cause)
                cause, unknown_size = None, 0
            known += [frame] * insn.size
        offset += insn.size
    if cause is not None:
        yield _unknown_piece(unit, offset - unknown_size, unknown_size, cause)
    elif known:
        piece_size = size if unit.block_count > 1 else len(known)
        yield _Piece(unit, unit.start_vaddr + offset - len(known), piece_size, tuple(known))


def _unknown_piece(unit: Unit, offset: int, size: int, cause: Problem) -> _Piece:
    return _Piece(unit, unit.start_vaddr + offset, size, cause._replace(offset=cause.offset - offset))


def _describe(evaluator: SpDistances, version: int, piece: _Piece, cfi_at: CfiAt) -> tuple[Function, ...] | StubSkip:
    problem: Problem | None
    if isinstance(piece.frame_at, Problem):
        problem = piece.frame_at
    else:
        problem = contradiction(evaluator, piece.start_vaddr, piece.size, piece.frame_at, cfi_at)
        if problem is None:
            made = _functions(evaluator, version, piece, piece.frame_at)
            if not isinstance(made, Problem):
                return made
            problem = made
    place = f"at 0x{piece.start_vaddr + problem.offset:x}"
    detail = f"{problem.detail} {place}".strip()
    return StubSkip(piece.start_vaddr, piece.size, piece.unit.range_name, problem.reason, detail)


def _functions(
    evaluator: SpDistances, version: int, piece: _Piece, frame_at: tuple[StubFrame, ...]
) -> tuple[Function, ...] | Problem:
    unit, start, block_size = piece.unit, piece.start_vaddr, piece.unit.block_size
    arch = evaluator.arch
    body = _body(arch, frame_at)
    if unit.is_header or piece.size < block_size:
        return (Function(start, piece.size, body),)
    if version == SFRAME_VERSION_1:
        wrong = first_wrong_mask(body.starts, start, block_size)
        if wrong is not None:
            return Problem(StubReason.VERSION_1_MASK, f"PC & {wrong[0]} at distance {wrong[1]}", wrong[1])
    # The specification uses the PC modulo the block size, libsframe the distance from the function's start. They agree
    # only on aligned starts, so the PCMASK function starts at the first aligned address, within a block.
    prefix_size = -start % block_size if len(body.starts) > 1 else 0
    if prefix_size == 0:
        return (Function(start, piece.size, body._replace(repeat_size=block_size)),)
    if unit.block_count == 1:
        return (Function(start, piece.size, body),)
    rotated = _body(arch, frame_at[prefix_size:] + frame_at[:prefix_size])
    return (
        Function(start, prefix_size, _body(arch, frame_at[:prefix_size])),
        Function(start + prefix_size, piece.size - prefix_size, rotated._replace(repeat_size=block_size)),
    )


def _body(arch: Arch, frame_at: tuple[StubFrame, ...]) -> FunctionBody:
    starts = tuple(n for n, frame in enumerate(frame_at) if n == 0 or frame != frame_at[n - 1])
    return FunctionBody(starts, tuple(_state(arch, frame_at[start]) for start in starts))


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


def _state(arch: Arch, frame: StubFrame) -> FrameState:
    ra: Rule | None = None
    if arch.fixed_ra_offset:
        ra = Rule(None, arch.fixed_ra_offset, deref=True)
    elif frame.ra_offset is not None:
        ra = Rule(None, frame.ra_offset, deref=True)
    return FrameState(Rule(arch.sp_register, frame.depth, deref=False), ra)


def _continues(last: Function, function: Function) -> bool:
    """Whether a PCMASK function of equal rows follows another without a gap."""
    return bool(
        last.body.repeat_size and last.body == function.body and last.start_vaddr + last.size == function.start_vaddr
    )
