# SPDX-License-Identifier: Apache-2.0
"""Decode the instructions of some code with capstone, and look up their effects."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.elf.disassembler import open_disassembler
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.object_code import RelocatedCode
from cfi2sframe.instructions.effects import Abi, Effect, Flow
from cfi2sframe.range_map import RangeMap, Span

#: Bytes that are decoded at a time from an address on: most of what follows is needed, too.
_PIECE_SIZE: Final = 256
_LONG_PIECE_SIZE: Final = 1 << 12
_MAX_INSTRUCTION_SIZE: Final = 16
#: Instructions that are remembered. Functions are followed in the order of their addresses.
_MAX_DECODED: Final = 1 << 18


class DecodedInstruction(NamedTuple):
    """The size of an instruction, its effect (None: unknown), and a bit for each register that it changes."""

    size: int
    effect: Effect | None
    changed: int


def abi_of(arch: Arch) -> Abi:
    """Return the record of an ABI; the tables of the others need not be loaded."""
    abi: Abi = import_module(f"cfi2sframe.instructions.{arch.module}").ABI
    return abi._replace(arch=arch)


class Decoder:
    """Decodes the instructions in some ascending spans of an image's code, where control reaches them.

    `executed` are addresses of instructions that others execute elsewhere. Raises `InputError` where capstone cannot be
    loaded.
    """

    def __init__(self, image: ElfImage, spans: Sequence[Span], what: str, otherwise: str = "") -> None:
        self.image = image
        self.abi = abi_of(image.arch)
        self.spans = spans
        self.code = RelocatedCode(image)
        self._disassembler = open_disassembler(self.abi.disassembler, what, otherwise)
        self._span_at = RangeMap(None, ((*span, span) for span in spans))
        self._by_text: dict[tuple[str, str, int], DecodedInstruction] = {}
        self._decoded: dict[int, DecodedInstruction] = {}
        self.executed: set[int] = set()

    def holds(self, vaddr: int) -> bool:
        """Return whether the spans hold an address."""
        return self._span_at[vaddr] is not None

    def span_of(self, vaddr: int) -> Span | None:
        """Return the span that holds an address."""
        return self._span_at[vaddr]

    def at(self, vaddr: int) -> DecodedInstruction | None:
        """Return the instruction at an address; None where the spans have none."""
        return self._decoded.get(vaddr) or self._decode(vaddr)

    def through_padding(self, vaddr: int) -> Iterator[int]:
        """Yield an address and, while padding is there, the address after its instruction."""
        yield vaddr
        while (size := self.padding_size(vaddr)) > 0:
            vaddr += size
            yield vaddr

    def padding_size(self, vaddr: int) -> int:
        """Return the size of an instruction that only fills space; 0 for any other."""
        instruction = self.at(vaddr)
        is_padding = instruction is not None and instruction.effect is not None and instruction.effect.is_padding
        return instruction.size if instruction is not None and is_padding else 0

    def disassemble(self, start: int, end: int) -> Iterator[tuple[int, int, str, str]]:
        """Yield address, size, mnemonic and operands of the instructions in a range, up to bytes that are none."""
        has_more = True
        while has_more and start < end:
            # In parts, as capstone needs memory for all instructions that it is given.
            stop, has_more = min(end, start + _LONG_PIECE_SIZE), False
            for text in self._disassembler.disasm_lite(self.read(start, stop), start):
                if has_more and stop < end and text[0] > stop - _MAX_INSTRUCTION_SIZE:
                    # The end of the part may cut this one.
                    break
                yield text
                start, has_more = text[0] + text[1], True

    def read(self, start: int, end: int) -> bytes:
        """Return the bytes of a range of code, fewer where the file does not have them."""
        code = self.image.code_range_of(start)
        return b"" if code is None else self.code.read(code, start, min(end, code.end_vaddr))

    def effect_of(self, vaddr: int, size: int, mnemonic: str, operands: str) -> Effect | None:
        """Return the effect of an instruction from its text."""
        effect = self.abi.effect_of(vaddr, size, mnemonic, operands)
        if effect is not None and effect.flow is Flow.EXECUTE and effect.target is not None:
            self.executed.add(effect.target)
            for _, _, name, executed in self.disassemble(effect.target, effect.target + _MAX_INSTRUCTION_SIZE):
                return self.abi.executed(operands, name, executed)
            return None
        return effect

    def _decode(self, vaddr: int) -> DecodedInstruction | None:
        """Decode from an address on, up to what is decoded already; return the instruction there."""
        span = self._span_at[vaddr]
        if span is None or vaddr % self.abi.arch.instruction_alignment:
            return None
        instructions, by_text = self._decoded, self._by_text
        if len(instructions) > _MAX_DECODED:
            instructions.clear()
        end = min(span.end, vaddr + _PIECE_SIZE)
        # The end of a piece may cut its last instruction.
        last = end if end == span.end else end - _MAX_INSTRUCTION_SIZE
        for at, size, mnemonic, operands in self._disassembler.disasm_lite(self.read(vaddr, end), vaddr):
            if at > last or at in instructions:
                break
            instruction = by_text.get((mnemonic, operands, size))
            if instruction is None:
                effect = self.effect_of(at, size, mnemonic, operands)
                instruction = DecodedInstruction(size, effect, 0 if effect is None else effect.changed)
                if not self.abi.depends_on_address(mnemonic, operands):
                    by_text[mnemonic, operands, size] = instruction
            instructions[at] = instruction
        return instructions.get(vaddr)
