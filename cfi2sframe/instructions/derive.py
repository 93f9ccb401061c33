# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions, for code that no CFI covers: every candidate is tried, and what returns prove is kept."""

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final, NamedTuple

from cfi2sframe.dwarf.fdes import RowFunction
from cfi2sframe.dwarf.rules import NoRule, RowState, table_of_rows
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.padding import code_outside, fill_size
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.candidates import find_candidates, process_entry
from cfi2sframe.instructions.code import Code
from cfi2sframe.instructions.effects import RA_SIGN_STATE, Abi
from cfi2sframe.instructions.function import Followed
from cfi2sframe.instructions.machine import Machine
from cfi2sframe.instructions.rows import SignalCode, row_of, signal_code
from cfi2sframe.instructions.states import NO_CALLER, NUMBER, State, Underived, ra_place
from cfi2sframe.process.guard import grant_for_code
from cfi2sframe.range_map import ADDRESS_END, Distinct, RangeMap, Span, bytes_of
from cfi2sframe.why import Reason

#: Bytes of code, as each has a mark; sections without contents may claim 2^64.
_MAX_SIZE: Final = 1 << 32
#: Bytes below SP in which functions of Go save FP.
_GO_SLOT: Final = 8
#: Bytes of padding that are looked at in one step.
_MAX_FILL: Final = 64


class Derived(NamedTuple):
    """Derived functions and the code left out, both ascending; together they have all of the code."""

    functions: tuple[RowFunction, ...] = ()
    left_out: tuple[Underived, ...] = ()


class _Row(NamedTuple):
    """A row, and properties of the function that it is for: its key for the RA, and whether it is a signal frame."""

    state: RowState
    uses_b_key: bool = False
    is_signal_frame: bool = False


def derive(image: ElfImage, covered: Sequence[Span], functions: Sequence[Span] = ()) -> Derived:
    """Derive rows for the executable code outside of `covered`, the ascending ranges of what other sources describe.

    `functions` are ranges outside of these, ascending, that control enters only at their starts.
    Raises `InputError` where capstone cannot be loaded, `ElfError` when headers claim more code than any file has.
    """
    spans = [gap for _, gap in code_outside(image, covered)]
    if not spans:
        return Derived()
    size = sum(end - start for start, end in spans)
    if size > _MAX_SIZE:
        raise ElfError(f"the code without CFI has {size:,} bytes by the headers, more than {_MAX_SIZE:,}")
    entries: set[int] = set()
    code = Code(image, spans, "code without CFI is read", "without --from code, only CFI is read", entries)
    grant_for_code(code.stored_size)
    canvas = _Canvas(image, spans, code.abi)
    search = _Search(code, canvas, entries, functions)
    entries |= search.beginnings({*find_candidates(image, code, covered), *[start for start, _ in functions]})
    first = search.follow_process(process_entry(image, code))
    search.follow(set(entries))
    search.sweep()
    starts = search.beginnings({vaddr for vaddr, summary in search.machine.summaries.items() if summary.returns})
    if first is not None:
        canvas.paint_outermost(first)
        starts.add(first.entry)
    for signal_return in signal_code(code, sorted(entries)):
        canvas.paint_signal_return(signal_return)
    return canvas.derived(sorted(starts))


