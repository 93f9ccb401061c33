# SPDX-License-Identifier: Apache-2.0
"""Random programs for AMD64 made together with their rows: blocks, loops, branches, calls, pushes and frames.

The maker of a program knows the stack depth and where FP is saved, because it has put them there.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from hypothesis import strategies as st

from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState
from tests.support.dwarf.rules import at_cfa, register_offset

_RBP, _RSP = 6, 7
_PUSHES: Final = {"rbx": (b"\x53", b"\x5b"), "r12": (b"\x41\x54", b"\x41\x5c"), "r15": (b"\x41\x57", b"\x41\x5f")}
#: `shr r9, 1`: bit after bit decides about branches. `jc`; `ud2`; `ret`; `leave`.
_NEXT_BIT, _IF_CARRY, _TRAP, _RET, _LEAVE = b"\x49\xd1\xe9", b"\x0f\x82", b"\x0f\x0b", b"\xc3", b"\xc9"
#: What is never executed: `push rax; push rax; ret`, two traps, something undefined.
_DEAD: Final = (b"", b"\x50\x50\xc3", b"\xcc\xcc", b"\x06")


class Statement(NamedTuple):
    """A statement: its kind, a number or a register for it, and the statements inside."""

    kind: str
    operand: int | str = 0
    body: tuple[Statement, ...] = ()


class Body(NamedTuple):
    """A function: its statements, whether its CFA counts from FP, whether it returns, and whether it has a symbol."""

    statements: tuple[Statement, ...]
    has_frame: bool
    returns: bool
    has_symbol: bool
    dead: bytes


class Generated(NamedTuple):
    """Code, the offsets of its functions, those that have symbols, and the row at each offset of one."""

    code: bytes
    functions: tuple[int, ...]
    symbols: tuple[int, ...]
    rows: dict[int, RowState]


def bodies() -> st.SearchStrategy[list[Body]]:
    """Return a strategy of functions that call one another by number."""
    plain = st.builds(Statement, st.sampled_from(("move", "call", "die", "return")), st.integers(0, 5))

    def nest(inner: st.SearchStrategy[Statement]) -> st.SearchStrategy[Statement]:
        body = st.lists(inner, max_size=3).map(tuple)
        return st.one_of(
            st.builds(Statement, st.just("push"), st.sampled_from(sorted(_PUSHES)), body),
            st.builds(Statement, st.just("sub"), st.sampled_from((8, 24, 0x1000)), body),
            st.builds(Statement, st.sampled_from(("if", "loop", "save fp", "alloca")), st.just(0), body),
        )

    statement = st.recursive(plain, nest, max_leaves=40)
    body = st.builds(
        Body,
        st.lists(statement, max_size=3).map(tuple),
        st.booleans(),
        st.sampled_from((True, True, True, False)),
        st.booleans(),
        st.sampled_from(_DEAD),
    )
    return st.lists(body, min_size=1, max_size=5)


class _Frame(NamedTuple):
    """The bytes from SP to the CFA, None after an alloca; where FP is saved, counted from the CFA."""

    depth: int | None = 8
    saved_fp: int | None = None
    has_frame: bool = False

    def row(self) -> RowState:
        cfa = register_offset(_RBP, 16) if self.depth is None else register_offset(_RSP, self.depth)
        fp = NoRule.UNSPECIFIED if self.saved_fp is None else at_cfa(self.saved_fp)
        return RowState(cfa, at_cfa(-8), fp, NoRule.UNSPECIFIED, RaSigning.NONE)

    def deeper(self, size: int) -> _Frame:
        return self._replace(depth=None if self.depth is None else self.depth + size)


class _Maker:
    def __init__(self, functions: Sequence[Body]) -> None:
        self.functions = functions
        self.code = bytearray()
        self.rows: dict[int, dict[int, RowState]] = {}
        self.starts: list[int] = []
        self.calls: list[tuple[int, int, int]] = []
        self.number = 0

    def emit(self, instruction: bytes, frame: _Frame) -> None:
        row = frame.row()
        for offset in range(len(self.code), len(self.code) + len(instruction)):
            self.rows[self.number][offset] = row
        self.code += instruction

    def make(self) -> Generated:
        for number, body in enumerate(self.functions):
            self.number = number
            self.starts.append(len(self.code))
            self.rows[self.number] = {}
            self.function(body)
            self.code += body.dead
        for number, place, target in self.calls:
            del number
            struct.pack_into("<i", self.code, place, self.starts[target] - place - 4)
        rows = {offset: row for found in self.rows.values() for offset, row in found.items()}
        symbols = [start for start, body in zip(self.starts, self.functions, strict=True) if body.has_symbol]
        return Generated(bytes(self.code), tuple(self.starts), tuple({0, *symbols}), rows)

    def function(self, body: Body) -> None:
        frame = _Frame()
        if body.has_frame:
            self.emit(b"\x55", frame)
            frame = _Frame(16, -16, has_frame=True)
            self.emit(b"\x48\x89\xe5", frame)
        self.block(body.statements, frame)
        if body.returns:
            self.leave(frame)
        else:
            self.emit(_TRAP, frame)

    def leave(self, frame: _Frame) -> None:
        """Return from anywhere in a function."""
        if frame.has_frame:
            self.emit(_LEAVE, frame)
        else:
            assert frame.depth is not None
            if frame.saved_fp is not None:
                # mov rbp, [rsp + ...]
                self.emit(b"\x48\x8b\xac\x24" + struct.pack("<i", frame.depth + frame.saved_fp), frame)
            if frame.depth > 8:
                self.emit(b"\x48\x81\xc4" + struct.pack("<i", frame.depth - 8), frame)
        self.emit(_RET, _Frame())

    def block(self, statements: Sequence[Statement], frame: _Frame) -> None:
        for kind, operand, body in statements:
            getattr(self, "do_" + kind.replace(" ", "_"))(frame, operand, body)

    def conditional(self, frame: _Frame) -> int:
        """Emit a branch; return the place of its distance."""
        self.emit(_NEXT_BIT, frame)
        self.emit(_IF_CARRY + bytes(4), frame)
        return len(self.code) - 4

    def land(self, place: int, target: int) -> None:
        struct.pack_into("<i", self.code, place, target - place - 4)

    def call(self, frame: _Frame, target: int) -> None:
        self.emit(b"\xe8" + bytes(4), frame)
        self.calls.append((self.number, len(self.code) - 4, target))

    def do_move(self, frame: _Frame, operand: int, _body: object) -> None:
        self.emit(b"\xb8" + struct.pack("<i", operand), frame)

    def do_call(self, frame: _Frame, operand: int, _body: object) -> None:
        """Call a later function that returns, so that every program comes to its end."""
        later = [n for n, body in enumerate(self.functions) if n > self.number and body.returns]
        if later:
            self.call(frame, later[operand % len(later)])

    def do_die(self, frame: _Frame, operand: int, _body: object) -> None:
        """Call, on one way, a function that does not return, with something left on the stack."""
        others = [n for n, body in enumerate(self.functions) if not body.returns and n != self.number]
        if others:
            place = self.conditional(frame)
            self.emit(b"\x50", frame)
            self.call(frame.deeper(8), others[operand % len(others)])
            self.land(place, len(self.code))

    def do_return(self, frame: _Frame, _operand: object, _body: object) -> None:
        if self.functions[self.number].returns:
            place = self.conditional(frame)
            self.leave(frame)
            self.land(place, len(self.code))

    def do_push(self, frame: _Frame, operand: str, body: Sequence[Statement]) -> None:
        push, pop = _PUSHES[operand]
        self.emit(push, frame)
        self.block(body, frame.deeper(8))
        self.emit(pop, frame.deeper(8))

    def do_sub(self, frame: _Frame, operand: int, body: Sequence[Statement]) -> None:
        self.emit(b"\x48\x81\xec" + struct.pack("<i", operand), frame)
        self.block(body, frame.deeper(operand))
        self.emit(b"\x48\x81\xc4" + struct.pack("<i", operand), frame.deeper(operand))

    def do_if(self, frame: _Frame, _operand: object, body: Sequence[Statement]) -> None:
        place = self.conditional(frame)
        self.block(body, frame)
        self.land(place, len(self.code))

    def do_loop(self, frame: _Frame, _operand: object, body: Sequence[Statement]) -> None:
        start = len(self.code)
        self.block(body, frame)
        self.land(self.conditional(frame), start)

    def do_save_fp(self, frame: _Frame, _operand: object, body: Sequence[Statement]) -> None:
        """Save FP and use the register for something else; where it is saved already, only the statements inside."""
        if frame.saved_fp is not None or frame.depth is None:
            self.block(body, frame)
            return
        self.emit(b"\x55", frame)
        inside = frame.deeper(8)._replace(saved_fp=-frame.depth - 8)
        self.emit(b"\x31\xed", inside)
        self.block(body, inside)
        self.emit(b"\x5d", inside)

    def do_alloca(self, frame: _Frame, _operand: object, body: Sequence[Statement]) -> None:
        """Take as much of the stack as a register says; only with a frame pointer."""
        if not frame.has_frame or frame.depth is None:
            self.block(body, frame)
            return
        self.emit(b"\x48\x29\xfc", frame)
        inside = frame._replace(depth=None)
        self.block(body, inside)
        # lea rsp, [rbp - ...]
        self.emit(b"\x48\x8d\xa5" + struct.pack("<i", 16 - frame.depth), inside)


def generated(functions: Sequence[Body]) -> Generated:
    """Return the code of some functions, and its rows."""
    return _Maker(functions).make()
