# SPDX-License-Identifier: Apache-2.0
"""The bytes of a block to instructions with their effects, by capstone, which is imported for the first block."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

from cfi2sframe.arch import AMD64, S390X, Arch
from cfi2sframe.code.disassembler import open_disassembler
from cfi2sframe.code.effects import Flow
from cfi2sframe.plt.stub_effects import understand
from cfi2sframe.plt.stub_model import ENDS_FLOW, Problem, StubBlock, StubEffect, StubInstruction
from cfi2sframe.plt.stub_reasons import StubReason

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from cfi2sframe.plt.stub_model import DecodedInstruction, StubArch

#: Instructions per call of capstone, which allocates two kilobytes for each; and the bytes that are passed to it.
_PIECE_COUNT: Final = 256
_PIECE_SIZE: Final = 16 * _PIECE_COUNT


class BlockDecoder:
    """Decodes blocks of one architecture, each distinct one once.

    Decoding raises `InputError` where capstone cannot be loaded.
    """

    def __init__(self, arch: Arch) -> None:
        self.arch = arch
        self.stubs = _stub_arch(arch)
        self._known: dict[bytes, StubBlock | Problem] = {}

    def block(self, data: bytes) -> StubBlock | Problem:
        """Decode a block; return the first problem where it does not consist of known instructions."""
        found = self._known.get(data)
        if found is None:
            found = self._known[data] = self._decode(data)
        return found

    def way_to_jump(self, data: bytes) -> tuple[StubInstruction, ...] | None:
        """Decode up to the first instruction that ends the flow; None without one, or if one before it is unknown."""
        instructions: list[StubInstruction] = []
        for insn in self._disassemble(data):
            understood = understand(self.stubs, insn, data)
            if understood is None:
                return None
            offset, size, _, _ = insn
            instructions.append(StubInstruction(offset, size, understood[0]))
            if understood[0].flow in ENDS_FLOW:
                return tuple(instructions)
        return None

    @cached_property
    def _disassembler(self) -> Any:  # noqa: ANN401 - capstone has no types
        return open_disassembler(self.arch, "PLT stubs are described")

    def _disassemble(self, data: bytes) -> Iterator[DecodedInstruction]:
        """Yield the instructions up to the first bytes that are not one."""
        position = 0
        while position < len(data):
            piece = data[position : position + _PIECE_SIZE]
            found: list[DecodedInstruction] = list(self._disassembler.disasm_lite(piece, position, _PIECE_COUNT))
            yield from found
            if not found:
                return
            offset, size, _, _ = found[-1]
            position = offset + size

    def _decode(self, data: bytes) -> StubBlock | Problem:
        instructions: list[StubInstruction] = []
        mask = bytearray()
        for insn in self._disassemble(data):
            offset, size, mnemonic, operands = insn
            if self._is_literal(instructions, len(data) - offset):
                break
            understood = understand(self.stubs, insn, data)
            if understood is None:
                return Problem(StubReason.UNKNOWN_INSTRUCTION, f"{mnemonic} {operands}".strip(), offset)
            effect, insn_mask = understood
            instructions.append(StubInstruction(offset, size, effect))
            mask += insn_mask
        rest_size = len(data) - len(mask)
        if rest_size and not self._is_literal(instructions, rest_size):
            return Problem(StubReason.NO_INSTRUCTION, data[len(mask) :][:16].hex(" "), len(mask))
        if rest_size:
            literal = StubEffect(Flow.STOP, is_padding=True)
            instructions.append(StubInstruction(len(mask), rest_size, literal))
            mask += bytes(rest_size)
        return StubBlock(data, bytes(mask), tuple(instructions))

    def _is_literal(self, instructions: list[StubInstruction], rest_size: int) -> bool:
        """Whether the last `rest_size` bytes of a block are data: of the known size, after the last jump."""
        return (
            rest_size == self.stubs.literal_size
            and bool(instructions)
            and instructions[-1].effect.flow in ENDS_FLOW
            and not instructions[-1].effect.is_padding
        )


def _stub_arch(arch: Arch) -> StubArch:
    """Return the record of an ABI; the tables of the others' instructions need not be loaded."""
    if arch == AMD64:
        from cfi2sframe.plt.amd64 import AMD64_STUBS

        return AMD64_STUBS
    if arch == S390X:
        from cfi2sframe.plt.s390x import S390X_STUBS

        return S390X_STUBS
    from cfi2sframe.plt.aarch64 import AARCH64_STUBS

    return AARCH64_STUBS
