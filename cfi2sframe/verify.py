# SPDX-License-Identifier: Apache-2.0
"""CFI rows against decoded SFrame rows, at every boundary of either side, and the rules that readers insist on.

Judges rules itself: it shares with lowering only the shapes of expressions, and with the encoder nothing.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.dwarf.expression import Load, Sum, classify
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    InRegister,
    IsExpression,
    NoRule,
    RaSigning,
    RegisterOffset,
    ValueAtCfa,
)
from cfi2sframe.errors import CfiError
from cfi2sframe.lower import Skip, describe_frame_rule, describe_rule
from cfi2sframe.sframe.lookup import Lookup, row_at
from cfi2sframe.sframe.model import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, CfiRow, RegisterRule, RowState
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.pipeline import Cfi, CfiEntry
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState

Kind = Literal["wrong", "missing", "extra", "invariant"]


class Difference(NamedTuple):
    """Where a section does not say what it should: an address (for `invariant`, of the function) and what is wrong."""

    kind: Kind
    vaddr: int
    message: str


class Verification(NamedTuple):
    """The outcome: how much was compared, what the version cannot say and is rightly absent, and every difference."""

    function_count: int
    point_count: int
    left_out_count: int
    differences: tuple[Difference, ...]

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return not self.differences


def verify_section(image: ElfImage, cfi: Cfi, decoded: DecodedSection) -> Verification:
    """Compare a decoded section with the image's CFI (lowered for the section's version) and check its invariants."""
    comparison = _Comparison(image, cfi, decoded)
    comparison.compare_all()
    comparison.find_extra()
    comparison.differences += check_invariants(decoded, image)
    ordered = sorted(set(comparison.differences), key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(comparison.truth), comparison.point_count, comparison.left_out_count, tuple(ordered))


class _Comparison:
    def __init__(self, image: ElfImage, cfi: Cfi, decoded: DecodedSection) -> None:
        self.arch = image.arch
        self.version = decoded.header.version
        self.lookup = Lookup(decoded)
        self.truth = sorted((e for e in cfi.entries if _describes_code(e, image)), key=lambda e: e.fde.pc_begin_vaddr)
        self.truth_starts = [e.fde.pc_begin_vaddr for e in self.truth]
        self.furthest_ends: list[int] = []
        furthest = 0
        for entry in self.truth:
            furthest = max(furthest, entry.fde.pc_begin_vaddr + entry.fde.pc_range)
            self.furthest_ends.append(furthest)
        self.differences: list[Difference] = []
        self.point_count = 0
        self.left_out_count = 0
        #: (program, rows, size) -> points compared, and (delta, message) of what differs
        self.memo: dict[tuple[int, int, int], tuple[int, tuple[tuple[int, str], ...]]] = {}

    def compare_all(self) -> None:
        functions, starts = self.lookup.functions, self.lookup.starts
        for entry in self.truth:
            fde = entry.fde
            index = bisect_left(starts, fde.pc_begin_vaddr)
            if index < len(functions):
                function = functions[index]
                if (
                    function.start_vaddr == fde.pc_begin_vaddr
                    and function.size == fde.pc_range
                    and not function.is_pcmask
                ):
                    self.compare_whole(entry, function)
                    continue
            self.compare_pieces(entry)

    def compare_whole(self, entry: CfiEntry, function: DecodedFunction) -> None:
        """Compare an FDE with the function of the same range; equal pairs are compared once."""
        fde = entry.fde
        # Decoded rows that share bytes are one object, and the section keeps them alive.
        key = (entry.program.number, id(function.rows), fde.pc_range)
        known = self.memo.get(key)
        if known is None:
            known = self.memo[key] = self.compare_rows(entry, function)
        count, problems = known
        self.point_count += count
        for delta, message in problems:
            self.report_wrong(entry, fde.pc_begin_vaddr + delta, message)

    def compare_rows(self, entry: CfiEntry, function: DecodedFunction) -> tuple[int, tuple[tuple[int, str], ...]]:
        rows, size = entry.program.rows.rows, entry.fde.pc_range
        deltas = {row.start_delta for row in rows} | {row.row.start_delta for row in function.rows}
        points = sorted(delta for delta in deltas if delta < size)
        problems = []
        for delta in points:
            found = row_at(function, function.start_vaddr + delta, self.version)
            problem = judge(_state_at(rows, delta), None if found is None else found.row.state, self.arch)
            if problem is not None:
                problems.append((delta, problem))
        return len(points), tuple(problems)

    def compare_pieces(self, entry: CfiEntry) -> None:
        """Compare an FDE whose range is not one function's: left out, cut, or split."""
        begin = entry.fde.pc_begin_vaddr
        end = begin + entry.fde.pc_range
        first = max(0, bisect_right(self.lookup.starts, begin) - 1)
        last = bisect_left(self.lookup.starts, end)
        points = {begin + row.start_delta for row in entry.program.rows.rows}
        for function in self.lookup.functions[first:last]:
            points.update(_boundaries(function))
        is_missing = False
        for pc in sorted(point for point in points if begin <= point < end):
            self.point_count += 1
            found = self.lookup.find(pc)
            if found is None:
                is_missing = True
                continue
            state = None if found.row is None else found.row.row.state
            problem = judge(_state_at(entry.program.rows.rows, pc - begin), state, self.arch)
            if problem is not None:
                self.report_wrong(entry, pc, problem)
        if is_missing:
            if isinstance(entry.program.result, Skip):
                self.left_out_count += 1
            else:
                self.differences.append(Difference("missing", begin, "no SFrame FDE, though it can be said"))

    def report_wrong(self, entry: CfiEntry, pc: int, message: str) -> None:
        """Report a difference, unless another FDE covers the address and agrees: two FDEs leave the truth open."""
        found = self.lookup.find(pc)
        state = None if found is None or found.row is None else found.row.row.state
        for other in self.entries_at(pc):
            if other is not entry:
                delta = pc - other.fde.pc_begin_vaddr
                if judge(_state_at(other.program.rows.rows, delta), state, self.arch) is None:
                    return
        self.differences.append(Difference("wrong", pc, message))

    def entries_at(self, pc: int) -> Iterator[CfiEntry]:
        index = bisect_right(self.truth_starts, pc) - 1
        while index >= 0 and self.furthest_ends[index] > pc:
            entry = self.truth[index]
            if pc < entry.fde.pc_begin_vaddr + entry.fde.pc_range:
                yield entry
            index -= 1

    def find_extra(self) -> None:
        """Report functions that hold addresses of which the CFI says nothing."""
        covered_end = 0
        index = 0
        for function in self.lookup.functions:
            position, end = function.start_vaddr, function.start_vaddr + function.size
            while index < len(self.truth) and self.truth_starts[index] <= position:
                covered_end = max(covered_end, self.furthest_ends[index])
                index += 1
            ahead = index
            reach = covered_end
            while reach < end and ahead < len(self.truth) and self.truth_starts[ahead] <= reach:
                reach = max(reach, self.furthest_ends[ahead])
                ahead += 1
            if reach < end:
                where = max(position, reach)
                self.differences.append(Difference("extra", where, f"no CFI for {end - where} bytes of a function"))


