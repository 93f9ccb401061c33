# SPDX-License-Identifier: Apache-2.0
"""The CFI of a file hidden from the analysis, all of it or a random part: rows from instructions, compared with it.

Assembly often moves SP and does not say so in its CFI (libgcrypt, glibc's libmvec and mpn), and LLVM for AMD64 does so
where it drops a frame early. An emulator tells whether the CFI of a function is such.
"""

import random
from collections import Counter
from functools import cache
from typing import NamedTuple

from cfi2sframe.abi import AARCH64_LE
from cfi2sframe.abi.rule import Rule
from cfi2sframe.audit.flow import CfiFlow
from cfi2sframe.conversion.owners import map_code
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import derive
from cfi2sframe.range_map import RangeMap, Span
from tests.support.instructions.assembled import row_spans
from tests.support.instructions.execution import TARGETS, Checker


class Comparison(NamedTuple):
    """Bytes of code whose CFI was hidden, those with rows from instructions, those alike; and where rows differ.

    `cfi_wrong_size`: bytes at which the CFI is at fault, and not the rows.
    """

    hidden: int
    derived: int
    same: int
    wrong: tuple[str, ...]
    wrong_size: int
    cfi_wrong_size: int


def compare(image: ElfImage, seed: int | None) -> Comparison:
    """Hide the CFI of a random half of the functions, or of all (None), and compare at every byte."""
    entries = read_programs(image, *find_cfi(image, None)).entries
    flow = CfiFlow(image, entries)
    code_map = map_code(image, entries, 3)
    stubs = [Span(stub.start_vaddr, stub.start_vaddr + stub.size) for stub in code_map.stubs.functions]
    functions = [Span(start, end) for start, end, _ in flow.owners.held()]
    functions = [each for each in functions if not any(stub.start <= each.start < stub.end for stub in stubs)]
    rng = random.Random(seed)  # noqa: S311 - the same halves each time
    shown = [] if seed is None else [each for each in functions if rng.random() < 0.5]
    hidden = sum(end - start for start, end in set(functions).difference(shown))
    counts = Counter[str]()
    wrong: list[str] = []
    judge = _Judge(image, flow)
    derived = derive(image, sorted([*stubs, *shown])).functions
    for start, end, ours in [span for each in derived for span in row_spans(*each[:3])]:
        vaddr = start
        while vaddr < end:
            found = flow.in_force(vaddr)
            stop = min(end, found.end_vaddr)
            theirs = found.row
            if theirs is not None and found.number is not None:
                counts["derived"] += stop - vaddr
                counts["same"] += (stop - vaddr) * (theirs.cfa == ours.cfa)
                if not _agree(ours, theirs):
                    is_fault = judge.is_fault(vaddr, theirs)
                    counts["cfi" if is_fault else "wrong"] += stop - vaddr
                    if not is_fault:
                        wrong.append(f"0x{vaddr:x}..0x{stop:x}: {ours} is derived, the CFI has {theirs}")
            vaddr = stop
    return Comparison(hidden, counts["derived"], counts["same"], tuple(wrong), counts["wrong"], counts["cfi"])


def _agree(ours: RowState, theirs: RowState) -> bool:
    """Whether two rows may both be right: rules that name different places are not compared."""
    if NoRule.UNDEFINED in (ours.ra, theirs.ra):
        # A process begins there.
        return True
    if ours.cfa != theirs.cfa and _register_of(ours) is not None and _register_of(ours) == _register_of(theirs):
        return False
    return (
        _may_agree(ours.fp, theirs.fp)
        and _may_agree(ours.ra, theirs.ra)
        and (ours.signing == theirs.signing or theirs.signing is RaSigning.UNKNOWN)
    )


def _register_of(row: RowState) -> int | None:
    return row.cfa.register if isinstance(row.cfa, Rule) else None


def _may_agree(ours: RegisterRule, theirs: RegisterRule) -> bool:
    both = (ours, theirs)
    if all(isinstance(rule, Rule) and rule.is_saved_at_cfa for rule in both):
        return ours == theirs
    # What is saved may be in its register still, or again.
    return True


class _Judge:
    """Tells whether CFI is at fault where rows differ from it."""

    def __init__(self, image: ElfImage, flow: CfiFlow) -> None:
        self.image = image
        self.flow = flow
        self.functions = RangeMap(None, ((start, end, Span(start, end)) for start, end, _ in flow.owners.held()))
        self.forgets_sp = cache(self._forgets_sp)

    def is_fault(self, vaddr: int, row: RowState) -> bool:
        """Return whether the CFI whose row is in force at an address contradicts itself, or is known to be wrong."""
        sp, offset = self.image.arch.sp_register, self.image.arch.sp_offset_from_cfa
        if isinstance(row.sp, Rule) and row.sp.is_register and row.cfa == Rule(sp, -offset, deref=False):
            # GCC for s390x moves the CFA while SP is still saved in another register.
            return True
        function = self.functions[vaddr]
        return function is not None and (self._is_known_to_be_wrong(function) or self.forgets_sp(function))

    def _is_known_to_be_wrong(self, function: Span) -> bool:
        """Go's assembler for AArch64 says of every frame that RA is at its bottom; this one saves it at the top."""
        symbol = self.image.functions().get(function.start)
        return self.image.arch.name == AARCH64_LE.name and symbol is not None and symbol.name == "crosscall2"

    def _forgets_sp(self, function: Span) -> bool:
        """Return whether an instruction moves SP, and the CFA, counted from SP, does not follow."""
        checker = Checker(
            next(target for target in TARGETS.values() if target.abi.arch.module == self.image.arch.module)
        )
        for vaddr, size, name, operands in self.flow.disassemble(*function):
            cfa = self._offset_from_sp(vaddr)
            next_cfa = self._offset_from_sp(vaddr + size) if vaddr + size < function.end else None
            if cfa is not None and next_cfa is not None:
                moved = checker.moved_sp(self.flow.read(vaddr, vaddr + size), f"{name} {operands}")
                if moved and next_cfa - cfa != -moved:
                    return True
        return False

    def _offset_from_sp(self, vaddr: int) -> int | None:
        row = self.flow.in_force(vaddr).row
        cfa = None if row is None else row.cfa
        is_from_sp = isinstance(cfa, Rule) and cfa.register == self.image.arch.sp_register and not cfa.deref
        return cfa.offset if isinstance(cfa, Rule) and is_from_sp else None
