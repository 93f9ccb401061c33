# SPDX-License-Identifier: Apache-2.0
"""CFI rows against decoded SFrame rows, at every boundary of either side."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

from cfi2sframe.describe import describe_frame_rule
from cfi2sframe.lower import Skip
from cfi2sframe.plt.records import StubReason
from cfi2sframe.sframe.constants import SFRAME_VERSION_1, SFRAME_VERSION_3
from cfi2sframe.sframe.lookup import Lookup, row_at
from cfi2sframe.verification.invariants import check_invariants
from cfi2sframe.verification.judge import judge
from cfi2sframe.verification.records import Difference, Verification

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.codemap import CodeMap
    from cfi2sframe.dwarf.machine import CfiProgram
    from cfi2sframe.dwarf.rules import CfiRow, RowState
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.interpret import Cfi, CfiEntry
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection
    from cfi2sframe.sframe.model import FrameState, Function


def verify_section(image: ElfImage, cfi: Cfi, code_map: CodeMap, decoded: DecodedSection) -> Verification:
    """Compare a decoded section with the image's CFI and stubs, both for the section's version, and check invariants.

    CFI is the truth, but for the addresses of PLT stubs, where what their instructions do is.
    """
    comparison = _Comparison(image, cfi, code_map, decoded)
    comparison.compare_all()
    comparison.compare_stubs()
    comparison.find_extra()
    comparison.differences += check_invariants(decoded, image)
    ordered = sorted(set(comparison.differences), key=lambda d: (d.vaddr, d.kind, d.message))
    return Verification(len(comparison.truth), comparison.point_count, comparison.left_out_count, tuple(ordered))


class _Comparison:
    def __init__(self, image: ElfImage, cfi: Cfi, code_map: CodeMap, decoded: DecodedSection) -> None:
        self.stubs = code_map.stubs
        self.stub_ranges = [(f.start_vaddr, f.start_vaddr + f.size) for f in self.stubs.functions]
        contradicted = [
            (skip.start_vaddr, skip.start_vaddr + skip.size)
            for skip in self.stubs.left_out
            if skip.reason is StubReason.CFI_DIFFERS
        ]
        self.not_for_cfi = _merged(sorted(self.stub_ranges + contradicted))
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
        #: States of either side that agree, by identity: both sides keep equal ones as one object, and keep them alive.
        self.agreeing: set[tuple[int, int]] = set()
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
        self.compare_attributes(entry, function)

    def compare_attributes(self, entry: CfiEntry, function: DecodedFunction) -> None:
        """Compare what holds for a whole function: RA's column, the mark of signal frames, the key of a signed RA."""
        problem = _judge_attributes(entry, function, self.version, self.arch)
        if problem is None:
            return
        pc = max(entry.fde.pc_begin_vaddr, function.start_vaddr)
        if all(_judge_attributes(other, function, self.version, self.arch) for other in self.entries_at(pc)):
            self.differences.append(Difference("wrong", pc, problem))

    def compare_rows(self, entry: CfiEntry, function: DecodedFunction) -> tuple[int, tuple[tuple[int, str], ...]]:
        rows, size = entry.program.rows.rows, entry.fde.pc_range
        if self.is_same_throughout(rows, function):
            return len(rows), ()
        deltas = {row.start_delta for row in rows} | {row.row.start_delta for row in function.rows}
        points = sorted(delta for delta in deltas if delta < size)
        problems = []
        for delta in points:
            found = row_at(function, function.start_vaddr + delta, self.version)
            problem = judge(_state_at(rows, delta), None if found is None else found.row.state, self.arch)
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
                if judge(truth[1], row[1], self.arch) is not None:
                    return False
                agreeing.add(pair)
        return True

    def compare_pieces(self, entry: CfiEntry) -> None:
        """Compare an FDE whose range is not one function's: left out, cut, or split."""
        begin = entry.fde.pc_begin_vaddr
        end = begin + entry.fde.pc_range
        points = {begin + row.start_delta for row in entry.program.rows.rows}
        points = {point for point in points if point < end} | self.boundaries_in(begin, end)
        points |= self.edges_in(begin, end)
        is_absent = is_missing = False
        last: DecodedFunction | None = None
        for pc in sorted(points):
            if _holds(self.not_for_cfi, pc):
                continue
            self.point_count += 1
            found = self.lookup.find(pc)
            if found is None:
                is_absent = True
                # Where FDEs overlap, one that cannot be said may hold, and is rightly absent.
                is_missing |= not any(isinstance(other.program.result, Skip) for other in self.entries_at(pc))
                continue
            if found.function is not last:
                last = found.function
                self.compare_attributes(entry, last)
            state = None if found.row is None else found.row.row.state
            problem = judge(_program_state_at(entry.program.rows, pc - begin), state, self.arch)
            if problem is not None:
                self.report_wrong(entry, pc, problem)
        if is_missing:
            self.differences.append(Difference("missing", begin, "no SFrame FDE, though it can be said"))
        elif is_absent and isinstance(entry.program.result, Skip):
            self.left_out_count += 1

    def report_wrong(self, entry: CfiEntry, pc: int, message: str) -> None:
        """Report a difference, unless another FDE covers the address and agrees: two FDEs leave the truth open."""
        found = self.lookup.find(pc)
        state = None if found is None or found.row is None else found.row.row.state
        for other in self.entries_at(pc):
            if other is not entry:
                delta = pc - other.fde.pc_begin_vaddr
                if judge(_program_state_at(other.program.rows, delta), state, self.arch) is None:
                    return
        self.differences.append(Difference("wrong", pc, message))

    def entries_at(self, pc: int) -> Iterator[CfiEntry]:
        index = bisect_right(self.truth_starts, pc) - 1
        while index >= 0 and self.furthest_ends[index] > pc:
            entry = self.truth[index]
            if pc < entry.fde.pc_begin_vaddr + entry.fde.pc_range:
                yield entry
            index -= 1

    def compare_stubs(self) -> None:
        """Compare the stubs that can be described with the rows that the section has for them."""
        for stub in self.stubs.functions:
            self.compare_stub(stub)

    def compare_stub(self, stub: Function) -> None:
        start, size, body = stub
        step = body.repeat_size or size
        points = {
            start + block + row.start_delta for block in range(0, size, step) for row in body.rows
        } | self.boundaries_in(start, start + size)
        starts = [row.start_delta for row in body.rows]
        for pc in sorted(points):
            self.point_count += 1
            found = self.lookup.find(pc)
            if found is None:
                self.differences.append(Difference("missing", start, "no SFrame FDE for a PLT stub"))
                return
            truth = body.rows[bisect_right(starts, (pc - start) % step) - 1].state
            said = None if found.row is None else found.row.row.state
            if said != truth:
                message = f"the stub has {_state_text(truth, self.arch)}, the row says {_state_text(said, self.arch)}"
                self.differences.append(Difference("wrong", pc, message))

    def boundaries_in(self, begin: int, end: int) -> set[int]:
        """Return where functions of the section and their rows start or end in a range."""
        first = max(0, bisect_right(self.lookup.starts, begin) - 1)
        last = bisect_left(self.lookup.starts, end)
        functions = self.lookup.functions[first:last]
        return {
            point
            for function in functions
            for point in _boundaries(function, begin, end, self.version)
            if begin <= point < end
        }

    def edges_in(self, begin: int, end: int) -> set[int]:
        """Return where the FDEs that have addresses in a range start or end."""
        first, last = bisect_right(self.truth_starts, begin), bisect_left(self.truth_starts, end)
        edges = set()
        for entry in (*self.entries_at(begin), *self.truth[first:last]):
            edges |= {entry.fde.pc_begin_vaddr, entry.fde.pc_begin_vaddr + entry.fde.pc_range}
        return {edge for edge in edges if begin <= edge < end}

    def find_extra(self) -> None:
        """Report functions that hold addresses of which neither CFI nor stubs say anything."""
        known = [(e.fde.pc_begin_vaddr, e.fde.pc_begin_vaddr + e.fde.pc_range) for e in self.truth]
        covered = _merged(sorted(known + self.stub_ranges))
        starts = [start for start, _ in covered]
        for function in self.lookup.functions:
            position, end = function.start_vaddr, function.start_vaddr + function.size
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


