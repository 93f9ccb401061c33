# SPDX-License-Identifier: Apache-2.0
"""Translate Go's table of functions into rows of call frame information.

For each function, the table has the depth of its frame at every PC (`pcsp`): the bytes pushed on or subtracted from SP
since the entry. The rest follows from the ABI: on AMD64, the RA is above the frame; elsewhere, the RA's register is
saved at its bottom, and holds the RA where the frame is empty. FP has no rule, as in Go's own `.debug_frame`.
"""

import struct
from collections.abc import Iterator
from enum import IntFlag
from typing import Final, NamedTuple

from cfi2sframe.abi.rule import Rule
from cfi2sframe.dwarf.fdes import FunctionTable, RowFunction
from cfi2sframe.dwarf.numbers import read_uleb
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, UnwindTable, table_of_rows
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import CfiError
from cfi2sframe.gotable.header import GoTable
from cfi2sframe.range_map import ADDRESS_MASK

#: Flags of a function: it is the outermost one of its stack; it changes SP in a way that its depths do not have.
_TOP_FRAME: Final = 1
_SP_WRITE: Final = 2
#: The kernel returns from signals through these; their callers were interrupted, and did not call them.
_SIGNAL_TRAMPOLINES: Final = ("runtime.sigreturn", "runtime.sigreturn__sigaction")
#: The kernel calls this; its RA is that of a trampoline, though Go's own tracebacks end here.
_SIGNAL_ENTRY: Final = "runtime.sigtramp"
#: Signal handlers make it look as if interrupted code had called these. Where calls leave the RA in a register, they
#: push that register first, which the depths do not count.
_INJECTED: Final = (
    *("runtime.sigpanic", "runtime.sigpanic0", "runtime.asyncPreempt"),
    *("runtime.debugCallV1", "runtime.debugCallV2"),
)

#: Frames are of whole words.
_WORD_SIZE: Final = 8
_MAX_DEPTH: Final = 1 << 31
_MAX_NAME_SIZE: Final = 1000

_NOTHING: Final = RowState(None, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)
_WITHOUT_RULES: Final = UnwindTable((0,), (_NOTHING,))


class _Kind(IntFlag):
    """The meaning of a function's depths."""

    PLAIN = 0
    INTERRUPTED = 1
    """Its caller was interrupted: the RA is that of the next instruction, and no call is before it."""
    WITHOUT_RULES = 2
    """The depths are wrong, or not all that unwinding needs; if `INTERRUPTED`, SP is not where a call leaves it."""


class _DepthRows(NamedTuple):
    """The rows of a function, the bytes of code that they are for, and a fault of the depths, if any."""

    table: UnwindTable
    size: int
    kind: _Kind = _Kind.PLAIN
    problem: str = ""


def go_table_cfi(image: ElfImage, table: GoTable) -> FunctionTable:
    """Return the contents of Go's table as CFI.

    Damaged functions are left out one by one (`FunctionTable.damaged`). Those with wrong depths have no rule for the
    CFA: functions that change SP other than by pushing and subtracting (a switch of stacks), that pop what they have
    not pushed, the trampoline of signals, and, except on AMD64, functions whose call a signal handler has faked.
    Raises `CfiError` when the table is damaged as a whole.
    """
    return _Translation(image, table).cfi()


def go_functions(table: GoTable) -> dict[int, tuple[int, str]]:
    """Return sizes in bytes and names of a table's functions by address; damaged ones are left out."""
    functions: dict[int, tuple[int, str]] = {}
    record = struct.Struct(table.byte_order + "II")
    for start, offset, end in _entries(table):
        if end > start and offset + record.size <= len(table.data):
            own_start, name = record.unpack_from(table.data, offset)
            if own_start == start:
                functions[table.text_vaddr + start] = (end - start, _name_at(table, name))
    return functions


def _entries(table: GoTable) -> Iterator[tuple[int, int, int]]:
    """Yield the start of each function, the offset of its record in the table, and the start of the next one."""
    words = struct.unpack_from(f"{table.byte_order}{2 * table.function_count + 1}I", table.data, table.functions_offset)
    for index in range(0, len(words) - 1, 2):
        yield words[index], table.functions_offset + words[index + 1], words[index + 2]


def _name_at(table: GoTable, offset: int) -> str:
    """Return a name, cut where it is long."""
    start = table.names_offset + offset
    name = table.data[start : min(start + _MAX_NAME_SIZE, table.values_offset)].split(b"\0", 1)[0]
    return name.decode("utf-8", "replace")


