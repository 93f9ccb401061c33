# SPDX-License-Identifier: Apache-2.0
"""The tables of `row_machine`, faster: what has been interpreted once in a file is looked up the next time.

Programs repeat parts of one another: the same instructions in the same state lead to the same state. States are
therefore the nodes of a graph, and strings of instructions without advances its edges. A program, cut at its advances,
is a path; only an edge that no program has used before is interpreted, by the row machine.
"""

from __future__ import annotations

from itertools import accumulate, compress
from operator import attrgetter, getitem, is_not
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf.instructions import CUTTER, Cutter, read_chunk
from cfi2sframe.dwarf.row_machine import Location, RowMachine
from cfi2sframe.dwarf.rules import TableBuilder, UnwindTable
from cfi2sframe.errors import CfiError
from cfi2sframe.intern import TupleInterner

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.budget import Budget
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.instructions import Instruction
    from cfi2sframe.dwarf.pointer import PointerBases
    from cfi2sframe.dwarf.row_machine import RegisterState
    from cfi2sframe.dwarf.rules import RowState

_row_state_of: Final = attrgetter("row_state")
#: Bytes of memory for one distinct state in all stages, verification included. Compilers' programs have one state for
#: about a thousand bytes; a hostile file may have one for every five.
_STATE_SIZE: Final = 1000
#: Microseconds of work on a distinct state in the same stages.
_STATE_STEPS: Final = 10


class ProgramCache:
    """Runs the programs of one file; distinct states are counted on `budget`.

    Equal row states of the file are one object, and so are equal tuples of them.
    """

    def __init__(self, arch: Arch, cutter: Cutter = CUTTER, budget: Budget | None = None) -> None:
        self._arch = arch
        self._cutter = cutter
        self._row_states = _RowStates(budget)
        #: By CIE, since equal CIEs of several sections share their programs; the error where a CIE is damaged.
        self._graphs: dict[DwarfCie, _Graph | CfiError] = {}

    def of(self, cie: DwarfCie, bases: PointerBases | None = None) -> CiePrograms:
        """Return what runs the programs of a CIE; DW_CFA_set_loc needs `bases`.

        Raises `CfiError` when the CIE is damaged.
        """
        graph = self._graphs.get(cie)
        if graph is None:
            try:
                graph = _Graph(RowMachine(cie, self._arch), self._row_states, self._arch.byte_order)
            except CfiError as error:
                graph = error
            self._graphs[cie] = graph
        if isinstance(graph, CfiError):
            raise CfiError(f"in its CIE: {graph.reason}")
        return CiePrograms(graph, self._cutter, bases)

    def before(self, table: UnwindTable, end_delta: int) -> UnwindTable:
        """Return the rows of one of this file's tables that start before `end_delta`; the first row always stays."""
        cut = table.before(end_delta)
        return cut._replace(states=self._row_states.intern_tuple(cut.states))


class CiePrograms:
    """Runs the programs of one CIE."""

    def __init__(self, graph: _Graph, cutter: Cutter, bases: PointerBases | None) -> None:
        self._graph = graph
        self._cutter = cutter
        self._bases = bases

    def run(self, instructions: bytes, pc_begin_vaddr: int = 0, instructions_vaddr: int = 0) -> UnwindTable:
        """Return what `row_machine.run` returns for instructions of the function at `pc_begin_vaddr`.

        Raises what that raises, and `BudgetError` when the file has too many distinct states.
        """
        chunks = self._cutter.cut(instructions)
        if chunks is not None:
            try:
                return self._graph.table(chunks)
            except CfiError:
                # The machine finds the same error, and its offset in the string.
                pass
        # Besides damaged ones, these are the strings that the cutter does not cut.
        location = None if self._bases is None else Location(pc_begin_vaddr, instructions_vaddr, self._bases)
        return self._graph.interned(self._graph.machine.run(instructions, location))


class _RowStates:
    """The distinct row states of a file, each one object, counted on the file's budget."""

    def __init__(self, budget: Budget | None) -> None:
        self._budget = budget
        self._known: dict[RowState, RowState] = {}
        self._tuples: TupleInterner[RowState] = TupleInterner()

    def count(self) -> None:
        """Count a distinct state of registers or of a row. Raises `BudgetError` when there are too many."""
        if self._budget is not None:
            self._budget.hold(_STATE_SIZE, "the rows that differ from one another")
            self._budget.spend(_STATE_STEPS, "the rows that differ from one another")

    def intern(self, state: RowState) -> RowState:
        """Return the one object that is equal to a state."""
        return self._known.setdefault(state, state)

    def intern_tuple(self, states: tuple[RowState, ...]) -> tuple[RowState, ...]:
        """Return the one tuple of these states, each of which has to be interned."""
        return self._tuples.intern(states)

    def intern_all(self, states: tuple[RowState, ...]) -> tuple[RowState, ...]:
        """Intern states and the tuple of them. Raises `BudgetError` when there are too many new ones."""
        for state in states:
            if state not in self._known:
                self.count()
                self._known[state] = state
        return self.intern_tuple(tuple(map(self._known.__getitem__, states)))