def _describes_code(entry: CfiEntry, image: ElfImage) -> bool:
    begin, size = entry.fde.pc_begin_vaddr, entry.fde.pc_range
    return size > 0 and image.holds_code(begin, begin + size)


def _boundaries(function: DecodedFunction) -> Iterator[int]:
    start, size = function.start_vaddr, function.size
    yield start
    yield start + size
    step = function.repeat_size if function.is_pcmask else 0
    for block in range(0, size, step) if step else (0,):
        for row in function.rows:
            yield start + block + row.row.start_delta


def _state_at(rows: tuple[CfiRow, ...], delta: int) -> RowState:
    return rows[bisect_right(rows, delta, key=lambda row: row.start_delta) - 1].state


# One row against another


def judge(truth: RowState, said: FrameState | None, arch: Arch) -> str | None:
    """Return how an SFrame row differs from a row of the DWARF table; None when they say the same."""
    if said is None:
        return "no row is in force"
    if truth.ra is NoRule.UNDEFINED:
        return None if said.cfa is None else "RA is undefined, but the row goes on to a caller"
    if said.cfa is None:
        return "the row says outermost frame, but RA is defined"
    if not _is_same_cfa(truth.cfa, said.cfa, arch):
        return f"CFA is {describe_rule(truth.cfa, arch)}, the row says {describe_frame_rule(said.cfa, arch)}"
    if not _is_same_register(truth.ra, said.ra, arch.ra_register, arch):
        return f"RA is {describe_rule(truth.ra, arch)}, the row says {_describe(said.ra, arch)}"
    if not _is_same_register(truth.fp, said.fp, arch.fp_register, arch):
        return f"FP is {describe_rule(truth.fp, arch)}, the row says {_describe(said.fp, arch)}"
    if not _is_sp_of_caller(truth, said.cfa, arch):
        return f"SP is {describe_rule(truth.sp, arch)}, every row says c{arch.sp_offset_from_cfa:+d}"
    if truth.signing is RaSigning.SIGNED_WITH_PC or (truth.signing is RaSigning.SIGNED) != said.mangled_ra:
        return f"RA is {truth.signing.name.lower()}, the row says {'signed' if said.mangled_ra else 'none'}"
    return None


