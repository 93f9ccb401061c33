# SPDX-License-Identifier: Apache-2.0
"""CFI rows against decoded SFrame rows, at every boundary of either side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from math import lcm
from typing import TYPE_CHECKING, Final

from cfi2sframe.describe import describe_frame_rule
from cfi2sframe.dwarf.expression import Shapes
from cfi2sframe.plt.records import StubReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_3
from cfi2sframe.sframe.lookup import Lookup, row_at
from cfi2sframe.verification.blocks import COMPARED, Blocks
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.overlapping_fdes import find_holdings
from cfi2sframe.verification.records import Difference, Verification
from cfi2sframe.verification.row_difference import judge

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.dwarf.programs import Cfi, CfiEntry
    from cfi2sframe.dwarf.rules import CfiRow, RowState
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState, Function
    from cfi2sframe.verification.overlapping_fdes import Holding

#: Work on a place where two rows are compared.
_POINT_STEPS: Final = 4
#: Bytes of memory that a difference takes.
_DIFFERENCE_SIZE: Final = 250


def verify_section(
    image: ElfImage, cfi: Cfi, code_map: CodeMap, skipped: Container[int], decoded: DecodedSection
) -> Verification:
    """Compare a decoded section with the image's CFI and stubs, both for the section's version, and check invariants.

    `skipped` are the numbers of the FDEs that the version cannot express.
    CFI is the truth, but for the addresses of PLT stubs, where what their instructions do is. Raises `BudgetError` when
    the comparison is out of proportion to the image: any number of functions may have the same rows.
    """
    comparison = _Comparison(image, cfi, code_map, skipped, decoded)
    comparison.compare_all()
    comparison.compare_stubs()
    comparison.find_extra()
    comparison.differences += check_invariants(decoded, image)
    ordered = sorted(set(comparison.differences), key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(comparison.truth), comparison.point_count, comparison.left_out_count, tuple(ordered))


class _Comparison:
    def __init__(
        self, image: ElfImage, cfi: Cfi, code_map: CodeMap, skipped: Container[int], decoded: DecodedSection
    ) -> None:
        self.skipped = skipped
        self.stubs = code_map.stubs
        self.stub_ranges = [(f.start_vaddr, f.start_vaddr + f.size) for f in self.stubs.functions]
        contradicted = [
            (skip.start_vaddr, skip.start_vaddr + skip.size)
            for skip in self.stubs.left_out
            if skip.reason is StubReason.CFI_DIFFERS
        ]
        self.not_for_cfi = _merged(sorted(self.stub_ranges + contradicted))
        self.arch = image.arch
        self.shapes = Shapes(image.byte_order)
        self.version = decoded.header.version
        self.lookup = Lookup(decoded)
        self.truth = sorted((e for e in cfi.entries if _describes_code(e, image)), key=lambda e: e.fde.pc_begin_vaddr)
        self.differences: list[Difference] = []
        self.point_count = 0
        self.left_out_count = 0
        #: States of either side that agree, by identity: both sides keep equal ones as one object, and keep them alive.
        self.agreeing: set[tuple[int, int]] = set()
        self.budget = image.budget
        self.blocks = Blocks(self.lookup, image.budget)
        #: Whether a list of rows, by identity, has one whose RA is signed.
        self.signing: dict[int, bool] = {}
        #: Ascending starts of a list of rows, by identity.
        self.row_starts: dict[int, list[int]] = {}
        #: (program, rows, size) -> points compared, and (delta, message) of what differs
        self.memo: dict[tuple[int, int, int], tuple[int, tuple[tuple[int, str], ...]]] = {}

    def compare_all(self) -> None:
        truth = self.truth
        starts = [entry.fde.pc_begin_vaddr for entry in truth]
        ends = [start + entry.fde.pc_range for start, entry in zip(starts, truth, strict=True)]
        first = 0
        while first < len(truth):
            end, last = ends[first], first + 1
            while last < len(truth) and starts[last] < end:
                end = max(end, ends[last])
                last += 1
            function = self.function_of(truth[first]) if last == first + 1 else None
            if function is None:
                self.compare_pieces(truth[first:last], starts[first], end)
            else:
                self.compare_whole(truth[first], function)
            first = last

    def function_of(self, entry: CfiEntry) -> DecodedFunction | None:
        """Return the first function that starts with an FDE, if it has the FDE's range."""
        begin = entry.fde.pc_begin_vaddr
        index = bisect_left(self.lookup.starts, begin)
        if index == len(self.lookup.starts):
            return None
        function = self.lookup.functions[index]
        is_same = function.start_vaddr == begin and function.size == entry.fde.pc_range
        return function if is_same and not function.is_pcmask else None

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
        if problems:
            self.budget.hold(_DIFFERENCE_SIZE * len(problems), "the differences")
        for delta, message in problems:
            self.differences.append(Difference("wrong", fde.pc_begin_vaddr + delta, message))
        self.compare_attributes((entry,), function)

    def compare_attributes(
        self, entries: Sequence[CfiEntry], function: DecodedFunction, *, signs_ra: bool | None = None
    ) -> None:
        """Compare what holds for a whole function: RA's column, the mark of signal frames, the key of a signed RA.

        Of several FDEs that hold its addresses, one has to say the same. `signs_ra`: whether the function says of an
        address that they hold that RA is signed; None: of any address that it has.
        """
        problems = [self.judge_attributes(entry, function, signs_ra=signs_ra) for entry in entries]
        if None not in problems:
            pc = max(entries[0].fde.pc_begin_vaddr, function.start_vaddr)
            self.differences += [Difference("wrong", pc, problem) for problem in problems if problem is not None]

    def judge_attributes(self, entry: CfiEntry, function: DecodedFunction, *, signs_ra: bool | None) -> str | None:
        """Return how a function's attributes differ from what its CIE says; None when they say the same."""
        cie = entry.fde.cie
        if cie.ra_register != self.arch.ra_register:
            name = self.arch.register_name(self.arch.ra_register)
            return f"the return address is in column {cie.ra_register}, rows speak of {name}"
        if self.version >= SFRAME_VERSION_3 and cie.is_signal_frame != function.is_signal_frame:
            if cie.is_signal_frame:
                return "a signal frame that is not marked as one"
            return "marked as a signal frame, which it is not"
        # Where no RA is signed, the key is of no use, and assemblers differ.
        if cie.uses_b_key != function.uses_b_key and (self.has_signed_ra(function) if signs_ra is None else signs_ra):
            keys = ("B", "A") if cie.uses_b_key else ("A", "B")
            return f"RA is signed with key {keys[0]}, the function says {keys[1]}"
        return None

    def has_signed_ra(self, function: DecodedFunction) -> bool:
        known = self.signing.get(id(function.rows))
        if known is None:
            known = self.signing[id(function.rows)] = any(row.row.state.mangled_ra for row in function.rows)
        return known

    def compare_rows(self, entry: CfiEntry, function: DecodedFunction) -> tuple[int, tuple[tuple[int, str], ...]]:
        rows, size = entry.program.table.rows, entry.fde.pc_range
        if self.is_same_throughout(rows, function):
            return len(rows), ()
        self.budget.spend(_POINT_STEPS * (len(rows) + len(function.rows)), COMPARED)
        deltas = {row.start_delta for row in rows} | {row.row.start_delta for row in function.rows}
        points = sorted(delta for delta in deltas if delta < size)
        problems = []
        for delta in points:
            found = row_at(function, function.start_vaddr + delta, self.version)
            problem = judge(_state_at(rows, delta), None if found is None else found.row.state, self.arch, self.shapes)
            if problem is not None:
                problems.append((delta, problem))
        return len(points), tuple(problems)

    def is_same_throughout(self, rows: tuple[CfiRow, ...], function: DecodedFunction) -> bool:
        """Whether rows of both sides start at the same places and agree: nearly always so, and quickly seen."""
        if len(rows) != len(function.rows):
            return False
        agreeing = self.agreeing
        for truth, said in zip(rows, function.rows, strict=True):
            row = said.row
            if truth[0] != row[0]:
                return False
            pair = (id(truth[1]), id(row[1]))
            if pair not in agreeing:
                if judge(truth[1], row[1], self.arch, self.shapes) is not None:
                    return False
                agreeing.add(pair)
        return True

    def compare_pieces(self, entries: Sequence[CfiEntry], begin: int, end: int) -> None:
        """Compare FDEs that overlap, or one that is left out, cut or split: they have `[begin, end)` together."""
        boundaries = sorted(self.boundaries_in(begin, end))
        absent: list[int] = []
        missing: list[int] = []
        for holding in find_holdings(entries, self.skipped):
            gaps = self.compare_holding(holding, boundaries)
            absent += gaps
            # Where FDEs overlap, one that cannot be said may hold, and is rightly absent.
            missing += () if holding.may_be_absent else gaps
        for entry in entries:
            fde = entry.fde
            if _has_any(missing, fde.pc_begin_vaddr, fde.pc_range):
                message = "no SFrame FDE, though it can be said"
                self.differences.append(Difference("missing", fde.pc_begin_vaddr, message))
            elif entry.number in self.skipped and _has_any(absent, fde.pc_begin_vaddr, fde.pc_range):
                self.left_out_count += 1

    def compare_holding(self, holding: Holding, boundaries: Sequence[int]) -> list[int]:
        """Compare what some FDEs hold with the section; return the addresses of which the section says nothing."""
        begin, end, entries, _ = holding
        points = {begin, *boundaries[bisect_right(boundaries, begin) : bisect_left(boundaries, end)]}
        for entry in entries if self.blocks else entries[:1]:
            points.update(_row_starts_in(entry, begin, end))
        points |= self.blocks.points_in(points, end)
        absent: list[int] = []
        #: The functions met, by number, and whether they sign RA here.
        met: dict[int, tuple[DecodedFunction, bool]] = {}
        for pc, next_pc in pairwise((*sorted(points), end)):
            if _holds(self.not_for_cfi, pc):
                continue
            self.point_count += 1
            found = self.lookup.find(pc)
            if found is None:
                absent.append(pc)
                continue
            said = None if found.row is None else found.row.row.state
            function, signs_ra = met.get(found.function.index, (found.function, False))
            met[function.index] = function, signs_ra or (said is not None and said.mangled_ra)
            self.compare_states(entries, said, pc, next_pc)
        for function, signs_ra in met.values():
            self.compare_attributes(entries, function, signs_ra=signs_ra)
        return absent

    def compare_states(self, entries: Sequence[CfiEntry], said: FrameState | None, pc: int, end: int) -> None:
        """Compare a state that is said of `[pc, end)` with FDEs, the first of which has one state there.

        It is a difference unless one of them agrees at each address: two FDEs over one address leave the truth open.
        """
        while pc < end:
            problems: list[str] = []
            for entry in entries:
                problem = judge(_state_in_force(entry, pc), said, self.arch, self.shapes)
                if problem is None:
                    break
                problems.append(problem)
            else:
                self.differences += [Difference("wrong", pc, problem) for problem in problems]
                return
            if entry is entries[0]:
                return
            pc = next(_row_starts_in(entry, pc, end), end)

    def compare_stubs(self) -> None:
        """Compare the stubs that can be described with the rows that the section has for them."""
        for stub in self.stubs.functions:
            self.compare_stub(stub)

    def compare_stub(self, stub: Function) -> None:
        start, size, body = stub
        step = body.repeat_size or size
        starts = body.starts
        edges = sorted({start, *self.boundaries_in(start, start + size)})
        for begin, edge in pairwise((*edges, start + size)):
            holder = self.lookup.holder_of(begin)
            if holder is None:
                self.point_count += 1
                self.differences.append(Difference("missing", start, "no SFrame FDE for a PLT stub"))
                return
            # From then on both sides repeat themselves.
            end = min(edge, begin + lcm(step, self.blocks.period(holder)))
            first_block = (begin - start) // step * step
            rows = {start + block + delta for block in range(first_block, end - start, step) for delta in starts}
            points = {begin, *(pc for pc in rows if begin < pc < end)}
            for pc in sorted(points | self.blocks.points_in(points, end)):
                self.compare_stub_at(pc, body.states[bisect_right(starts, (pc - start) % step) - 1])

    def compare_stub_at(self, pc: int, truth: FrameState) -> None:
        self.point_count += 1
        found = self.lookup.find(pc)
        said = None if found is None or found.row is None else found.row.row.state
        if said != truth:
            message = f"the stub has {_state_text(truth, self.arch)}, the row says {_state_text(said, self.arch)}"
            self.differences.append(Difference("wrong", pc, message))

    def boundaries_in(self, begin: int, end: int) -> set[int]:
        """Return where functions of the section and their rows start or end in a range."""
        first = max(0, bisect_right(self.lookup.starts, begin) - 1)
        last = bisect_left(self.lookup.starts, end)
        points: set[int] = set()
        for index in range(first, last):
            # Where the next function starts, this one is no longer found, whatever its size.
            limit = min(end, self.lookup.starts[index + 1]) if index + 1 < last else end
            points.update(self.boundaries_of(self.lookup.functions[index], begin, limit))
        return {point for point in points if begin <= point < end}

    def boundaries_of(self, function: DecodedFunction, begin: int, end: int) -> Iterator[int]:
        """Yield where a function and its rows start and end; rows of repeating blocks are `Blocks`'s."""
        start, size = function.start_vaddr, function.size
        yield start
        yield start + size
        if function.is_pcmask:
            return
        deltas = self.row_starts.get(id(function.rows))
        if deltas is None:
            deltas = self.row_starts[id(function.rows)] = sorted({row.row.start_delta for row in function.rows})
        first, last = bisect_left(deltas, begin - start), bisect_left(deltas, min(end, start + size) - start)
        # Any number of functions may have the same rows.
        self.budget.spend(_POINT_STEPS * (last - first), COMPARED)
        for delta in deltas[first:last]:
            yield start + delta

    def find_extra(self) -> None:
        """Report functions that hold addresses of which neither CFI nor stubs say anything."""
        known = [(e.fde.pc_begin_vaddr, e.fde.pc_begin_vaddr + e.fde.pc_range) for e in self.truth]
        covered = _merged(sorted(known + self.stub_ranges))
        starts = [start for start, _ in covered]
        next_starts = (*self.lookup.starts[1:], 1 << 64)
        for function, next_start in zip(self.lookup.functions, next_starts, strict=False):
            # What another function holds is that one's: of functions that overlap, each would have all their gaps.
            position, end = function.start_vaddr, min(function.start_vaddr + function.size, next_start)
            while position < end:
                index = bisect_right(starts, position) - 1
                if index >= 0 and position < covered[index][1]:
                    position = covered[index][1]
                    continue
                gap_end = min(end, starts[index + 1]) if index + 1 < len(starts) else end
                message = f"no CFI for {gap_end - position} bytes of a function"
                self.differences.append(Difference("extra", position, message))
                position = gap_end