class _Search:
    """Tries candidates, and addresses to which the proved functions refer."""

    def __init__(self, code: Code, canvas: "_Canvas", entries: set[int], functions: Sequence[Span]) -> None:
        self.code = code
        self.canvas = canvas
        self.entries = entries
        self._inside = inside = bytes_of((start + 1, end) for start, end in functions)
        self._waiting = waiting = set[int]()

        # No method, as search and machine would refer to each other.
        def take(function: Followed) -> None:
            if function.entry in inside:
                return
            if function.proven:
                waiting.update(function.calls, (v for v in function.labels if v not in function.proven))
            canvas.paint(function)

        # Go saves FP right below SP where calls leave the RA in a register; handlers of signals have another stack.
        kept = _GO_SLOT if functions and not code.abi.arch.fixed_ra_offset else 0
        self.machine = Machine(code, take, kept)

    def beginnings(self, vaddrs: set[int]) -> set[int]:
        """Return the addresses that are not inside of the functions that control enters only at their starts."""
        return {vaddr for vaddr in vaddrs if vaddr not in self._inside}

    def follow_process(self, entry: int | None) -> Followed | None:
        """Follow control from where a process begins. No return can prove that code, so its calls count without one."""
        if entry is None:
            return None
        place = ra_place(self.code.image.arch)
        first = self.machine.follow(entry, self.machine.entry_state | {place: NO_CALLER})
        self._waiting.update(first.calls, first.labels)
        return first

    def follow(self, entries: set[int]) -> None:
        """Follow control from entries, then from those to which they lead."""
        while entries:
            self.entries.update(entries)
            for vaddr in sorted(entries):
                if vaddr not in self.machine.summaries and self.code.holds(vaddr) and not self.canvas.has_row(vaddr):
                    self.machine.follow(vaddr)
            entries = self.beginnings(self._waiting - self.entries)
            self._waiting.clear()

    def sweep(self) -> None:
        """Try each address to which nothing has led, ascending; follow what is proved to be a function."""
        sweeper = Machine(self.code, lambda _function: None, is_sweep=True)
        vaddr = self.canvas.unreached(0)
        while vaddr is not None:
            instruction = self.code.at(vaddr)
            end = vaddr + (instruction.size if instruction is not None else self.code.abi.arch.instruction_alignment)
            if instruction is not None and vaddr not in self.code.executed and vaddr not in self._inside:
                tried = sweeper.follow(vaddr)
                if vaddr in tried.proven:
                    self.follow({vaddr})
                while end in tried.sizes:
                    end += tried.sizes[end]
            vaddr = self.canvas.unreached(end)