def _is_sp_of_caller(truth: RowState, cfa: Rule, arch: Arch) -> bool:
    """Whether the caller's SP is the CFA plus the ABI's constant, as SFrame has it without saying so."""
    match truth.sp:
        case NoRule():
            return truth.sp is NoRule.UNSPECIFIED
        case ValueAtCfa(offset):
            return offset == arch.sp_offset_from_cfa
        case AtCfa():
            # Where the ABI defines the CFA by SP (s390x), the saved SP is that same value.
            return arch.sp_offset_from_cfa != 0
        case AtExpression(expression):
            address = _rule_of(expression, arch, starts_with_cfa=True)
            return address is not None and not arch.sp_offset_from_cfa and address._replace(deref=True) == cfa
        case _:
            return False


def _describe(rule: Rule | None, arch: Arch) -> str:
    return "unchanged" if rule is None else describe_frame_rule(rule, arch)


def _is_same_cfa(truth: CfaRule | None, said: Rule, arch: Arch) -> bool:
    match truth:
        case RegisterOffset(register, offset):
            return said == Rule(register, offset, deref=False)
        case CfaExpression(expression):
            return _rule_of(expression, arch, starts_with_cfa=False) == said
        case None:
            return False


def _rule_of(expression: bytes, arch: Arch, *, starts_with_cfa: bool) -> Rule | None:
    try:
        shape = classify(expression, arch.byte_order, starts_with_cfa=starts_with_cfa)
    except CfiError:
        return None
    match shape:
        case Sum(register, offset):
            return Rule(register, offset, deref=False)
        case Load(Sum(register, offset)):
            return Rule(register, offset, deref=True)
        case None:
            return None


def _is_same_register(truth: RegisterRule, said: Rule | None, own_register: int, arch: Arch) -> bool:
    match truth:
        case NoRule.UNDEFINED:
            return False
        case NoRule():
            return said is None
        case AtCfa(offset):
            return said == Rule(None, offset, deref=True)
        case ValueAtCfa(offset):
            return said == Rule(None, offset, deref=False)
        case InRegister(register):
            return said == (None if register == own_register else Rule(register, 0, deref=False))
        case AtExpression(expression):
            address = _rule_of(expression, arch, starts_with_cfa=True)
            return address is not None and not address.deref and said == address._replace(deref=True)
        case IsExpression(expression):
            value = _rule_of(expression, arch, starts_with_cfa=True)
            return value is not None and said == value