def _judge_attributes(entry: CfiEntry, function: DecodedFunction, version: int, arch: Arch) -> str | None:
    """Return how a function's attributes differ from what its CIE says; None when they say the same."""
    cie = entry.fde.cie
    if cie.ra_register != arch.ra_register:
        return (
            f"the return address is in column {cie.ra_register}, rows speak of {arch.register_name(arch.ra_register)}"
        )
    if version >= SFRAME_VERSION_3 and cie.is_signal_frame != function.is_signal_frame:
        if cie.is_signal_frame:
            return "a signal frame that is not marked as one"
        return "marked as a signal frame, which it is not"
    # Where no RA is signed, the key is of no use, and assemblers differ.
    if cie.uses_b_key != function.uses_b_key and any(row.row.state.mangled_ra for row in function.rows):
        keys = ("B", "A") if cie.uses_b_key else ("A", "B")
        return f"RA is signed with key {keys[0]}, the function says {keys[1]}"
    return None


def _boundaries(function: DecodedFunction, begin: int, end: int, version: int) -> Iterator[int]:
    """Yield where a function and its rows start and end; of repeating blocks, those that meet `[begin, end)`."""
    start, size = function.start_vaddr, function.size
    yield start
    yield start + size
    if function.is_pcmask and version == SFRAME_VERSION_1:
        # Rows hold wherever the PC has their bits: there are no blocks to go by.
        yield from range(max(start, begin), min(start + size, end))
        return
    step = function.repeat_size if function.is_pcmask else 0
    # A damaged section may claim far more blocks than there is code.
    first = max(0, begin - start) // step * step if step else 0
    for block in range(first, min(size, end - start), step) if step else (0,):
        for row in function.rows:
            yield start + block + row.row.start_delta


def _program_state_at(program: CfiProgram, delta: int) -> RowState:
    """Return the state at a delta without making all rows of the program, as asking for them would."""
    return program.states[bisect_right(program.starts, delta) - 1]


def _state_at(rows: tuple[CfiRow, ...], delta: int) -> RowState:
    return rows[bisect_right(rows, delta, key=lambda row: row.start_delta) - 1].state