class _Canvas:
    """A mark for each byte of code: the number of its row, or of the reason why it has none; 0: nothing leads there."""

    def __init__(self, image: ElfImage, spans: Sequence[Span], abi: Abi) -> None:
        self.image = image
        self.abi = abi
        self._marks = RangeMap(None, ((start, end, array("I", bytes(4 * (end - start)))) for start, end in spans))
        self._meanings = Distinct[_Row | Reason](Reason.NOT_REACHED)

    def unreached(self, vaddr: int) -> int | None:
        """Return the first address, from the given one on, to which nothing has led, and at which no padding is."""
        while vaddr < ADDRESS_END:
            first, end, marks = self._marks.range_at(vaddr)
            while marks is not None and vaddr < end:
                is_reached = marks[vaddr - first] != 0
                size = 1 if is_reached else self._fill_size(vaddr, min(vaddr + _MAX_FILL, end))
                if size == 0:
                    return vaddr
                vaddr += size
            vaddr = end
        return None

    def has_row(self, vaddr: int) -> bool:
        """Return whether an address has a row."""
        first, _, marks = self._marks.range_at(vaddr)
        return marks is not None and isinstance(self._meanings.values[marks[vaddr - first]], _Row)

    def paint(self, function: Followed) -> None:
        """Mark the proved addresses of a function with their rows, and others with the reason."""
        states, sizes = function.states, function.sizes
        last: State | None = None
        meaning: _Row | Reason = Reason.NOT_PROVEN
        for vaddr in sorted(function.proven):
            state, is_site = states[vaddr], vaddr in function.call_sites
            if state is not last or is_site:
                row = row_of(state, self.abi, at_call=is_site)
                meaning = Reason.UNKNOWN if row is None else _Row(row, state.get(RA_SIGN_STATE) == (NUMBER, 2))
                last = None if is_site else state
            self._mark(vaddr, vaddr + sizes.get(vaddr, 0), meaning)
        reasons = dict.fromkeys(states, function.refusal or Reason.NOT_PROVEN) | function.refused
        for vaddr, reason in reasons.items():
            if vaddr not in function.proven:
                self._mark(vaddr, vaddr + sizes.get(vaddr, 0), reason)

    def paint_outermost(self, function: Followed) -> None:
        """Mark the code with which a process begins, where no function has rows: without a CFA, it needs no proof."""
        for vaddr, state in function.states.items():
            row = row_of(state, self.abi)
            if row is not None and not self.has_row(vaddr):
                self._mark(vaddr, vaddr + function.sizes.get(vaddr, 0), _Row(row))

    def paint_signal_return(self, code: SignalCode) -> None:
        """Mark code that returns from a signal handler, where no function has rows."""
        for vaddr in range(code.start, code.end):
            if not self.has_row(vaddr):
                self._mark(vaddr, vaddr + 1, _Row(code.state, is_signal_frame=True))

    def _mark(self, start: int, end: int, meaning: _Row | Reason) -> None:
        """Mark some addresses: a row replaces a reason, and where two rows differ, what they have in common stays."""
        mark = self._meanings.number_of(meaning)
        first, last, marks = self._marks.range_at(start)
        if start >= end or marks is None:
            return
        start, end = start - first, min(end, last) - first
        if not any(marks[start:end]):
            marks[start:end] = array("I", [mark]) * (end - start)
            return
        for place in range(start, end):
            old = self._meanings.values[marks[place]]
            if not isinstance(old, _Row):
                marks[place] = mark if isinstance(meaning, _Row) else marks[place] or mark
            elif isinstance(meaning, _Row) and meaning != old:
                # All but FP's rule may be the same.
                common, other = (row._replace(state=row.state._replace(fp=NoRule.UNDEFINED)) for row in (old, meaning))
                marks[place] = self._meanings.number_of(common if common == other else Reason.PATHS_DISAGREE)

    def derived(self, starts: Sequence[int]) -> Derived:
        """Return the rows as functions, which end at gaps and where others start, and the rest of the code."""
        functions: list[RowFunction] = []
        left_out: list[Underived] = []
        for first, _, marks in self._marks.held():
            group: list[tuple[int, int, _Row]] = []
            vaddr = first
            for mark, same in groupby(marks):
                end = vaddr + sum(1 for _ in same)
                row = self._meanings.values[mark]
                if isinstance(row, Reason):
                    left_out += self._left_out(vaddr, end, row)
                else:
                    inner = starts[bisect_right(starts, vaddr - 1) : bisect_right(starts, end - 1)]
                    for start, stop in pairwise(sorted({vaddr, *inner, end})):
                        is_other = group and group[-1][2].is_signal_frame != row.is_signal_frame
                        if group and (start in inner or group[-1][1] != start or is_other):
                            functions.append(_function(group))
                            group = []
                        group.append((start, stop, row))
                vaddr = end
            if group:
                functions.append(_function(group))
        return Derived(tuple(functions), tuple(left_out))

    def _left_out(self, start: int, end: int, reason: Reason) -> Iterator[Underived]:
        """Yield the code that follows padding at its start, if any does."""
        if reason is Reason.NOT_REACHED:
            start += self._fill_size(start, end)
        if start < end:
            yield Underived(start, end, reason)

    def _fill_size(self, start: int, end: int) -> int:
        """Return the number of bytes at the start of some code that only fill space."""
        code = self.image.code_range_of(start)
        return 0 if code is None else fill_size(self.image, code, start, end)


def _function(group: list[tuple[int, int, _Row]]) -> RowFunction:
    """Return the function that adjacent rows describe, in which one key signs the RA."""
    start = group[0][0]
    table = table_of_rows((first - start, row.state) for first, _, row in group)
    uses_b_key = any(row.uses_b_key for _, _, row in group)
    return RowFunction(start, group[-1][1] - start, table, group[0][2].is_signal_frame, uses_b_key)
