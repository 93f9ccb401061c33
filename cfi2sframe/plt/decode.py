# SPDX-License-Identifier: Apache-2.0
"""Bytes of a block -> instructions with their effects; the only user of capstone, imported with the first block."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.arch import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.errors import InputError
from cfi2sframe.plt.aarch64 import AARCH64_STUBS
from cfi2sframe.plt.amd64 import AMD64_STUBS
from cfi2sframe.plt.model import ENDS_FLOW, Block, Effect, Flow, Instruction, Problem, StubArch
from cfi2sframe.plt.records import StubReason
from cfi2sframe.plt.s390x import S390X_STUBS

if TYPE_CHECKING:
    from typing import Any, Final

_STUB_ARCHES: Final[dict[Arch, StubArch]] = {
    AMD64: AMD64_STUBS,
    AARCH64_LE: AARCH64_STUBS,
    AARCH64_BE: AARCH64_STUBS,
    S390X: S390X_STUBS,
}


class Decoder:
    """Decodes blocks of one architecture, each distinct one once."""

    def __init__(self, arch: Arch) -> None:
        self.stubs = _STUB_ARCHES[arch]
        self._disassembler: Any = None
        self._known: dict[bytes, Block | Problem] = {}

    def block(self, data: bytes) -> Block | Problem:
        """Decode a block that begins and ends with an instruction, or say what is not known of it."""
        found = self._known.get(data)
        if found is None:
            found = self._known[data] = self._decode(data)
        return found

    def way_to_jump(self, data: bytes) -> tuple[Instruction, ...] | None:
        """Decode up to the first instruction that ends the flow; None when something before it is not known."""
        instructions: list[Instruction] = []
        for insn in self._open().disasm(data, 0):
            understood = self.stubs.understand(insn, insn.address, data)
            if understood is None:
                return None
            instructions.append(Instruction(insn.address, insn.size, understood[0]))
            if understood[0].flow in ENDS_FLOW:
                return tuple(instructions)
        return None

    def _open(self) -> Any:  # noqa: ANN401 - capstone has no types
        if self._disassembler is None:
            try:
                self._disassembler = self.stubs.open_disassembler()
            except ImportError:
                reason = "PLT stubs are described with the Python package capstone, which cannot be loaded"
                raise InputError(f"{reason}; --no-plt leaves them to the CFI") from None
        return self._disassembler

    def _decode(self, data: bytes) -> Block | Problem:
        instructions: list[Instruction] = []
        mask = b""
        for insn in self._open().disasm(data, 0):
            if self._is_literal(instructions, len(data) - insn.address):
                break
            understood = self.stubs.understand(insn, insn.address, data)
            if understood is None:
                text = f"{insn.mnemonic} {insn.op_str}".strip()
                return Problem(StubReason.UNKNOWN_INSTRUCTION, text, insn.address)
            effect, insn_mask = understood
            instructions.append(Instruction(insn.address, insn.size, effect))
            mask += insn_mask
        rest_size = len(data) - len(mask)
        if rest_size and not self._is_literal(instructions, rest_size):
            return Problem(StubReason.NO_INSTRUCTION, data[len(mask) :][:16].hex(" "), len(mask))
        if rest_size:
            literal = Effect(Flow.LEAVE, is_padding=True)
            instructions.append(Instruction(len(mask), rest_size, literal))
            mask += bytes(rest_size)
        return Block(data, mask, tuple(instructions))

    def _is_literal(self, instructions: list[Instruction], rest_size: int) -> bool:
        """Whether the rest of a block is data: as much as a stub has, behind its last jump."""
        return (
            rest_size == self.stubs.literal_size
            and bool(instructions)
            and instructions[-1].effect.flow in ENDS_FLOW
            and not instructions[-1].effect.is_padding
        )
