# SPDX-License-Identifier: Apache-2.0
"""The CFI of a file hidden from the analysis, all of it or a random part: rows from instructions, compared with it."""

import random
from collections import Counter
from typing import NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.audit.flow import CfiFlow
from cfi2sframe.conversion.owners import map_code
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import derive
from cfi2sframe.range_map import Span
from tests.support.instructions.assembled import row_spans


class Comparison(NamedTuple):
    """Bytes of code whose CFI was hidden, those with rows from instructions, those alike; and where rows differ.

    `cfi_wrong_size`: bytes at which the CFI contradicts itself, and not the rows.
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
                    is_fault = _is_fault(theirs, image)
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


def _is_fault(theirs: RowState, image: ElfImage) -> bool:
    """Whether the CFI contradicts itself: GCC for s390x moves the CFA while SP is still saved in another register."""
    is_saved = isinstance(theirs.sp, Rule) and theirs.sp.is_register
    return is_saved and theirs.cfa == Rule(image.arch.sp_register, -image.arch.sp_offset_from_cfa, deref=False)
