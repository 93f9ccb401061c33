# SPDX-License-Identifier: Apache-2.0
"""The CFI row machine (DWARF 5, 6.4.2 and 6.4.3): a CIE and instruction bytes become rows.

Follows CFA, RA, FP and SP; the rules of other registers are stepped over. Knows nothing of SFrame, and nothing of where
a function lies, but for DW_CFA_set_loc.

Programs repeat one another in pieces: the same instructions in the same state lead to the same state. So states are
nodes of a graph, instruction chunks its edges, and only an edge not walked before is interpreted.
"""

from __future__ import annotations

from itertools import accumulate, compress
from operator import attrgetter, getitem, is_not
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.instructions import CUTTER, Cutter, read_chunk, walk_chunks
from cfi2sframe.dwarf.pointer import fixed_size, read_pointer
from cfi2sframe.dwarf.registers import Registers, RememberStack
from cfi2sframe.dwarf.rules import CfiRow
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.budget import Budget
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.pointer import PointerBases
    from cfi2sframe.dwarf.registers import RegisterState
    from cfi2sframe.dwarf.rules import RowState

_row_of: Final = attrgetter("row")
#: Bytes of memory that a distinct state takes from here to the comparison of its row. Programs have a state for some
#: thousand bytes of theirs; a file may have one for every five.
_STATE_SIZE: Final = 1000
#: The work on one, in the same stages.
_STATE_STEPS: Final = 10
#: Makes a record of a tuple without a call in between.
_make: Final = tuple.__new__


class Location(NamedTuple):
    """What DW_CFA_set_loc needs: the function's start, where the instructions stand, and how pointers resolve."""

    pc_begin_vaddr: int
    instructions_vaddr: int
    bases: PointerBases


class CfiProgram(NamedTuple):
    """The rows of an instruction string, as columns: row N holds from `starts[N]` (bytes from the function's start) on.

    `depends_on_location` when another place of the string may give other rows.
    """

    starts: tuple[int, ...]
    states: tuple[RowState, ...]
    depends_on_location: bool = False

    @property
    def rows(self) -> tuple[CfiRow, ...]:
        """The rows as records."""
        return tuple(map(CfiRow, self.starts, self.states))


