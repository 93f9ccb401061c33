# SPDX-License-Identifier: Apache-2.0
"""The CFI row machine (DWARF 5, 6.4.2 and 6.4.3): a CIE and instruction bytes become rows.

Follows CFA, RA, FP and SP; the rules of other registers are stepped over. Knows nothing of SFrame, and nothing of where
a function lies, but for DW_CFA_set_loc.

Programs repeat one another in pieces: the same instructions in the same state lead to the same state. So states are
nodes of a graph, instruction chunks its edges, and only an edge not walked before is interpreted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.instructions import quick_chunks, read_chunk, walk_chunks
from cfi2sframe.dwarf.pointer import fixed_size, read_pointer
from cfi2sframe.dwarf.registers import Registers, RememberStack
from cfi2sframe.dwarf.rules import CfiRow
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie
    from cfi2sframe.dwarf.pointer import PointerBases
    from cfi2sframe.dwarf.registers import RegisterState
    from cfi2sframe.dwarf.rules import RowState


#: The quick way to cut instruction strings pays for its preparation from about this many on.
_QUICK_FROM: Final = 100


class Location(NamedTuple):
    """What DW_CFA_set_loc needs: the function's start, where the instructions stand, and how pointers resolve."""

    pc_begin_vaddr: int
    instructions_vaddr: int
    bases: PointerBases


class CfiProgram(NamedTuple):
    """The rows of an instruction string; `depends_on_location` when another place of it may give other rows."""

    rows: tuple[CfiRow, ...]
    depends_on_location: bool


def run(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> CfiProgram:
    """Interpret an FDE's instructions behind its CIE's; see `RowMachine.run`."""
    return RowMachine(arch).run(cie, instructions, location)


class _Node:
    """A state of the machine, and the edges that lead on from it by chunk."""

    __slots__ = ("edges", "row", "state")

    def __init__(self, state: RegisterState, row: RowState) -> None:
        self.state = state
        self.row = row
        self.edges: dict[bytes, _Edge] = {}


#: What an edge leads to: advance in bytes; the next node's row and edges, which spare a look into the node; the node.
_Edge = tuple[int, "RowState", dict[bytes, "_Edge"], "_Node"]


class _CieGraph:
    """The graph of one CIE: factors and initial rules belong to its edges."""

    def __init__(self, cie: DwarfCie, arch: Arch, rows: dict[RowState, RowState]) -> None:
        self.cie = cie
        self.byte_order = arch.byte_order
        self.rows = rows
        self.nodes: dict[RegisterState, _Node] = {}
        self.stack = RememberStack()
        self.registers = Registers(cie, arch, self.stack)
        for chunk in walk_chunks(cie.instructions, arch.byte_order, fixed_size(cie.fde_encoding)):
            # An advance has no meaning in a CIE: what counts is the state behind its last instruction.
            _execute(self.registers, chunk.code, chunk.code_offset)
        self.registers.set_initial_rules()
        self.start = self.node(self.registers.freeze())

    def node(self, state: RegisterState) -> _Node:
        node = self.nodes.get(state)
        if node is None:
            row = self.registers.row_of(state)
            node = self.nodes[state] = _Node(state, self.rows.setdefault(row, row))
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
    """Interprets the programs of one file. Equal row states are one object, within a machine."""

    def __init__(self, arch: Arch) -> None:
        self._arch = arch
        self._graphs: dict[DwarfCie, _CieGraph] = {}
        self._rows: dict[RowState, RowState] = {}
        self._last: _CieGraph | None = None
        self._run_count = 0

    def run(self, cie: DwarfCie, instructions: bytes, location: Location | None = None) -> CfiProgram:
        """Interpret an FDE's instructions behind its CIE's.

        Rows ascend from 0; neighbours differ; a row of no length is replaced by its successor. The rows know nothing
        of the function's size: those that start behind its end are the caller's to cut.
        Raises `CfiError`, its offset counted from the first instruction, when an instruction is unknown, truncated or
        out of context, or needs a `location` that was not given.
        """
        graph = self._last
        if graph is None or graph.cie is not cie:
            graph = self._last = self._graph(cie)
        self._run_count += 1
        chunks = None if self._run_count < _QUICK_FROM else quick_chunks(instructions)
        if chunks is None:
            return self._walk(graph, instructions, location)
        node = graph.start
        edges = node.edges
        last = node.row
        make_row = tuple.__new__
        rows: list[CfiRow] = [CfiRow(0, last)]
        delta = last_delta = 0
        for chunk in chunks:
            try:
                advance, row, edges, node = edges[chunk]
            except KeyError:
                advance, row, edges, node = self._new_edge(graph, node, chunk, chunks)
            delta += advance
            if row is not last:
                if delta == last_delta:
                    last_delta = _replace_last(rows, row)
                else:
                    rows.append(make_row(CfiRow, (delta, row)))
                    last_delta = delta
                last = row
        return CfiProgram(tuple(rows), depends_on_location=False)

    def _graph(self, cie: DwarfCie) -> _CieGraph:
        graph = self._graphs.get(cie)
        if graph is None:
            try:
                graph = _CieGraph(cie, self._arch, self._rows)
            except CfiError as error:
                raise CfiError(f"in its CIE: {error.reason}") from None
            self._graphs[cie] = graph
        return graph

    def _new_edge(self, graph: _CieGraph, node: _Node, chunk: bytes, chunks: list[bytes]) -> _Edge:
        units, code = read_chunk(chunk, graph.byte_order)
        try:
            following = graph.follow(node, code, 0)
        except CfiError as error:
            raise self._located(graph, error, chunks) from None
        edge = (units * graph.cie.code_alignment, following.row, following.edges, following)
        node.edges[chunk] = edge
        return edge

    def _located(self, graph: _CieGraph, error: CfiError, chunks: list[bytes]) -> CfiError:
        """Return an error with its place in the whole string, which the walk finds again."""
        try:
            self._walk(graph, b"".join(chunks), None)
        except CfiError as located:
            return located
        return error

    def _walk(self, graph: _CieGraph, instructions: bytes, location: Location | None) -> CfiProgram:
        """Interpret a string with expressions, DW_CFA_set_loc or damage."""
        node = graph.start
        last = node.row
        rows = [CfiRow(0, last)]
        delta = last_delta = 0
        depends_on_location = False
        cie = graph.cie
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
            row = node.row
            if row is not last:
                if delta == last_delta:
                    last_delta = _replace_last(rows, row)
                else:
                    rows.append(CfiRow(delta, row))
                    last_delta = delta
                last = row
        return CfiProgram(tuple(rows), depends_on_location)


def _replace_last(rows: list[CfiRow], row: RowState) -> int:
    """Replace a row of no length by its successor, which may be the row before it; return the last row's delta."""
    start_delta = rows.pop().start_delta
    if rows and rows[-1].state is row:
        return rows[-1].start_delta
    rows.append(CfiRow(start_delta, row))
    return start_delta


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