class _Node(dict[bytes, "_Node"]):
    """A state of the machine: maps instructions to the state after them, which is computed when it is missing.

    A dict, because a path is then one `accumulate` over `getitem`, which calls no Python code for known steps.
    """

    __slots__ = ("graph", "row_state", "state")

    def __init__(self, graph: _Graph, state: RegisterState, row_state: RowState) -> None:
        super().__init__()
        self.graph = graph
        self.state = state
        self.row_state = row_state

    def __missing__(self, code: bytes) -> _Node:
        node = self[code] = self.graph.follow(self.state, code)
        return node


class _Codes(dict[bytes, bytes]):
    """Maps a chunk to its instructions after the advance; `advances` has the advances of known chunks, in bytes."""

    def __init__(self, byte_order: str, code_alignment: int) -> None:
        super().__init__()
        self._byte_order = byte_order
        self._code_alignment = code_alignment
        self.advances: dict[bytes, int] = {}

    def __missing__(self, chunk: bytes) -> bytes:
        units, code = read_chunk(chunk, self._byte_order)
        self.advances[chunk] = units * self._code_alignment
        self[chunk] = code
        return code


class _Path(NamedTuple):
    """The states along a path: one at the function's start, and one after each chunk.

    `changes` are those that differ from the state before, and `is_change` tells which these are (None: all). The others
    come from instructions for registers that rows do not follow; on AArch64 nearly every function has some.
    """

    states: tuple[RowState, ...]
    changes: tuple[RowState, ...]
    is_change: tuple[bool, ...] | None


class _Paths(dict[tuple[bytes, ...], _Path]):
    """Maps the instructions of a program's chunks to its path: most programs differ in their advances only."""

    def __init__(self, graph: _Graph, row_states: _RowStates) -> None:
        super().__init__()
        self._graph = graph
        self._row_states = row_states

    def __missing__(self, codes: tuple[bytes, ...]) -> _Path:
        start = self._graph.node(self._graph.machine.initial_state)
        states = tuple(map(_row_state_of, accumulate(codes, getitem, initial=start)))
        is_change = (True, *map(is_not, states, states[1:]))
        changes = self._row_states.intern_tuple(tuple(compress(states, is_change)))
        path = self[codes] = _Path(states, changes, None if all(is_change) else is_change)
        return path


class _Graph:
    """The graph of one CIE: its edges depend on the CIE's factors and initial rules."""

    def __init__(self, machine: RowMachine, row_states: _RowStates, byte_order: str) -> None:
        self.machine = machine
        self._row_states = row_states
        self._nodes: dict[RegisterState, _Node] = {}
        #: Instructions by their bytes: few strings occur, each after many states.
        self._instructions: dict[bytes, tuple[Instruction, ...]] = {}
        self._codes = _Codes(byte_order, machine.cie.code_alignment)
        self._paths = _Paths(self, row_states)

    def table(self, chunks: list[bytes]) -> UnwindTable:
        """Return the table of a program, given its chunks.

        Raises `CfiError` when the program is damaged, `BudgetError` when the file has too many distinct states.
        """
        path = self._paths[tuple(map(self._codes.__getitem__, chunks))]
        advances = list(map(self._codes.advances.__getitem__, chunks))
        starts = tuple(accumulate(advances, initial=0))
        if 0 in advances:
            rows = TableBuilder()
            for start, state in zip(starts, path.states, strict=True):
                rows.add(start, state)
            table = rows.table()
            return table._replace(states=self._row_states.intern_tuple(table.states))
        if path.is_change is not None:
            starts = tuple(compress(starts, path.is_change))
        return UnwindTable(starts, path.changes)

    def interned(self, table: UnwindTable) -> UnwindTable:
        """Return a table with its states interned. Raises `BudgetError`."""
        return table._replace(states=self._row_states.intern_all(table.states))

    def follow(self, state: RegisterState, code: bytes) -> _Node:
        """Return the node after a state and a string of instructions without advances. Raises as `table` does."""
        instructions = self._instructions.get(code)
        if instructions is None:
            instructions = self._instructions[code] = tuple(self.machine.read(code))
        return self.node(self.machine.step(state, instructions))

    def node(self, state: RegisterState) -> _Node:
        """Return the node of a state. Raises `BudgetError`."""
        node = self._nodes.get(state)
        if node is None:
            self._row_states.count()
            node = self._nodes[state] = _Node(self, state, self._row_states.intern(state.row_state))
        return node