def run(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> CfiProgram:
    """Interpret an FDE's instructions behind its CIE's; see `RowMachine.run`."""
    return RowMachine(arch).run(cie, instructions, location)


class _Node(dict[bytes, "_Node"]):
    """A state of the machine, as the mapping that leads on from it: instructions without advances -> node.

    `row` is what it says of a row. What has not been asked for before is interpreted then, so that a whole string is a
    chain of look-ups.
    """

    __slots__ = ("graph", "row", "state")

    def __init__(self, graph: _CieGraph, state: RegisterState, row: RowState) -> None:
        super().__init__()
        self.graph = graph
        self.state = state
        self.row = row

    def __missing__(self, code: bytes) -> _Node:
        node = self[code] = self.graph.follow(self, code, 0)
        return node


class Codes(dict[bytes, bytes]):
    """Chunk -> its instructions behind the advance; what it advances by is noted in `advances` then, in bytes."""

    def __init__(self, byte_order: str, code_alignment: int) -> None:
        super().__init__()
        self.byte_order = byte_order
        self.code_alignment = code_alignment
        self.advances: dict[bytes, int] = {}

    def __missing__(self, chunk: bytes) -> bytes:
        units, code = read_chunk(chunk, self.byte_order)
        self.advances[chunk] = units * self.code_alignment
        self[chunk] = code
        return code


class _Sequence(NamedTuple):
    """What the rows of programs say that differ by their advances alone.

    `all_states` has one for each chunk, behind that at the function's start. `states` are those that differ from the
    one before, `is_kept` says which these are; None: all.
    """

    all_states: tuple[RowState, ...]
    states: tuple[RowState, ...]
    is_kept: tuple[bool, ...] | None


class _Sequences(dict[tuple[bytes, ...], _Sequence]):
    """Instructions between advances -> what the rows say: programs differ by their advances more than by these."""

    def __init__(self, start: _Node) -> None:
        super().__init__()
        self.start = start
        self.lists: dict[tuple[int, ...], tuple[RowState, ...]] = {}

    def __missing__(self, codes: tuple[bytes, ...]) -> _Sequence:
        all_states = tuple(map(_row_of, accumulate(codes, getitem, initial=self.start)))
        is_kept = (True, *map(is_not, all_states, all_states[1:]))
        # Registers that no row tells of are saved, on AArch64 in nearly every function.
        states = tuple(compress(all_states, is_kept))
        # Equal lists are one object: whoever works on them knows them by that.
        states = self.lists.setdefault(tuple(map(id, states)), states)
        sequence = self[codes] = _Sequence(all_states, states, None if all(is_kept) else is_kept)
        return sequence


class _Shared(NamedTuple):
    """What the graphs of a file share: rows and expressions, of which equal ones are one object, and the budget."""

    rows: dict[RowState, RowState]
    blocks: dict[bytes, bytes]
    budget: Budget | None


class _CieGraph:
    """The graph of one CIE: factors and initial rules belong to its edges. `shared` is what a file's graphs share."""

    def __init__(self, cie: DwarfCie, arch: Arch, shared: _Shared) -> None:
        self.cie = cie
        self.byte_order = arch.byte_order
        self.shared = shared
        self.nodes: dict[RegisterState, _Node] = {}
        self.code_of = Codes(arch.byte_order, cie.code_alignment)
        self.stack = RememberStack()
        self.registers = Registers(cie, arch, self.stack, shared.blocks)
        for chunk in walk_chunks(cie.instructions, arch.byte_order, fixed_size(cie.fde_encoding)):
            # An advance has no meaning in a CIE: what counts is the state behind its last instruction.
            _execute(self.registers, chunk.code, chunk.code_offset)
        self.registers.set_initial_rules()
        self.start = self.node(self.registers.freeze())
        self.sequences = _Sequences(self.start)

    def node(self, state: RegisterState) -> _Node:
        node = self.nodes.get(state)
        if node is None:
            rows, _, budget = self.shared
            if budget is not None:
                budget.hold(_STATE_SIZE, "the rows that differ from one another")
                budget.spend(_STATE_STEPS, "the rows that differ from one another")
            row = self.registers.row_of(state)
            node = self.nodes[state] = _Node(self, state, rows.setdefault(row, row))
        return node

    def follow(self, node: _Node, code: bytes, offset: int) -> _Node:
        """Interpret instructions without an advance, `offset` bytes into their string."""
        self.registers.load(node.state)
        _execute(self.registers, code, offset)
        return self.node(self.registers.freeze())


def _execute(registers: Registers, code: bytes, offset: int) -> None:
    try:
        registers.execute(code)
    except CfiError as error:
        raise CfiError(error.reason, "", offset + (error.offset or 0)) from None


class RowMachine:
    """Interprets the programs of one file. Equal row states are one object, within a machine.

    `budget` counts the distinct states; whatever runs a program raises `BudgetError` when they are too many.
    """

    def __init__(self, arch: Arch, cutter: Cutter = CUTTER, budget: Budget | None = None) -> None:
        self._arch = arch
        self._cutter = cutter
        #: By CIE; what is wrong with those that are damaged, whose FDEs may be many.
        self._graphs: dict[DwarfCie, _CieGraph | CfiError] = {}
        self._shared = _Shared({}, {}, budget)
        self._last: _CieGraph | None = None

    def run(self, cie: DwarfCie, instructions: bytes, location: Location | None = None) -> CfiProgram:
        """Interpret an FDE's instructions behind its CIE's.

        Rows ascend from 0; neighbours differ; a row of no length is replaced by its successor. The rows know nothing
        of the function's size: those that start behind its end are the caller's to cut.
        Raises `CfiError`, its offset counted from the first instruction, when an instruction is unknown, truncated or
        out of context, or needs a `location` that was not given.
        """
        program = self.run_quickly(cie, instructions)
        return self.walk(cie, instructions, location) if program is None else program

    def run_quickly(self, cie: DwarfCie, instructions: bytes) -> CfiProgram | None:
        """Do the same as `run`; None where it takes a walk: for damage, a location, expressions, the first few.

        Raises `CfiError` for damage in the CIE.
        """
        graph = self._graph(cie)
        chunks = self._cutter.cut(instructions)
        if chunks is None:
            return None
        codes = tuple(map(graph.code_of.__getitem__, chunks))
        try:
            all_states, states, is_kept = graph.sequences[codes]
        except CfiError:
            # The walk meets the same damage, and knows its place in the string.
            return None
        advances = list(map(graph.code_of.advances.__getitem__, chunks))
        starts = tuple(accumulate(advances, initial=0))
        if 0 in advances:
            return _merged(starts, all_states)
        if is_kept is not None:
            starts = tuple(compress(starts, is_kept))
        return _make(CfiProgram, (starts, states, False))

    def _graph(self, cie: DwarfCie) -> _CieGraph:
        last = self._last
        if last is not None and last.cie is cie:
            return last
        graph = self._graphs.get(cie)
        if graph is None:
            try:
                graph = _CieGraph(cie, self._arch, self._shared)
            except CfiError as error:
                graph = error
            self._graphs[cie] = graph
        if isinstance(graph, CfiError):
            raise CfiError(f"in its CIE: {graph.reason}")
        self._last = graph
        return graph

    def walk(self, cie: DwarfCie, instructions: bytes, location: Location | None = None) -> CfiProgram:
        """Do the same as `run`, instruction by instruction."""
        graph = self._graph(cie)
        node = graph.start
        starts, states = [0], [node.row]
        delta = 0
        depends_on_location = False
        for chunk in walk_chunks(instructions, graph.byte_order, fixed_size(cie.fde_encoding)):
            if chunk.opcode == d.DW_CFA_set_loc:
                depends_on_location = True
                new_delta = _set_loc(cie, instructions, chunk.advance, location)
                if new_delta < delta:
                    raise CfiError("set_loc goes back", "", chunk.offset)
                delta = new_delta
            else:
                delta += chunk.advance * cie.code_alignment
            node = graph.follow(node, chunk.code, chunk.code_offset)
            starts.append(delta)
            states.append(node.row)
        return _merged(starts, states, depends_on_location=depends_on_location)


def _merged(starts: Sequence[int], states: Sequence[RowState], *, depends_on_location: bool = False) -> CfiProgram:
    """Return a program without rows of no length, which their successors replace, and without equal neighbours."""
    kept_starts, kept_states = [starts[0]], [states[0]]
    for start, state in zip(starts, states, strict=True):
        if start == kept_starts[-1]:
            kept_states[-1] = state
            # The successor may be the row before.
            if len(kept_states) > 1 and kept_states[-2] is state:
                del kept_starts[-1], kept_states[-1]
        elif state is not kept_states[-1]:
            kept_starts.append(start)
            kept_states.append(state)
    return CfiProgram(tuple(kept_starts), tuple(kept_states), depends_on_location)


def _set_loc(cie: DwarfCie, instructions: bytes, position: int, location: Location | None) -> int:
    """Return the delta that a DW_CFA_set_loc with its operand at `position` goes to."""
    if location is None:
        raise CfiError("set_loc outside a function", "", position - 1)
    if cie.fde_encoding == d.DW_EH_PE_aligned:
        # Its padding depends on where the instructions stand; no compiler has been seen to write one.
        raise CfiError("set_loc to an aligned pointer is not supported", "", position - 1)
    try:
        vaddr, _ = read_pointer(instructions, position, cie.fde_encoding, location.bases, location.instructions_vaddr)
    except CfiError as error:
        raise CfiError(error.reason, "", position - 1) from None
    return vaddr - location.pc_begin_vaddr
