# SPDX-License-Identifier: Apache-2.0
"""How many bytes GNU as would spend on a function's rows, from its call frame instructions, and where the rows begin.

A model of sizes, not a converter. The assembler starts a row at each advance that is followed by a directive on CFA,
RA or FP, whether or not the directive changes anything; it appends its last state as the last row; and it drops a
function at directives that its version cannot express. Binutils 2.40 wrote version 1, 2.41 to 2.45 version 2, 2.46 and
later version 3; `GasTarget` and `directives` have the differences.

States are the nodes of a graph and instruction chunks its edges, so that each edge is walked once for a whole file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.constants import DW_CFA_set_loc
from cfi2sframe.dwarf.instructions import ADVANCES, CUTTER, read_chunk, read_instructions
from cfi2sframe.dwarf.pointer import fixed_size
from cfi2sframe.errors import CfiError
from cfi2sframe.gnu.directives import GasState, GiveUp, Translation
from cfi2sframe.gnu.rows import Assembled, GasFunction, GasRow, GasTarget, words_size
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.constants import V3_MAX_FRES

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie


class Chunks(NamedTuple):
    """A program cut before each advance.

    `parts`: whether a part starts with an advance, and the instructions after it up to the next. `deltas`: the
    distances from the function's start to where these apply, in units of the code alignment.
    """

    parts: list[tuple[bool, bytes]]
    deltas: list[int]


class _GasNode:
    __slots__ = ("edges", "state")

    def __init__(self, state: GasState) -> None:
        self.state = state
        #: By chunk: the next state, None when the assembler drops the function; and the row that the chunk completes.
        self.edges: dict[tuple[bool, bytes], tuple[_GasNode | None, GasRow | None]] = {}


class GasModel:
    """Assembles the programs of one file for one SFrame version."""

    def __init__(self, gas: GasTarget) -> None:
        self.gas = gas
        self._starts: IdentityMap[DwarfCie, _GasNode | None] = IdentityMap(self._start)
        self._nodes: dict[GasState, _GasNode] = {}
        self._sizes: dict[tuple[GasRow, bool], int] = {}

    def assemble(self, cie: DwarfCie, chunks: Chunks | None) -> Assembled | None:
        """Return the function with these instructions (see `cut`), or None when the assembler drops it."""
        rows = None if chunks is None else self._rows(cie, chunks)
        if rows is None:
            # Version 3 keeps signal frames without rows, which tell a tracer that the stack ends there.
            is_kept = self.gas.version >= 3 and cie.is_signal_frame
            return Assembled(GasFunction(0, is_flexible=False, word_sizes=()), ()) if is_kept else None
        kept, row_starts, is_flexible = rows
        if not kept and self.gas.version < 3:
            return None
        counts: dict[int, int] = {}
        sizes = self._sizes
        for row in kept:
            size = sizes.get((row, is_flexible))
            if size is None:
                size = sizes[row, is_flexible] = words_size(row, self.gas, is_flexible=is_flexible)
            counts[size] = counts.get(size, 0) + 1
        return Assembled(GasFunction(len(kept), is_flexible, tuple(sorted(counts.items()))), tuple(row_starts))

    def _rows(self, cie: DwarfCie, chunks: Chunks) -> tuple[list[GasRow], list[int], bool] | None:
        """Return the rows, their starts, and whether they are flexible; None when the assembler drops the function."""
        node = self._starts[cie]
        rows: list[GasRow] = []
        row_starts: list[int] = []
        # Where the current row begins: at the last advance before a directive changes it.
        begin = 0
        for chunk, delta in zip(chunks.parts, chunks.deltas, strict=True):
            if node is None:
                return None
            edge = node.edges.get(chunk)
            if edge is None:
                edge = node.edges[chunk] = self._follow(node, chunk, cie)
            node, row = edge
            if row is not None:
                rows.append(row)
                row_starts.append(begin)
            begin = delta
        if node is None:
            return None
        if node.state.row is not None:
            rows.append(node.state.row)
            row_starts.append(begin)
        return None if self._is_refused(rows) else (rows, row_starts, node.state.flexible)

    def _is_refused(self, rows: list[GasRow]) -> bool:
        gas = self.gas
        if gas.version >= 3 and len(rows) > V3_MAX_FRES:
            return True
        if gas.version < 2 or not gas.tracks_ra or gas.arch.pads_ra:
            return False
        return any(row.fp.where == "stack" and row.ra.where != "stack" for row in rows)

    def _start(self, cie: DwarfCie) -> _GasNode | None:
        """Return the state after the CIE's initial instructions; None when the assembler drops all of its functions."""
        if cie.ra_register != self.gas.arch.ra_register:
            return None
        return self._execute(GasState(), cie.instructions, cie)

    def _follow(
        self, node: _GasNode, chunk: tuple[bool, bytes], cie: DwarfCie
    ) -> tuple[_GasNode | None, GasRow | None]:
        advances, code = chunk
        emitted, state = _advance(node.state) if advances else (None, node.state)
        return self._execute(state, code, cie), emitted

    def _execute(self, state: GasState, code: bytes, cie: DwarfCie) -> _GasNode | None:
        try:
            after = Translation(self.gas, cie, state).run(code)
        except (GiveUp, CfiError):
            return None
        node = self._nodes.get(after)
        if node is None:
            node = self._nodes[after] = _GasNode(after)
        return node


def cut(cie: DwarfCie, instructions: bytes, arch: Arch) -> Chunks | None:
    """Cut a program into chunks; None when it is damaged."""
    chunks = Chunks([], [])
    delta = 0
    quick = CUTTER.cut(instructions)
    if quick is not None:
        for chunk in quick:
            advance, code = read_chunk(chunk, arch.byte_order)
            delta += advance
            chunks.parts.append((len(code) < len(chunk), code))
            chunks.deltas.append(delta)
        return chunks
    has_advance, start = False, 0
    try:
        for instruction in read_instructions(instructions, arch.byte_order, fixed_size(cie.fde_encoding)):
            if instruction.opcode in ADVANCES or instruction.opcode == DW_CFA_set_loc:
                if has_advance or instruction.offset:
                    chunks.parts.append((has_advance, instructions[start : instruction.offset]))
                    chunks.deltas.append(delta)
                has_advance, start = True, instruction.end
                # DW_CFA_set_loc has an address, and no assembler writes it: the row stays where it is.
                if instruction.opcode in ADVANCES and isinstance(instruction.operands[0], int):
                    delta += instruction.operands[0]
    except CfiError:
        return None
    if instructions:
        chunks.parts.append((has_advance, instructions[start:]))
        chunks.deltas.append(delta)
    return chunks


def _advance(state: GasState) -> tuple[GasRow | None, GasState]:
    """Return the row that an advance completes, if any, and the state after the advance."""
    if state.row is None:
        return None, state._replace(row=GasRow())
    if state.is_new:
        return None, state
    first = state.row if state.first is None else state.first
    return state.row, state._replace(last=state.row, first=first, is_new=True)