# What readers insist on


def check_invariants(decoded: DecodedSection, image: ElfImage | None = None) -> list[Difference]:
    """Check what the strictest readers require of a section; of unsorted ones (objects) what linkers require."""
    return [*_check_header(decoded), *_check_functions(decoded, image)]


def _check_header(decoded: DecodedSection) -> Iterator[Difference]:
    from cfi2sframe.sframe import constants as s

    header = decoded.header
    table_size = header.fde_count * s.FDE_SIZE[header.version]
    fre_count = sum(len(function.rows) for function in decoded.functions)
    expectations = (
        (
            not header.flags & ~s.FLAGS_BY_VERSION[header.version],
            f"flags 0x{header.flags:x} are not of this version",
        ),
        (
            header.version < s.SFRAME_VERSION_3 or header.start_is_pcrel,
            "version 3 without SFRAME_F_FDE_FUNC_START_PCREL",
        ),
        (header.byte_order == decoded.arch.byte_order, f"not in the byte order of {decoded.arch.name}"),
        (header.auxhdr_size == 0, f"an auxiliary header of {header.auxhdr_size} bytes"),
        (header.fde_count > 0, "no functions"),
        (header.fre_count > 0, "no rows"),
        (header.fde_offset == 0, f"sfh_fdeoff is {header.fde_offset}, not 0"),
        (
            header.fre_offset == table_size,
            f"sfh_freoff is {header.fre_offset}, the table's size {table_size}",
        ),
        (
            header.fre_count == fre_count,
            f"sfh_num_fres is {header.fre_count}, the functions have {fre_count} rows",
        ),
        (
            s.HEADER_SIZE + header.auxhdr_size + header.fre_offset + header.fre_size == decoded.section_size,
            "sfh_fre_len does not reach the section's end",
        ),
        (header.fixed_ra_offset == decoded.arch.fixed_ra_offset, f"fixed RA offset {header.fixed_ra_offset}"),
        (header.fixed_fp_offset == 0, f"fixed FP offset {header.fixed_fp_offset}"),
    )
    for holds, message in expectations:
        if not holds:
            yield Difference("invariant", decoded.section_vaddr, message)


def _check_functions(decoded: DecodedSection, image: ElfImage | None) -> Iterator[Difference]:
    previous_end: int | None = None
    previous_start = -1
    for function in decoded.functions:
        start = function.start_vaddr
        if decoded.header.is_sorted:
            if previous_end is not None and start <= previous_start:
                yield Difference("invariant", start, "starts do not ascend")
            elif previous_end is not None and start < previous_end:
                yield Difference("invariant", start, "overlaps the function before it")
            previous_start, previous_end = start, start + function.size
        if image is not None and image.code_range_of(start) is None:
            yield Difference("invariant", start, "starts outside the executable sections")
        for message in _check_rows(function, decoded.header.version):
            yield Difference("invariant", start, message)


def _check_rows(function: DecodedFunction, version: int) -> Iterator[str]:
    if not function.rows:
        yield "no rows"
        return
    if function.size == 0:
        yield "no size"
    deltas = [row.row.start_delta for row in function.rows]
    if deltas[0] != 0:
        yield f"the first row starts at {deltas[0]}"
    if any(b <= a for a, b in pairwise(deltas)):
        yield "row starts do not ascend"
    if version >= 2 and function.is_pcmask != bool(function.repeat_size):
        yield f"block size {function.repeat_size} of a {'PCMASK' if function.is_pcmask else 'PCINC'} function"
    limit = function.repeat_size if function.is_pcmask and function.repeat_size else function.size
    if deltas[-1] >= limit:
        yield f"the last row starts at {deltas[-1]}, past the end at {limit}"
