# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions, for code that no CFI covers: the door of this room.

A row is kept where every path from a known entry gives it, in a function whose exits confirm the stack depth: a return
at the depth of the entry, or a jump to another entry at that depth. The other code is left out, with the reason.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.components import components_of, reason_against
from cfi2sframe.code.decoder import Decoder
from cfi2sframe.code.entries import find_entries
from cfi2sframe.code.exits import Exits
from cfi2sframe.code.flow import FlowAnalysis
from cfi2sframe.code.machines import code_arch_of
from cfi2sframe.code.records import Derived, Underived
from cfi2sframe.code.rows import RowMaker
from cfi2sframe.code.runs import BlockReader, Run, functions_of, start_of, without_overlaps
from cfi2sframe.code.surroundings import ImageSurroundings
from cfi2sframe.elf.ranges import Span, without
from cfi2sframe.padding import code_outside, fill_size

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from cfi2sframe.code.exits import BlockEnd
    from cfi2sframe.elf.image import ElfImage

#: Compilers and assemblers align functions to this; other addresses that are referred to are rarely functions.
_FUNCTION_ALIGNMENT: Final = 16
#: What may be kept for an entry that is certain, though no exit confirms it.
_UNCONFIRMED: Final = (CodeReason.NOT_CONFIRMED, CodeReason.UNKNOWN_INSTRUCTION)


class _Kept(NamedTuple):
    """Blocks that belong together and that are kept, and their rows."""

    component: list[int]
    runs: list[Run]


def derive(image: ElfImage, covered: Sequence[Span]) -> Derived:
    """Derive rows for the executable code outside of `covered`, the ascending ranges of what other sources describe.

    Raises `InputError` where capstone cannot be loaded.
    """
    spans = [gap for _, gap in code_outside(image, covered)]
    if not spans:
        return Derived()
    return _Derivation(image, spans, covered).run()


