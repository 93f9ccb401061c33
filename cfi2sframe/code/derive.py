# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions, for code that no CFI covers: the door of this room.

A row is kept where every path from a known entry gives it, in a function whose exits confirm the stack depth: a return
at the depth of the entry, or a jump to another entry at that depth. The other code is left out, with the reason.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.decoder import Decoder
from cfi2sframe.code.entries import find_entries
from cfi2sframe.code.exits import Exits
from cfi2sframe.code.flow import FlowAnalysis, Surroundings
from cfi2sframe.code.machines import code_arch_of
from cfi2sframe.code.records import Derived, DerivedFunction, Underived
from cfi2sframe.code.rows import RowMaker
from cfi2sframe.code.surroundings import ImageSurroundings
from cfi2sframe.code.values import CONSTANT
from cfi2sframe.dwarf.rules import NoRule, TableBuilder
from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.padding import fill_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from cfi2sframe.code.blocks import Change
    from cfi2sframe.code.exits import Ending
    from cfi2sframe.code.values import State
    from cfi2sframe.dwarf.rules import RowState
    from cfi2sframe.elf.image import ElfImage

#: Compilers and assemblers align functions to this; other addresses that are referred to are rarely functions.
_FUNCTION_ALIGNMENT: Final = 16


class Run(NamedTuple):
    """Instructions at `[start_vaddr, end_vaddr)` with one row, or one reason for none."""

    start_vaddr: int
    end_vaddr: int
    row: RowState | CodeReason


def derive(image: ElfImage, covered: Sequence[Span]) -> Derived:
    """Derive rows for the executable code outside of `covered`, the ascending ranges of what other sources describe.

    Raises `BudgetError` when the code is out of proportion to the file, `InputError` where capstone cannot be loaded.
    """
    spans = _code_without(image, covered)
    if not spans:
        return Derived()
    return _Derivation(image, spans, covered).run()


def _code_without(image: ElfImage, covered: Sequence[Span]) -> list[Span]:
    """Return the executable code outside of some ranges, without gaps that only padding fills."""
    found: list[Span] = []
    for code in image.code_ranges:
        gaps = without([(code.start_vaddr, code.end_vaddr)], covered)
        found += [gap for gap in gaps if fill_size(image, code, gap.start, gap.end) < gap.end - gap.start]
    return found


