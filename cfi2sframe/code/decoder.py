# SPDX-License-Identifier: Apache-2.0
"""The instructions at the addresses of some code, each with its effect, by capstone."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import Flow, Op
from cfi2sframe.code.machines import open_for_code
from cfi2sframe.code.references import references_in
from cfi2sframe.elf.object_code import RelocatedCode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.code.effects import CodeArch, Effect
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span

#: Bytes that are passed to capstone at one time; it takes memory for all of their instructions.
_PIECE_SIZE: Final = 1 << 14
#: Bytes for an address that the first pass over the code has no instruction at.
_SHORT_PIECE_SIZE: Final = 64
_MAX_INSTRUCTION_SIZE: Final = 15
#: The size of every instruction of AArch64.
_WORD_SIZE: Final = 4
_REGISTER_BITS: Final = 62
#: Instructions between the load of an address and that of a table's word, which counts from there.
_MAX_DISTANCE: Final = 32
#: In `Decoded.changed`, the bit for a word of a table of jumps.
_TABLE_BIT: Final = 1 << 62
#: In `Decoded.changed`, the bit for a store.
MEMORY_BIT: Final = 1 << 63


class Decoded(NamedTuple):
    """The size of an instruction, its effect, None where that is not known, and a bit for each register it changes.

    It is one object for all instructions of the same text and effect: most instructions of code are repetitions.
    """

    size: int
    effect: Effect | None
    changed: int


class Decoder:
    """Decodes the instructions in some ascending spans of an image's code.

    One pass reads the spans from end to end, where each instruction follows the one before it. Where control reaches
    an address in between, what is there is decoded, too. `branch_targets`, `call_targets` and `constants` are those of
    the first pass: addresses that may be no code's at all. `code` has the bytes.

    Raises `InputError` where capstone cannot be loaded.
    """

    def __init__(self, image: ElfImage, arch: CodeArch, spans: Sequence[Span]) -> None:
        self.image = image
        self.arch = arch
        self.spans = spans
        self.branch_targets: set[int] = set()
        self.call_targets: set[int] = set()
        self.constants: set[int] = set()
        #: By register, the address that was loaded last, and where the instruction after that is.
        self._last_constants: dict[int, tuple[int, int]] = {}
        self._starts = [span.start for span in spans]
        self._by_text: dict[tuple[str, str, int], Decoded] = {}
        self._swept: dict[int, Decoded] = {}
        self._found = self._swept
        self._bytes: dict[int, bytes] = {}
        self.code = RelocatedCode(image)
        self._disassembler = open_for_code(
            image.arch, "code without CFI is read", "without --from code, only CFI is read"
        )
        for span in spans:
            self._sweep(span)
            if arch.alignment == _WORD_SIZE:
                # Two instructions load an address there.
                data = self._read(span, span.start, span.end)
                references = references_in(image.arch.elf_machine, data, span.start)
                self.constants.update(reference.target for reference in references if not reference.is_call)
        #: What is found between the instructions of the first pass.
        self._found = {}

    def span_of(self, vaddr: int) -> Span | None:
        """Return the span that holds an address."""
        index = bisect_right(self._starts, vaddr) - 1
        return self.spans[index] if index >= 0 and vaddr < self.spans[index].end else None

    def is_marked(self, vaddr: int, marks: tuple[bytes, ...]) -> bool:
        """Whether one of some instructions, which have one size, is at an address."""
        code = self.image.code_range_of(vaddr) if marks else None
        return code is not None and self.code.read(code, vaddr, vaddr + len(marks[0])) in marks

    def at(self, vaddr: int) -> Decoded | None:
        """Return the instruction at an address; None where the spans have none."""
        found = self._swept.get(vaddr) or self._found.get(vaddr)
        if found is not None:
            return found
        span = self.span_of(vaddr)
        if span is None or vaddr % self.arch.alignment:
            return None
        end = min(span.end, vaddr + _SHORT_PIECE_SIZE)
        self._add(self._disassembler.disasm_lite(self._read(span, vaddr, end), vaddr), end)
        return self._found.get(vaddr)

    def disassemble(self, data: bytes, vaddr: int) -> Iterator[tuple[int, int, str, str]]:
        """Yield the instructions of some bytes at an address: address, size, mnemonic, operands."""
        yield from self._disassembler.disasm_lite(data, vaddr)

    def __contains__(self, vaddr: object) -> bool:
        """Whether the first pass has an instruction at an address."""
        return vaddr in self._swept

    def _read(self, span: Span, start: int, end: int) -> bytes:
        data = self._bytes.get(span.start)
        if data is None:
            code = self.image.code_range_of(span.start)
            data = b"" if code is None else self.code.read(code, span.start, span.end)
            self._bytes[span.start] = data
        return data[start - span.start : end - span.start]

    def _sweep(self, span: Span) -> None:
        vaddr = span.start + -span.start % self.arch.alignment
        # The file may have fewer bytes than there are addresses.
        end_vaddr = span.start + len(self._read(span, span.start, span.end))
        while vaddr < end_vaddr:
            end = min(end_vaddr, vaddr + _PIECE_SIZE)
            # The last instruction of a piece may be cut short.
            limit = end if end == end_vaddr else end - _MAX_INSTRUCTION_SIZE
            reached = self._add(self._disassembler.disasm_lite(self._read(span, vaddr, end), vaddr), limit)
            vaddr = reached if reached > vaddr else vaddr + self.arch.alignment

    def _add(self, instructions: Iterable[tuple[int, int, str, str]], limit: int) -> int:
        """Keep the instructions that start before an address, up to one that is known; return where the last ends."""
        found, swept, by_text = self._found, self._swept, self._by_text
        reached = 0
        for address, size, mnemonic, operands in instructions:
            if address >= limit or address in found or address in swept:
                break
            decoded = by_text.get((mnemonic, operands, size))
            if decoded is None:
                decoded = self._decode(address, size, mnemonic, operands)
            found[address] = decoded
            reached = address + size
            if decoded.changed & _TABLE_BIT:
                self._note_table(decoded.effect, address)
        # Bytes that are no instruction are passed over one by one.
        return reached

    def _decode(self, address: int, size: int, mnemonic: str, operands: str) -> Decoded:
        """Return what a text says that is new, or that counts for one address."""
        effect = self.arch.effect_of(address, size, mnemonic, operands)
        if effect is not None and effect.flow is Flow.EXECUTE:
            effect = self._executed(effect.target, operands)
        decoded = Decoded(size, effect, _changed(effect))
        if effect is None or (effect.target is None and not self.arch.depends_on_address(mnemonic, operands)):
            self._by_text[mnemonic, operands, size] = decoded
        else:
            self._note(effect, address + size)
        return decoded

    def _executed(self, target: int | None, operands: str) -> Effect | None:
        """Return the effect of an instruction that executes the one at an address."""
        code = None if target is None else self.image.code_range_of(target)
        if target is None or code is None or self.arch.effect_of_executed is None:
            return None
        data = self.image.code_bytes(code, target, min(code.end_vaddr, target + _MAX_INSTRUCTION_SIZE))
        for _, _, mnemonic, executed in self._disassembler.disasm_lite(data, target, 1):
            return self.arch.effect_of_executed(operands, mnemonic, executed)
        return None

    def _note(self, effect: Effect, end_vaddr: int) -> None:
        if effect.target is not None:
            (self.call_targets if effect.flow is Flow.CALL else self.branch_targets).add(effect.target)
            return
        for step in effect.steps:
            if step.op is Op.CONSTANT:
                self.constants.add(step.offset)
                self._last_constants[step.register] = step.offset, end_vaddr

    def _note_table(self, effect: Effect | None, vaddr: int) -> None:
        """Note where a table begins, by the address in the register that it counts from."""
        for step in effect.steps if effect is not None else ():
            if step.op is Op.LOAD_INDEXED and step.source in self._last_constants:
                constant = self._value_at(step.source, vaddr)
                if constant is not None:
                    self.constants.add(constant + step.offset)

    def _value_at(self, register: int, vaddr: int) -> int | None:
        """Return the address in a register, if the instructions since it was loaded are few and add numbers at most."""
        value, at = self._last_constants[register]
        for _ in range(_MAX_DISTANCE):
            if at == vaddr:
                return value
            decoded = self._found.get(at)
            if decoded is None or decoded.effect is None or decoded.effect.flow not in (Flow.NEXT, Flow.BRANCH):
                return None
            if decoded.changed >> register & 1:
                step = decoded.effect.steps[0]
                if step.op is not Op.MOVE or step.register != register or step.source != register:
                    return None
                value += step.offset
            at += decoded.size
        return None


def _changed(effect: Effect | None) -> int:
    """Return a number with a bit for each register that an instruction changes, of those with numbers below 64."""
    bits = 0
    for step in effect.steps if effect is not None else ():
        if step.op is Op.LOAD_INDEXED:
            bits |= _TABLE_BIT
        if step.op is Op.STORE:
            bits |= MEMORY_BIT
        elif step.register < _REGISTER_BITS and step.op != Op.COMPARE:
            bits |= 1 << step.register
    return bits