def _merged(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Join sorted ranges that touch."""
    merged: list[tuple[int, int]] = []
    for start, end in ranges:
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _state_text(state: FrameState | None, arch: Arch) -> str:
    if state is None:
        return "nothing"
    if state.cfa is None:
        return "RA undefined"
    texts = [f"CFA={describe_frame_rule(state.cfa, arch)}"]
    texts += [
        f"{name}={describe_frame_rule(rule, arch)}" for name, rule in (("RA", state.ra), ("FP", state.fp)) if rule
    ]
    return " ".join(texts)


def _holds(ranges: Sequence[tuple[int, int]], vaddr: int) -> bool:
    index = bisect_right(ranges, (vaddr, 1 << 64)) - 1
    return index >= 0 and vaddr < ranges[index][1]


def _describes_code(entry: CfiEntry, image: ElfImage) -> bool:
    begin, size = entry.fde.pc_begin_vaddr, entry.fde.pc_range
    return size > 0 and image.holds_code(begin, begin + size)


def _has_any(points: Sequence[int], begin: int, size: int) -> bool:
    """Whether one of ascending points lies in a range."""
    index = bisect_left(points, begin)
    return index < len(points) and points[index] < begin + size


def _row_starts_in(entry: CfiEntry, after: int, end: int) -> Iterator[int]:
    """Yield the addresses of an FDE's rows that start behind one address and in front of another."""
    # Rows are not asked for: a program would make them all.
    begin, starts = entry.fde.pc_begin_vaddr, entry.program.table.starts
    for index in range(bisect_right(starts, after - begin), len(starts)):
        if begin + starts[index] >= end:
            return
        yield begin + starts[index]


def _state_in_force(entry: CfiEntry, pc: int) -> RowState:
    starts, states, _ = entry.program.table
    return states[bisect_right(starts, pc - entry.fde.pc_begin_vaddr) - 1]


def _state_at(rows: tuple[CfiRow, ...], delta: int) -> RowState:
    return rows[bisect_right(rows, delta, key=lambda row: row.start_delta) - 1].state
