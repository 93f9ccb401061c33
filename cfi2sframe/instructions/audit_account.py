# SPDX-License-Identifier: Apache-2.0
"""An audit with names, and the instructions around each contradiction: what reports print."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.ranges import Span
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.instructions.audit import audit
from cfi2sframe.instructions.decoder import Decoder

if TYPE_CHECKING:
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.instructions.audit_records import Audit, Contradiction

#: Contradictions of a file that are shown with the instructions around them.
_MAX_SHOWN: Final = 1000
#: Bytes of a function that are decoded to find the instructions before a contradiction.
_MAX_CODE_SIZE: Final = 1 << 16
_MAX_FUNCTIONS: Final = 20
#: The only operand of a jump or a call, as capstone writes it.
_ADDRESS: Final = re.compile(r"#?0x[0-9a-f]+")


class ShownInstruction(NamedTuple):
    """An instruction near a contradiction; `is_first`: the first one that contradicts."""

    place: str
    text: str
    is_first: bool


class ShownContradiction(NamedTuple):
    """A `Contradiction` with its place, an address or `SECTION+OFFSET` in an object, and its function's name.

    `function` ends in the distance of the first instruction from the function's start. `also_at` are more places.
    """

    place: str
    function: str
    finding: Contradiction
    also_at: tuple[str, ...]
    instructions: tuple[ShownInstruction, ...]


class Undescribed(NamedTuple):
    """Instructions of a function that were not decided, and why."""

    place: str
    function: str
    reason: str
    instruction_count: int


class Account(NamedTuple):
    """The audit of a file, named; `undecided` has the functions with the most instructions that were not decided."""

    audit: Audit
    findings: tuple[ShownContradiction, ...]
    undecided: tuple[Undescribed, ...]


def account(image: ElfImage, kind: CfiKind | None = None, *, context: int = 3) -> Account:
    """Audit an image, and show up to `context` instructions before and after the first of each contradiction.

    Raises what `auditing.audit` raises.
    """
    result = audit(image, kind)
    few = sorted(result.undecided_functions, key=lambda each: (-each[2], each[0]))[:_MAX_FUNCTIONS]
    vaddrs = {finding.function_vaddr for finding in result.findings} | {vaddr for vaddr, _, _ in few}
    names = image.names_of(vaddrs)
    reader = _CodeReader(image)
    findings = tuple(
        ShownContradiction(
            reader.place(finding.vaddr),
            _function(names, finding),
            finding,
            tuple([reader.place(vaddr) for vaddr in finding.also_at]),
            reader.around(finding, context) if number < _MAX_SHOWN and context else (),
        )
        for number, finding in enumerate(result.findings)
    )
    undecided = tuple(
        Undescribed(reader.place(vaddr), names.get(vaddr, ""), reason.value, count) for vaddr, reason, count in few
    )
    return Account(result, findings, undecided)


def _function(names: dict[int, str], finding: Contradiction) -> str:
    name = names.get(finding.function_vaddr, "")
    return f"{name}+0x{finding.vaddr - finding.function_vaddr:x}" if name else ""


class _CodeReader:
    """Decodes the instructions around addresses."""

    def __init__(self, image: ElfImage) -> None:
        self.image = image
        spans = [Span(code.start_vaddr, code.end_vaddr) for code in image.code_ranges]
        self.decoder = Decoder(image, spans, "instructions are shown")

    def place(self, vaddr: int) -> str:
        """Return an address as a user knows it."""
        place = self.image.place(vaddr)
        if self.image.is_relocatable:
            return f"{shown_name(place.section_name)}+0x{place.offset:x}"
        return f"0x{place.offset:x}"

    def around(self, finding: Contradiction, context: int) -> tuple[ShownInstruction, ...]:
        """Return some instructions before and after the first one of a finding, from its function's start on."""
        code = self.image.code_range_of(finding.vaddr)
        if code is None:
            return ()
        start = max(code.start_vaddr, finding.function_vaddr)
        if not start <= finding.vaddr < start + _MAX_CODE_SIZE:
            start = finding.vaddr
        before: list[ShownInstruction] = []
        decoded = self.decoder.disassemble(start, min(code.end_vaddr, finding.vaddr + 16 * (context + 1)))
        for vaddr, _, mnemonic, operands in decoded:
            text = self._text(mnemonic, operands)
            if vaddr >= finding.vaddr:
                after = [
                    ShownInstruction(self.place(at), self._text(m, o), False)
                    for at, _, m, o in islice(decoded, context)
                ]
                first = ShownInstruction(self.place(vaddr), text, vaddr == finding.vaddr)
                return (*before[len(before) - min(context, len(before)) :], first, *after)
            before.append(ShownInstruction(self.place(vaddr), text, is_first=False))
        return ()

    def _text(self, mnemonic: str, operands: str) -> str:
        """Return an instruction's text; in an object, with the name of the function that it calls."""
        if self.image.is_relocatable and _ADDRESS.fullmatch(operands):
            vaddr = int(operands.lstrip("#"), 0)
            operands = self.decoder.code.imports.get(vaddr) or self.place(vaddr)
        return f"{mnemonic} {operands}".rstrip()
