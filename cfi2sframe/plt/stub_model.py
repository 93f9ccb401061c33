# SPDX-License-Identifier: Apache-2.0
"""Records that the modules of the stub analysis share."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - part of a NamedTuple's fields
from typing import Final, NamedTuple

from cfi2sframe.code.effects import CodeArch, Flow
from cfi2sframe.plt.stub_reasons import StubReason  # noqa: TC001 - part of a NamedTuple's fields


class StubRange(NamedTuple):
    """Bytes that should be stubs: a section, or a part of a segment."""

    name: str
    start_vaddr: int
    data: bytes


class Problem(NamedTuple):
    """Why a range, a block or an instruction cannot be described; `offset` counts from its start."""

    reason: StubReason
    detail: str
    offset: int = 0


#: An instruction of a block, as capstone has it: its offset, its size, mnemonic and operands. Their text is that of a
#: block at the address 0.
DecodedInstruction = tuple[int, int, str, str]
#: The flow never continues at the next instruction; that one is reached only by jumps.
ENDS_FLOW: Final = frozenset({Flow.JUMP, Flow.JUMP_INDIRECT, Flow.RETURN, Flow.STOP})


class StubEffect(NamedTuple):
    """What an instruction does to the frame and to the flow.

    `push_size` bytes are pushed (negative: popped) before the flow continues. `ra_at` is the offset from the new SP at
    which the return address was saved (AArch64). `overwrites_top`: the word on top of the stack gets another value.
    `is_padding`: not meant to be executed. `target_delta`: the target of a direct jump or call, in bytes from the
    block's start.
    """

    flow: Flow = Flow.NEXT
    push_size: int = 0
    ra_at: int | None = None
    overwrites_top: bool = False
    is_padding: bool = False
    target_delta: int | None = None


class StubInstruction(NamedTuple):
    """An instruction of a block; `offset` counts from the block's start, as do the deltas of its effect."""

    offset: int
    size: int
    effect: StubEffect


class StubBlock(NamedTuple):
    """A decoded block. The bits of `mask` are set where blocks of the same kind are equal."""

    data: bytes
    mask: bytes
    instructions: tuple[StubInstruction, ...]

    @property
    def ends_flow(self) -> bool:
        """Whether only padding follows the last jump, so that control never reaches the next block that way."""
        last = next((i for i in reversed(self.instructions) if not i.effect.is_padding), None)
        return last is not None and last.effect.flow in ENDS_FLOW

    @property
    def entries(self) -> tuple[int, ...]:
        """The indices of the first instruction and of each after the end of the flow: only jumps lead there."""
        found = []
        previous = Flow.STOP
        for number, insn in enumerate(self.instructions):
            if number and insn.effect.is_padding:
                continue
            if previous in ENDS_FLOW:
                found.append(number)
            previous = insn.effect.flow
        return tuple(found)


class Unit(NamedTuple):
    """A run of `block_count` equal blocks from `start_vaddr` on; `data` are the bytes of all of them.

    `is_header`: a first or last block of another shape.
    """

    range_name: str
    start_vaddr: int
    block_size: int
    block_count: int
    block: StubBlock
    data: bytes
    is_header: bool

    @property
    def end_vaddr(self) -> int:
        """The first address past the run."""
        return self.start_vaddr + self.block_size * self.block_count


class StubArch(NamedTuple):
    """What the analysis needs to know of an architecture.

    `code` has the effects of instructions. `constant_bits(mnemonic, operands, code)` returns, for an instruction's text
    and its bytes, the mask of the bits that are equal in stubs of one kind, or None when stubs have no such thing.
    `branch_delta(data, offset, size)` returns the distance of a direct branch's target from the start of `data`.
    `words_read(kind, data, start_vaddr)` returns the addresses of the words that a block reads, such as its GOT slot:
    `data` are its bytes, `kind` is a decoded block of the same kind. Sizes count bytes and are tried in this order; a
    header or tail of size 0 is none. The last `literal_size` bytes of a block, after its last jump, may be data.
    The `save_area_size` bytes from the entry's SP on are the callee's to write to.
    """

    code: CodeArch
    constant_bits: Callable[[str, str, bytes], bytes | None]
    branch_delta: Callable[[bytes, int, int], int]
    words_read: Callable[[StubBlock, bytes, int], frozenset[int]]
    block_sizes: tuple[int, ...]
    header_sizes: tuple[int, ...]
    tail_sizes: tuple[int, ...]
    literal_size: int
    save_area_size: int