class _Derivation:
    """The rounds of one derivation: first from entries that are certain, then from those that may be entries.

    Each round follows control from some entries, and keeps what its exits confirm. What control reaches from an entry
    that is none, such as a label in a function, is then mostly known already, and else contradicts.
    """

    def __init__(self, image: ElfImage, spans: Sequence[Span], covered: Sequence[Span]) -> None:
        self.image = image
        self.spans = spans
        arch = code_arch_of(image.arch)
        self.decoder = Decoder(image, arch, spans)
        self.entries = find_entries(image, self.decoder, covered)
        certain, uncertain = self.entries.certain, self.entries.possible | self.entries.labels
        around = ImageSurroundings(image, self.decoder, [span.start for span in covered], certain, uncertain, arch)
        self.around = around.answers()
        self.flow = self._new_flow()
        self.rows = RowMaker(arch)
        self.kept: list[_Kept] = []
        self.refused: list[Run] = []
        #: Addresses in what was kept that something else refers to, and where control arrives with a frame.
        self._late: set[int] = set()
        #: Entries that nothing is certain of, in what was kept for another entry's sake.
        self._doubtful: set[int] = set()
        self._loaded: set[int] = set()
        #: Those of them that the last round has added.
        self._newly_loaded: set[int] = set()

    def _new_flow(self) -> FlowAnalysis:
        return FlowAnalysis(self.decoder, self.decoder.arch, self.around, self.entries.certain)

    def run(self) -> Derived:
        """Return what is derived."""
        has_shared_code = self._round(self.entries.certain)
        tried = set(self.entries.certain)
        aligned: set[int] = set()
        others: set[int] = set()
        found: Iterable[int] = self.entries.possible
        labels = self.entries.labels
        # There may be as many rounds as functions: none of them looks at all that earlier ones have found.
        while True:
            for vaddr in (*found, *self._newly_loaded):
                if vaddr not in tried and self._may_be_entry(vaddr):
                    if self._is_reached_with_slots(vaddr):
                        self._late.add(vaddr)
                    (others if vaddr % _FUNCTION_ALIGNMENT else aligned).add(vaddr)
            waiting = aligned or others
            if not waiting and not labels:
                break
            if not waiting:
                found, labels = labels, frozenset()
                continue
            found = ()
            self._newly_loaded = set()
            batch = [vaddr for vaddr in sorted(waiting) if not self.flow.is_kept(vaddr)]
            tried |= waiting
            waiting.clear()
            has_shared_code |= self._round(batch)
        if has_shared_code or self._late or self._doubtful:
            self._run_again()
        return self._derived()

    def _may_be_entry(self, vaddr: int) -> bool:
        decoder = self.decoder
        return decoder.span_of(vaddr) is not None and not decoder.is_marked(vaddr, decoder.arch.jump_marks)

    def _is_reached_with_slots(self, vaddr: int) -> bool:
        """Whether a tail call leads to an address in what was kept, with more in its frame than other callers leave."""
        state = self.flow.states.get(vaddr) if self.flow.is_kept(vaddr) and vaddr not in self.flow.entries else None
        if state is None or not self.flow.is_at_return(state):
            return False
        return state.slots != self.flow.machine.entry_state().slots

    def _run_again(self) -> None:
        """Follow control once more from all entries that were kept, at one time.

        Code of one round that control reaches in another one has to have the join of all states, and all targets. What
        only doubtful entries lead to, such as a label in a function that an array names, is not kept.
        """
        entries = (self.flow.entries & self.flow.kept | self._late) - self._doubtful
        self.flow = self._new_flow()
        self.kept.clear()
        self._round(entries)

    def _round(self, entries: Iterable[int]) -> bool:
        """Follow control from some entries, and keep what its exits confirm.

        Return whether control has reached code of an earlier round.
        """
        flow = self.flow
        if self.entries.process_entry is not None:
            flow.enter(self.entries.process_entry, has_caller=False)
        for vaddr in sorted(entries):
            flow.enter(vaddr)
        flow.run()
        exits = Exits(flow)
        readers: dict[int, BlockReader] = {}
        endings: dict[int, BlockEnd] = {}
        for start in flow.take_fresh():
            reader = readers[start] = BlockReader(self.rows)
            endings[start] = exits.read(start, reader.look, reader.look_at_call)
        judged = [(component, reason_against(component, endings)) for component in components_of(endings)]
        self._keep(
            [each for each, reason in judged if reason is None or self._is_certain(each, reason)], judged, readers
        )
        refused = [(component, reason) for component, reason in judged if component[0] not in flow.kept]
        for component, reason in refused:
            for run in self._runs(component, readers):
                self.refused.append(run._replace(row=reason or CodeReason.NOT_CONFIRMED))
        flow.forget(start for component, _ in refused for start in component)
        return exits.has_shared_code

    def _keep(
        self,
        kept: list[list[int]],
        judged: Iterable[tuple[list[int], CodeReason | None]],
        readers: dict[int, BlockReader],
    ) -> None:
        """Keep some components, and those of the others that they call: these are then certain."""
        flow = self.flow
        called_from: dict[int, list[list[int]]] = {}
        unconfirmed: set[int] = set()
        for component, reason in judged:
            if reason in _UNCONFIRMED:
                unconfirmed.add(component[0])
                for start in component:
                    for caller in flow.summaries.callers_of(start):
                        called_from.setdefault(caller, []).append(component)
        # The list grows while it is read.
        for component in kept:
            if component[0] in flow.kept:
                continue
            flow.keep(component)
            if component[0] in unconfirmed:
                self._doubtful.update(
                    start for start in component if start in flow.entries and not self._is_certain_entry(start)
                )
            self.kept.append(_Kept(component, self._runs(component, readers)))
            loaded = set().union(*(readers[start].loaded for start in component)) - self._loaded
            self._loaded |= loaded
            self._newly_loaded |= loaded
            for start in component:
                kept += called_from.pop(start, ())

    def _runs(self, component: Iterable[int], readers: dict[int, BlockReader]) -> list[Run]:
        blocks = self.flow.blocks
        return [run for start in component for run in readers[start].runs(blocks[start].end_vaddr)]

    def _is_certain(self, component: Iterable[int], reason: CodeReason) -> bool:
        """Whether nothing contradicts a component, and an entry of it is certain: then no exit has to confirm it."""
        return reason in _UNCONFIRMED and any(self._is_certain_entry(start) for start in component)

    def _is_certain_entry(self, start: int) -> bool:
        return start in self.entries.certain or start == self.entries.process_entry or self.flow.is_called(start)

    def _derived(self) -> Derived:
        """Return what has been kept as functions, and everything else with its reasons."""
        runs: list[Run] = []
        for component, found in self.kept:
            runs += [run.without_fp() for run in found] if self._is_fp_dead(component) else found
        runs = without_overlaps(sorted(runs, key=start_of))
        starts = {start for start in self.flow.entries if start in self.flow.kept}
        functions = tuple(functions_of(runs, starts))
        held = [Span(function.start_vaddr, function.end_vaddr) for function in functions]
        reasons = sorted([*self.refused, *(run for run in runs if isinstance(run.row, CodeReason))], key=start_of)
        left_out = [each for span in without(self.spans, held) for each in self._without_rows(span, reasons)]
        return Derived(functions, tuple(left_out))

    def _is_fp_dead(self, component: Collection[int]) -> bool:
        """Whether no caller of some functions has use for FP: helpers of assembly that keep other values in it.

        All calls have to be known. Their frames are found by SP, and have saved FP if it has to be restored: what a
        reader takes for FP in the callee is never used.
        """
        flow, known = self.flow, self.entries
        entries = [start for start in component if start in flow.entries]
        return bool(entries) and all(
            start not in flow.needing_fp
            and flow.summaries.is_only_called(start, component)
            and not (start in known.certain or start in known.possible or start in self._loaded)
            for start in entries
        )

    def _without_rows(self, span: Span, reasons: Sequence[Run]) -> Iterator[Underived]:
        """Yield the stretches of a range without rows, each with its reason; padding is none."""
        vaddr = span.start
        for index in range(max(0, bisect_left(reasons, span.start, key=start_of) - 1), len(reasons)):
            run = reasons[index]
            if run.start_vaddr >= span.end:
                break
            start, end = max(vaddr, run.start_vaddr), min(span.end, run.end_vaddr)
            if start < end and isinstance(run.row, CodeReason):
                yield from self._not_reached(vaddr, start)
                yield Underived(start, end, run.row)
                vaddr = end
        yield from self._not_reached(vaddr, span.end)

    def _not_reached(self, start: int, end: int) -> Iterator[Underived]:
        """Yield what of a range follows its padding, if anything does."""
        code = self.image.code_range_of(start)
        if start < end and code is not None:
            start += fill_size(self.image, code, start, end)
            if start < end:
                yield Underived(start, end, CodeReason.NOT_REACHED)