class _Derivation:
    """The rounds of one derivation: first from entries that are certain, then from those that may be entries."""

    def __init__(self, image: ElfImage, spans: Sequence[Span], covered: Sequence[Span]) -> None:
        self.image = image
        self.spans = spans
        arch = code_arch_of(image.arch)
        self.decoder = Decoder(image, arch, spans)
        self.entries = find_entries(image, self.decoder, covered)
        known = self.entries.certain | self.entries.possible
        around = ImageSurroundings(image, self.decoder, [span.start for span in covered], known, arch)
        self.around = Surroundings(
            around.is_entry, around.returns, around.import_returns, around.table_targets, around.is_start
        )
        self.flow = FlowAnalysis(self.decoder, arch, self.around)
        self.rows = RowMaker(arch)
        self.runs: list[Run] = []
        self.refused: list[Run] = []
        self.function_starts: set[int] = set()
        self._loaded: set[int] = set()

    def run(self) -> Derived:
        """Return what is derived."""
        certain = self.entries.certain
        self._enter(certain)
        has_shared_code = self._settle(certain)
        tried = set(certain)
        waiting = set(self.entries.possible)
        while True:
            waiting |= {vaddr for vaddr in self._loaded if self.decoder.span_of(vaddr) is not None}
            waiting = {vaddr for vaddr in waiting - tried if not self.flow.is_kept(vaddr)}
            batch = {vaddr for vaddr in waiting if vaddr % _FUNCTION_ALIGNMENT == 0} or waiting
            if not batch:
                break
            tried |= batch
            for vaddr in sorted(batch):
                self.flow.enter(vaddr)
            has_shared_code |= self._settle(certain)
        if has_shared_code:
            self._run_again()
        return self._derived()

    def _enter(self, entries: Iterable[int]) -> None:
        process_entry = self.entries.process_entry
        if process_entry is not None:
            self.flow.enter(process_entry, has_caller=False)
        for vaddr in sorted(entries):
            self.flow.enter(vaddr)

    def _run_again(self) -> None:
        """Follow control once more from all entries that were kept, at one time.

        Code of one round that control reaches in another one has to have the join of all states, and all targets.
        """
        entries = self.flow.entries & self.flow.kept
        self.flow = FlowAnalysis(self.decoder, self.flow.arch, self.around)
        self.runs.clear()
        self.function_starts.clear()
        self._enter(entries)
        self._settle(self.entries.certain)

    def _settle(self, certain: Collection[int]) -> bool:
        """Follow control, and keep what its exits confirm; return whether it has reached code of an earlier round."""
        flow = self.flow
        flow.run()
        exits = Exits(flow)
        runs: dict[int, list[Run]] = {}
        loaded: dict[int, set[int]] = {}
        endings: dict[int, Ending] = {}
        for start in [start for start in flow.states if start not in flow.kept]:
            reader = _BlockReader(self.rows)
            endings[start] = exits.read(start, reader.look, reader.look_at_call)
            runs[start], loaded[start] = reader.runs(flow.blocks[start].end_vaddr), reader.loaded
        judged = [(component, _reason_against(component, endings)) for component in _components(endings)]
        while True:
            kept = [
                component
                for component, reason in judged
                if reason is None or self._is_called(component, reason, certain)
            ]
            if not kept:
                break
            for component in kept:
                flow.keep(component)
                self.function_starts.update(start for start in component if start in flow.entries)
                fp_is_dead = self._is_fp_dead(component)
                for start in component:
                    self.runs += [_without_fp(run) for run in runs[start]] if fp_is_dead else runs[start]
                    self._loaded |= loaded[start]
            judged = [(component, reason) for component, reason in judged if component[0] not in flow.kept]
        for component, reason in judged:
            flow.forget(component)
            for start in component:
                self.refused += [run._replace(row=reason or CodeReason.NOT_CONFIRMED) for run in runs[start]]
        return exits.has_shared_code

    def _is_fp_dead(self, component: Collection[int]) -> bool:
        """Whether no caller of some functions has use for FP: helpers of assembly that keep other values in it.

        All calls have to be known. Their frames are found by SP, and have saved FP if it has to be restored: what a
        reader takes for FP in the callee is never used.
        """
        flow = self.flow
        entries = [start for start in component if start in flow.entries]
        referred = self.entries.certain | self.entries.possible | self._loaded
        return bool(entries) and all(
            start not in flow.needing_fp and start not in referred and flow.is_only_called(start, component)
            for start in entries
        )

    def _is_called(self, component: Iterable[int], reason: CodeReason, certain: Collection[int]) -> bool:
        """Whether nothing speaks against a component, and an entry of it is certain: then no exit has to confirm it."""
        if reason is not CodeReason.NOT_CONFIRMED:
            return False
        process_entry = self.entries.process_entry
        return any(start in certain or start == process_entry or self.flow.is_called(start) for start in component)

    def _derived(self) -> Derived:
        runs = sorted(self.runs, key=_start_of)
        functions: list[DerivedFunction] = []
        left_out: list[Underived] = []
        for group in _contiguous(runs, self.function_starts):
            builder = TableBuilder()
            for run in group:
                if not isinstance(run.row, CodeReason):
                    builder.add(run.start_vaddr - group[0].start_vaddr, run.row)
            functions.append(DerivedFunction(group[0].start_vaddr, group[-1].end_vaddr, builder.table()))
        held = [Span(function.start_vaddr, function.end_vaddr) for function in functions]
        reasons = sorted([*self.refused, *(run for run in runs if isinstance(run.row, CodeReason))], key=_start_of)
        rest = without(self.spans, held)
        for span in rest:
            left_out += self._without_rows(span, reasons)
        return Derived(tuple(functions), tuple(left_out))

    def _without_rows(self, span: Span, reasons: Sequence[Run]) -> Iterator[Underived]:
        """Yield the stretches of a range without rows, each with its reason; padding is none."""
        vaddr = span.start
        index = max(0, bisect_left(reasons, span.start, key=_start_of) - 1)
        for run in reasons[index:]:
            if run.start_vaddr >= span.end:
                break
            start, end = max(vaddr, run.start_vaddr), min(span.end, run.end_vaddr)
            if start < end:
                yield from self._not_reached(vaddr, start)
                yield Underived(start, end, cast("CodeReason", run.row), "")
                vaddr = end
        yield from self._not_reached(vaddr, span.end)

    def _not_reached(self, start: int, end: int) -> Iterator[Underived]:
        """Yield what of a range follows its padding, if anything does."""
        code = self.image.code_range_of(start)
        if start < end and code is not None:
            start += fill_size(self.image, code, start, end)
            if start < end:
                yield Underived(start, end, CodeReason.NOT_REACHED, "")


