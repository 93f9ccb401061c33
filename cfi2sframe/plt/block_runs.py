# SPDX-License-Identifier: Apache-2.0
"""Cut a range of stubs into runs of equal blocks, by instructions alone: not by section names or entry sizes.

A range is an optional header, blocks of one size, and an optional tail. Of the ways to cut it, the one with the fewest
unknown bytes is chosen; of several such, the one with the smallest blocks, then the one with the fewest kinds of
blocks. Only one block of each kind is decoded; the others are compared by their constant bits.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.plt.stub_model import Problem, StubBlock, StubRange, Unit
from cfi2sframe.plt.stub_reasons import StubReason, StubSkip

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.plt.block_decoder import BlockDecoder

#: The most kinds of blocks, and runs of them, in one range; real stubs have fewer.
_MAX_KINDS: Final = 4
_MAX_RUNS: Final = 32
#: Up to this number of unknown blocks, and up to a quarter of all, are left out one by one.
_MAX_UNKNOWN_BLOCKS: Final = 8
#: Where no way to cut fits, the first unknown instruction is searched in so many bytes.
_MAX_SHOWN_SIZE: Final = 4096
_MAX_INSTRUCTION_SIZE: Final = 16


class Cut(NamedTuple):
    """The units of a range, and the blocks that cannot be described."""

    units: tuple[Unit, ...]
    left_out: tuple[StubSkip, ...]


class _Shape(NamedTuple):
    """A way to cut a range; sizes in bytes."""

    header_size: int
    block_size: int
    block_count: int
    tail_size: int


class _Run(NamedTuple):
    """Consecutive blocks of one kind, or of one problem; `first` is the index of the first block."""

    first: int
    block_count: int
    block: StubBlock | Problem


def cut_range(stubs: StubRange, decoder: BlockDecoder) -> Cut:
    """Cut a range into runs of equal blocks; where no way to cut it fits, all of it is left out."""
    best: Cut | None = None
    best_rank: tuple[int, int, int] | None = None
    for shape in _shapes(len(stubs.data), decoder):
        if best_rank is not None and best_rank < (0, shape.block_size):
            break
        cut = _cut_as(stubs, shape, decoder)
        if cut is None:
            continue
        kinds = len({unit.block.mask + unit.block.data for unit in cut.units if not unit.is_header})
        rank = (sum(skip.size for skip in cut.left_out), shape.block_size, kinds)
        if best_rank is None or rank < best_rank:
            best, best_rank = cut, rank
    if best is not None:
        return best
    beginning = stubs.data[:_MAX_SHOWN_SIZE]
    problem = decoder.block(beginning)
    is_cut_short = len(beginning) < len(stubs.data)
    if isinstance(problem, StubBlock) or (is_cut_short and problem.offset > _MAX_SHOWN_SIZE - _MAX_INSTRUCTION_SIZE):
        problem = Problem(StubReason.MIXED_BLOCKS, f"{len(stubs.data)} bytes")
    return Cut((), (_skip(stubs, 0, len(stubs.data), problem),))


def _shapes(size: int, decoder: BlockDecoder) -> Iterator[_Shape]:
    sizes = decoder.stubs
    for block_size in sizes.block_sizes:
        for tail_size in sizes.tail_sizes:
            for header_size in sizes.header_sizes:
                rest = size - header_size - tail_size
                if rest > 0 and rest % block_size == 0:
                    yield _Shape(header_size, block_size, rest // block_size, tail_size)


def _cut_as(stubs: StubRange, shape: _Shape, decoder: BlockDecoder) -> Cut | None:
    """Cut a range in one way, or return None when it does not fit."""
    units: list[Unit] = []
    left_out: list[StubSkip] = []

    def add(offset: int, run: _Run, block_size: int, *, is_header: bool) -> None:
        size = run.block_count * block_size
        if isinstance(run.block, Problem):
            left_out.append(_skip(stubs, offset, size, run.block))
        else:
            data = stubs.data[offset : offset + size]
            start = stubs.start_vaddr + offset
            units.append(Unit(stubs.name, start, block_size, run.block_count, run.block, data, is_header))

    if shape.header_size:
        header = _whole(decoder, stubs.data[: shape.header_size])
        if isinstance(header, StubBlock) and not _is_one_piece(header):
            return None
        add(0, _Run(0, 1, header), shape.header_size, is_header=True)
    tail_offset = len(stubs.data) - shape.tail_size
    runs = _runs(stubs.data[shape.header_size : tail_offset], shape, decoder)
    if runs is None:
        return None
    for run in runs:
        add(shape.header_size + run.first * shape.block_size, run, shape.block_size, is_header=False)
    if shape.tail_size:
        tail = _whole(decoder, stubs.data[tail_offset:])
        if isinstance(tail, Problem):
            return None
        add(tail_offset, _Run(0, 1, tail), shape.tail_size, is_header=True)
    return Cut(tuple(units), tuple(left_out)) if units else None


def _whole(decoder: BlockDecoder, data: bytes) -> StubBlock | Problem:
    """Decode a block whose control flow may not run past its end."""
    block = decoder.block(data)
    if isinstance(block, StubBlock) and not block.ends_flow:
        return Problem(StubReason.UNKNOWN_INSTRUCTION, "control runs past its end", len(data))
    return block


def _is_one_piece(block: StubBlock) -> bool:
    """Whether a header is entered only at its start and by its own jumps; otherwise it contains stubs."""
    own_targets = {insn.effect.target_delta for insn in block.instructions}
    return all(block.instructions[number].offset in own_targets for number in block.entries[1:])


def _runs(data: bytes, shape: _Shape, decoder: BlockDecoder) -> list[_Run] | None:
    """Return runs of blocks of the same kind, or None when there are too many kinds, runs or unknown blocks."""
    size, count = shape.block_size, shape.block_count
    kind_of: list[int] = [-1] * count
    kinds: list[StubBlock | Problem] = []
    unknown_limit = min(_MAX_UNKNOWN_BLOCKS, count // 4)
    known_count = 0
    for number in range(count):
        if kind_of[number] >= 0:
            continue
        block = _whole(decoder, data[number * size : (number + 1) * size])
        if isinstance(block, Problem):
            kind_of[number] = len(kinds)
            if len(kinds) - known_count >= unknown_limit:
                return None
        else:
            known_count += 1
            if known_count > _MAX_KINDS:
                return None
            _mark_equals(data, block, number, kind_of, len(kinds))
        kinds.append(block)
    runs: list[_Run] = []
    first = 0
    for kind, same in groupby(kind_of):
        run_count = len(list(same))
        runs.append(_Run(first, run_count, kinds[kind]))
        first += run_count
    return runs if len(runs) <= _MAX_RUNS else None


def _mark_equals(data: bytes, block: StubBlock, first: int, kind_of: list[int], kind: int) -> None:
    """Set `kind_of` for the blocks from `first` on that have no kind yet and equal `block` in its constant bits."""
    size = len(block.data)
    count = len(kind_of) - first
    # One operation on long integers compares all blocks at once.
    mask = int.from_bytes(block.mask * count)
    difference = (int.from_bytes(data[first * size :]) ^ int.from_bytes(block.data * count)) & mask
    if difference == 0 and max(kind_of[first:]) < 0:
        kind_of[first:] = [kind] * count
        return
    differing = difference.to_bytes(size * count)
    same = bytes(size)
    for number in range(count):
        if kind_of[first + number] < 0 and differing[number * size : (number + 1) * size] == same:
            kind_of[first + number] = kind


def _skip(stubs: StubRange, offset: int, size: int, problem: Problem) -> StubSkip:
    vaddr = stubs.start_vaddr + offset
    detail = f"{problem.detail} at 0x{vaddr + problem.offset:x}"
    return StubSkip(vaddr, size, stubs.name, problem.reason, detail)