class _Translation:
    """Makes the CFI of one table. Functions share lists of depths, which are read once."""

    def __init__(self, image: ElfImage, table: GoTable) -> None:
        self.arch = image.arch
        self.table = table
        self._rows: dict[tuple[int, bool], _DepthRows | CfiError] = {}
        self._names = table.data[table.names_offset : table.values_offset]
        self._kinds = self._kinds_by_name()
        self._signal_entry = self._find_name(_SIGNAL_ENTRY)
        self._values = table.data[table.values_offset : table.functions_offset]

    def _find_name(self, name: str) -> int:
        """Return the offset of a name among the table's names; -1 without one."""
        at = self._names.find(f"\0{name}\0".encode("ascii"))
        return at + 1 if at >= 0 else -1

    def _kinds_by_name(self) -> dict[int, _Kind]:
        """Return the kinds of the functions that are not plain, by the offsets of their names."""
        injected = _Kind.INTERRUPTED if self.arch.fixed_ra_offset else _Kind.INTERRUPTED | _Kind.WITHOUT_RULES
        kinds = {self._find_name(name): _Kind.WITHOUT_RULES for name in _SIGNAL_TRAMPOLINES}
        return kinds | {self._find_name(name): injected for name in _INJECTED}

    def cfi(self) -> FunctionTable:
        """Return the whole table as CFI."""
        table = self.table
        made: list[RowFunction] = []
        damaged: list[tuple[int, str]] = []
        names: list[tuple[int, str]] = []
        for index, (start, offset, end) in enumerate(_entries(table)):
            try:
                if end <= start:
                    raise CfiError("the next function of the table starts before it")
                rows = self._function(start, offset)
            except CfiError as error:
                place = table.section_offset + table.functions_offset + 8 * index
                damaged.append((place, f"the function at 0x{table.text_vaddr + start:x}: {error.reason}"))
                continue
            if rows is None:
                continue
            vaddr = (table.text_vaddr + start) & ADDRESS_MASK
            if _Kind.WITHOUT_RULES in rows.kind:
                (name,) = struct.unpack_from(table.byte_order + "I", table.data, offset + 4)
                names.append((vaddr, _name_at(table, name)))
            size = min(end - start, rows.size)
            made.append(RowFunction(vaddr, size, rows.table, is_signal_frame=_Kind.INTERRUPTED in rows.kind))
        return FunctionTable(
            table.name, "gopclntab", tuple(made), len(table.data), damaged=tuple(damaged), names=tuple(names)
        )

    def _function(self, start: int, offset: int) -> _DepthRows | None:
        """Return the rows of a function; None where the table has no depths.

        `offset` is that of its record. Raises `CfiError` when the record or the list of depths is damaged.
        """
        table = self.table
        # A record ends with four bytes: the kind of the runtime's function, flags, padding, a count.
        size = 44 if table.has_start_line else 40
        if offset + size > len(table.data):
            raise CfiError("its record is outside the table")
        own_start, name, _, _, depths = struct.unpack_from(table.byte_order + "5I", table.data, offset)
        flags = table.data[offset + size - 3]
        if own_start != start:
            raise CfiError(f"its record is that of 0x{table.text_vaddr + own_start:x}")
        if not depths:
            return None
        is_top = flags & _TOP_FRAME != 0 and name != self._signal_entry
        key = (depths, is_top)
        if key not in self._rows:
            self._rows[key] = self._read_rows(depths, is_top=is_top)
        rows = self._rows[key]
        if isinstance(rows, CfiError):
            raise rows
        kind = rows.kind
        if not is_top:
            kind |= self._kinds.get(name, _Kind.PLAIN)
            kind |= _Kind.WITHOUT_RULES if flags & _SP_WRITE else _Kind.PLAIN
        if _Kind.WITHOUT_RULES in kind:
            return rows._replace(table=_WITHOUT_RULES, kind=kind)
        if rows.problem:
            raise CfiError(rows.problem)
        return rows._replace(kind=kind)

    def _read_rows(self, offset: int, *, is_top: bool) -> _DepthRows | CfiError:
        try:
            depths, size = self._read_depths(offset)
        except CfiError as error:
            return error
        wrong = [depth for _, depth in depths if depth % _WORD_SIZE or abs(depth) >= _MAX_DEPTH]
        if wrong:
            return _DepthRows(_WITHOUT_RULES, size, _Kind.PLAIN, f"a frame of {wrong[0]} bytes")
        if min(depth for _, depth in depths) < 0:
            # The function pops the RA, or other words of its caller, and pushes them again later.
            return _DepthRows(_WITHOUT_RULES, size, _Kind.WITHOUT_RULES)
        rows = [(delta, self._row(depth, is_top=is_top)) for delta, depth in ((0, 0), *depths)]
        return _DepthRows(table_of_rows(rows), size)

    def _row(self, depth: int, *, is_top: bool) -> RowState:
        """Return the row of a depth: calls push the RA, or leave it in a register, which functions save at SP."""
        arch = self.arch
        from_sp = depth + arch.entry_cfa_offset
        ra: Rule | NoRule = NoRule.UNSPECIFIED
        if is_top:
            ra = NoRule.UNDEFINED
        elif arch.fixed_ra_offset or depth:
            ra = Rule(None, arch.fixed_ra_offset or -from_sp, deref=True)
        return _NOTHING._replace(cfa=Rule(arch.sp_register, from_sp, deref=False), ra=ra)

    def _read_depths(self, position: int) -> tuple[list[tuple[int, int]], int]:
        """Return the starts and values of the depths, and the end of the last one, in bytes from the function's start.

        Values by PC are pairs: a change of the value (zigzag, from -1 on; 0 ends the list unless it comes first), and
        the distance for which the value holds, in quanta; both are LEB128 numbers.
        """
        data, quantum = self._values, self.table.quantum
        value, delta = -1, 0
        depths: list[tuple[int, int]] = []
        while True:
            change, position = read_uleb(data, position)
            if not change and depths:
                return depths, delta
            distance, position = read_uleb(data, position)
            value += -((change + 1) >> 1) if change & 1 else change >> 1
            depths.append((delta, value))
            delta += distance * quantum
            if not distance or delta > 0xFFFFFFFF:
                raise CfiError("the PCs of its depths do not ascend")