def _start_of(run: Run) -> int:
    return run.start_vaddr


def _without_fp(run: Run) -> Run:
    """Return a run whose row says nothing of FP where it would say that FP is lost."""
    row = run.row
    if isinstance(row, CodeReason) or row.fp is not NoRule.UNDEFINED:
        return run
    return run._replace(row=row._replace(fp=NoRule.UNSPECIFIED))


class _BlockReader:
    """Collects the rows of a block, and the addresses that its instructions load."""

    def __init__(self, rows: RowMaker) -> None:
        self.rows = rows
        self.starts: list[tuple[int, RowState | CodeReason]] = []
        self.loaded: set[int] = set()

    def look(self, vaddr: int, change: Change | None, state: State) -> None:
        """Take the state at an address, after a change."""
        if change is not None:
            for step in change.steps:
                value = state.registers.get(step.register)
                if value is not None and value.base == CONSTANT:
                    self.loaded.add(value.offset)
            # Where the CFA counts from SP, only SP, FP, the RA and the stack matter.
            if not change.changed & self.rows.frame_bits and self.rows.is_plain(self.starts[-1][1]):
                return
        row = self.rows.row_of(state)
        if not self.starts or self.starts[-1][1] is not row:
            self.starts.append((vaddr, row))

    def look_at_call(self, vaddr: int, state: State) -> None:
        """Take the state at a call."""
        row = self.rows.row_of(state, at_call=True)
        if row is not self.starts[-1][1]:
            self.starts.append((vaddr, row))

    def runs(self, end_vaddr: int) -> list[Run]:
        """Return the rows as runs up to the block's end."""
        ends = [vaddr for vaddr, _ in self.starts[1:]] + [end_vaddr]
        return [Run(vaddr, end, row) for (vaddr, row), end in zip(self.starts, ends, strict=True) if vaddr < end]


def _components(endings: dict[int, Ending]) -> Iterator[list[int]]:
    """Yield the blocks that belong together: those that control leads to within a function."""
    neighbours: dict[int, list[int]] = {start: [] for start in endings}
    for start, ending in endings.items():
        for follower in ending.followers:
            if follower in neighbours:
                neighbours[start].append(follower)
                neighbours[follower].append(start)
    seen: set[int] = set()
    for start in endings:
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for block_start in component:
            for other in neighbours[block_start]:
                if other not in seen:
                    seen.add(other)
                    component.append(other)
        yield component


def _reason_against(component: Iterable[int], endings: dict[int, Ending]) -> CodeReason | None:
    """Return why a component is not kept; None when its exits confirm it."""
    confirms = False
    for start in component:
        verdict = endings[start].verdict
        if verdict.contradicts:
            return CodeReason.CONTRADICTED
        confirms |= verdict.confirms
    return None if confirms else CodeReason.NOT_CONFIRMED


def _contiguous(runs: Iterable[Run], starts: set[int]) -> Iterator[list[Run]]:
    """Yield runs with rows that follow one another without a gap, cut where functions start."""
    group: list[Run] = []
    for run in runs:
        if isinstance(run.row, CodeReason):
            continue
        if group and (run.start_vaddr != group[-1].end_vaddr or run.start_vaddr in starts):
            yield group
            group = []
        if group and run.start_vaddr < group[-1].end_vaddr:
            continue
        group.append(run)
    if group:
        yield group
