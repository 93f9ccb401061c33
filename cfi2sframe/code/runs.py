# SPDX-License-Identifier: Apache-2.0
"""Rows of blocks to rows of functions: runs of instructions with one row, put together by their addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.code_reasons import CodeReason
from cfi2sframe.code.effects import RA_SIGN_STATE, Op
from cfi2sframe.code.records import DerivedFunction
from cfi2sframe.code.values import CONSTANT, Value
from cfi2sframe.dwarf.rules import NoRule, RowState, TableBuilder

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator

    from cfi2sframe.code.blocks import Change
    from cfi2sframe.code.effects import Step
    from cfi2sframe.code.rows import RowMaker
    from cfi2sframe.code.values import State

#: The RA is signed with the B key.
_B_KEY: Final = Value(CONSTANT, 2)
#: The size of every instruction of AArch64, and that of a page for ADRP.
_WORD_SIZE: Final = 4
_PAGE_SIZE: Final = 1 << 12


class Run(NamedTuple):
    """Instructions at `[start_vaddr, end_vaddr)` with one row, or one reason for none.

    `uses_b_key` is as in `DerivedFunction`.
    """

    start_vaddr: int
    end_vaddr: int
    row: RowState | CodeReason
    uses_b_key: bool = False

    def without_fp(self) -> Run:
        """Return the run with a row that says nothing of FP, where it says that FP is lost."""
        if isinstance(self.row, CodeReason) or self.row.fp is not NoRule.UNDEFINED:
            return self
        return self._replace(row=self.row._replace(fp=NoRule.UNSPECIFIED))


class BlockReader:
    """Collects the rows of a block, and the addresses that its instructions load."""

    __slots__ = ("_starts", "_uses_b_key", "loaded", "rows")

    def __init__(self, rows: RowMaker) -> None:
        self.rows = rows
        self.loaded: set[int] = set()
        self._starts: list[tuple[int, RowState | CodeReason]] = []
        self._uses_b_key = False

    def look(self, vaddr: int, change: Change | None, state: State) -> None:
        """Take the state at an address, after a change."""
        if change is not None:
            for step in change.steps:
                value = state.registers.get(step.register)
                if value is None or value.base != CONSTANT or self._is_page(step, value):
                    continue
                # A call that never comes back has an address to come back to.
                if value.offset != change.end_vaddr or step.register != self.rows.arch.ra_register:
                    self.loaded.add(value.offset)
            # Where the CFA counts from SP, only SP, FP, the RA and the stack matter.
            if not change.changed & self.rows.frame_bits and self.rows.is_plain(self._starts[-1][1]):
                return
        self._uses_b_key |= state.registers.get(RA_SIGN_STATE) == _B_KEY
        self._add(vaddr, self.rows.row_of(state))

    def _is_page(self, step: Step, value: Value) -> bool:
        """Whether a step is that of ADRP, which loads the page of an address; what is added says which address."""
        has_pages = self.rows.arch.alignment == _WORD_SIZE
        return has_pages and step.op is Op.CONSTANT and value.offset % _PAGE_SIZE == 0

    def look_at_call(self, vaddr: int, state: State) -> None:
        """Take the state at a call."""
        self._add(vaddr, self.rows.row_of(state, at_call=True))

    def _add(self, vaddr: int, row: RowState | CodeReason) -> None:
        if not self._starts or self._starts[-1][1] is not row:
            self._starts.append((vaddr, row))

    def runs(self, end_vaddr: int) -> list[Run]:
        """Return the rows as runs up to the block's end."""
        ends = [vaddr for vaddr, _ in self._starts[1:]] + [end_vaddr]
        return [
            Run(vaddr, end, row, self._uses_b_key)
            for (vaddr, row), end in zip(self._starts, ends, strict=True)
            if vaddr < end
        ]


def start_of(run: Run) -> int:
    """Return where a run starts, to sort by."""
    return run.start_vaddr


def without_overlaps(runs: Iterable[Run]) -> list[Run]:
    """Return ascending runs without addresses in common.

    Instructions overlap where a jump leads into the midst of one, as behind a prefix. What two of them have in common
    keeps their row if it is the same, and has none otherwise.
    """
    kept: list[Run] = []
    for run in runs:
        if not kept or run.start_vaddr >= kept[-1].end_vaddr:
            kept.append(run)
            continue
        last, end = kept[-1], max(kept[-1].end_vaddr, run.end_vaddr)
        if run.row == last.row:
            kept[-1] = last._replace(end_vaddr=end)
            continue
        kept[-1] = last._replace(end_vaddr=run.start_vaddr)
        kept.append(Run(run.start_vaddr, end, CodeReason.PATHS_DISAGREE))
    return [run for run in kept if run.start_vaddr < run.end_vaddr]


def functions_of(runs: Iterable[Run], starts: Container[int]) -> Iterator[DerivedFunction]:
    """Yield what ascending runs with rows describe, cut at gaps and where functions start."""
    group: list[Run] = []
    for run in runs:
        if isinstance(run.row, CodeReason):
            continue
        if group and (run.start_vaddr != group[-1].end_vaddr or run.start_vaddr in starts):
            yield _function(group)
            group = []
        group.append(run)
    if group:
        yield _function(group)


def _function(group: list[Run]) -> DerivedFunction:
    start = group[0].start_vaddr
    builder = TableBuilder()
    for run in group:
        if not isinstance(run.row, CodeReason):
            builder.add(run.start_vaddr - start, run.row)
    return DerivedFunction(start, group[-1].end_vaddr, builder.table(), any(run.uses_b_key for run in group))
