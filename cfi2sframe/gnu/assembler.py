# SPDX-License-Identifier: Apache-2.0
"""How many bytes GNU as would spend on a function's rows, from its call frame instructions.

A model of sizes, not a converter. The assembler starts a row at each advance that is followed by a directive on CFA,
RA or FP, whether or not it changes anything; it adds whatever state it is in as the last row; and it gives up on a
function at directives that its version does not know to say. Binutils 2.40 wrote version 1, 2.41 to 2.45 version 2,
2.46 and later version 3; `Gas` says in what they differ.

States are nodes of a graph and instruction chunks its edges, as in `dwarf.machine`: an edge is walked once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.dwarf.constants import DW_CFA_set_loc
from cfi2sframe.dwarf.instructions import ADVANCES, CUTTER, read_chunk, read_instructions
from cfi2sframe.dwarf.pointer import fixed_size
from cfi2sframe.errors import CfiError
from cfi2sframe.gnu.directives import GasState, GiveUp, Translation
from cfi2sframe.gnu.rows import Gas, GasFunction, GasRow, words_size
from cfi2sframe.sframe.constants import V3_MAX_FRES

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfCie


#: A program cut into (whether it starts with an advance, the instructions up to the next).
Chunks = list[tuple[bool, bytes]]


class _Node:
    __slots__ = ("edges", "state")

    def __init__(self, state: GasState) -> None:
        self.state = state
        self.edges: dict[tuple[bool, bytes], tuple[_Node | None, GasRow | None]] = {}


class GasModel:
    """Assembles the programs of one file for one SFrame version."""

    def __init__(self, gas: Gas) -> None:
        self.gas = gas
        self._starts: dict[DwarfCie, _Node | None] = {}
        self._nodes: dict[GasState, _Node] = {}
        self._sizes: dict[tuple[GasRow, bool], int] = {}

    def assemble(self, cie: DwarfCie, chunks: Chunks | None) -> GasFunction | None:
        """Return the function with these instructions (see `cut`), or None when the assembler would leave it out."""
        rows = None if chunks is None else self._rows(cie, chunks)
        if rows is None:
            # Version 3 keeps signal frames without rows, which says that the stack ends there.
            is_kept = self.gas.version >= 3 and cie.is_signal_frame
            return GasFunction(0, is_flexible=False, word_sizes=()) if is_kept else None
        kept, is_flexible = rows
        if not kept and self.gas.version < 3:
            return None
        counts: dict[int, int] = {}
        sizes = self._sizes
        for row in kept:
            size = sizes.get((row, is_flexible))
            if size is None:
                size = sizes[row, is_flexible] = words_size(row, self.gas, is_flexible=is_flexible)
            counts[size] = counts.get(size, 0) + 1
        return GasFunction(len(kept), is_flexible, tuple(sorted(counts.items())))

    def _rows(self, cie: DwarfCie, chunks: Chunks) -> tuple[list[GasRow], bool] | None:
        """Return the rows and whether they are flexible; None when the assembler gives up."""
        node = self._start(cie)
        rows: list[GasRow] = []
        for chunk in chunks:
            if node is None:
                return None
            edge = node.edges.get(chunk)
            if edge is None:
                edge = node.edges[chunk] = self._follow(node, chunk, cie)
            node, row = edge
            if row is not None:
                rows.append(row)
        if node is None:
            return None
        if node.state.row is not None:
            rows.append(node.state.row)
        return None if self._is_refused(rows) else (rows, node.state.flexible)

    def _is_refused(self, rows: list[GasRow]) -> bool:
        gas = self.gas
        if gas.version >= 3 and len(rows) > V3_MAX_FRES:
            return True
        if gas.version < 2 or not gas.tracks_ra or gas.arch.pads_ra:
            return False
        return any(row.fp.where == "stack" and row.ra.where != "stack" for row in rows)

    def _start(self, cie: DwarfCie) -> _Node | None:
        if cie not in self._starts:
            node = None
            if cie.ra_register == self.gas.arch.ra_register:
                try:
                    node = self._node(Translation(self.gas, cie, GasState()).run(cie.instructions))
                except (GiveUp, CfiError):
                    node = None
            self._starts[cie] = node
        return self._starts[cie]

    def _node(self, state: GasState) -> _Node:
        node = self._nodes.get(state)
        if node is None:
            node = self._nodes[state] = _Node(state)
        return node

    def _follow(self, node: _Node, chunk: tuple[bool, bytes], cie: DwarfCie) -> tuple[_Node | None, GasRow | None]:
        advances, code = chunk
        emitted, state = _advance(node.state) if advances else (None, node.state)
        try:
            return self._node(Translation(self.gas, cie, state).run(code)), emitted
        except (GiveUp, CfiError):
            return None, emitted


def cut(cie: DwarfCie, instructions: bytes, arch: Arch) -> Chunks | None:
    """Cut a program into chunks; None when it is damaged."""
    chunks: Chunks = []
    quick = CUTTER.cut(instructions)
    if quick is not None:
        for chunk in quick:
            code = read_chunk(chunk, arch.byte_order)[1]
            chunks.append((len(code) < len(chunk), code))
        return chunks
    has_advance, start = False, 0
    try:
        for instruction in read_instructions(instructions, arch.byte_order, fixed_size(cie.fde_encoding)):
            if instruction.opcode in ADVANCES or instruction.opcode == DW_CFA_set_loc:
                if has_advance or instruction.offset:
                    chunks.append((has_advance, instructions[start : instruction.offset]))
                has_advance, start = True, instruction.end
    except CfiError:
        return None
    if instructions:
        chunks.append((has_advance, instructions[start:]))
    return chunks


def _advance(state: GasState) -> tuple[GasRow | None, GasState]:
    """Return the row that an advance completes, if any, and the state behind it."""
    if state.row is None:
        return None, state._replace(row=GasRow())
    if state.is_new:
        return None, state
    first = state.row if state.first is None else state.first
    return state.row, state._replace(last=state.row, first=first, is_new=True)
