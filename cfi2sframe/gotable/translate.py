# SPDX-License-Identifier: Apache-2.0
"""Go's table of functions to call frame information in the form of `.debug_frame`, for the same machinery.

For each function the table has the depth of its frame at every PC (`pcsp`): what has been pushed or subtracted from SP
since the entry. The rest is the ABI's: on AMD64 the RA is above the frame; elsewhere the RA's register is saved at the
bottom of it, and holds the RA where the frame is empty. Nothing is said of FP, as in Go's own `.debug_frame`.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import encode_uleb, read_uleb
from cfi2sframe.dwarf.writer import FDE_HEAD_SIZE, advance, cie, fde_head
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.elf.constants import EM_S390, EM_X86_64
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.gotable.header import GoTable

#: Flags of a function: the outermost one of its stack; it gives SP values that its depths do not tell.
_TOP_FRAME: Final = 1
_SP_WRITE: Final = 2
#: The kernel returns from signals through these; their callers were interrupted, and did not call them.
_SIGNAL_TRAMPOLINES: Final = ("runtime.sigreturn", "runtime.sigreturn__sigaction")
#: The kernel calls this; its RA is that of a trampoline, though Go's own tracebacks end here.
_SIGNAL_ENTRY: Final = "runtime.sigtramp"
#: Signal handlers make it look as if interrupted code had called these. Where calls leave the RA in a register, they
#: push that register before, of which the depths know nothing.
_INJECTED: Final = (
    *("runtime.sigpanic", "runtime.sigpanic0", "runtime.asyncPreempt"),
    *("runtime.debugCallV1", "runtime.debugCallV2"),
)

#: CFA factors of the synthesized CIEs. Frames are of whole words.
_DATA_ALIGNMENT: Final = -8
#: What the CFA is from SP in an empty frame, other than on AMD64, where a call pushes the RA: s390x has a register save
#: area there.
_CALL_SIZE: Final = {EM_X86_64: 8, EM_S390: 160}
_MAX_DEPTH: Final = 1 << 31
_MAX_NAME_SIZE: Final = 1000
#: Bytes of memory for a damaged function, and for one with a name.
_DAMAGE_SIZE: Final = 300
#: Microseconds of work on one value of a table by PC, and on one function.
_VALUE_STEPS: Final = 1
_FUNCTION_STEPS: Final = 2
_WHAT: Final = "the functions of Go's table"


class _Kind(IntEnum):
    """What the depths of a function mean; each kind has a CIE of its own."""

    PLAIN = 0
    INTERRUPTED = 1
    """Its caller was interrupted: the RA is that of the next instruction, and no call is before it."""
    WITHOUT_RULES = 2
    """The depths are not true, or not all that there is to know."""


class _DepthRows(NamedTuple):
    """Call frame instructions, the bytes of code that they are for, and what is wrong with the depths.

    `kind` is `WITHOUT_RULES` where depths by themselves show that they are not all that there is to know.
    """

    instructions: bytes
    size: int
    kind: _Kind = _Kind.PLAIN
    problem: str = ""


def go_table_cfi(image: ElfImage, table: GoTable) -> CfiSection:
    """Return the CFI that says what Go's table says.

    Functions are damaged one by one (`CfiSection.damaged`). Those for which no depth is true have no rule for the CFA:
    functions that change SP by other means than pushing and subtracting (a switch of stacks), that pop what they have
    not pushed, the trampoline of signals, and, other than on AMD64, functions whose call a signal handler has faked.
    Raises `CfiError` when the table is damaged as a whole, `BudgetError` when it is out of proportion to the file.
    """
    return _Translation(image, table).section()


class _Translation:
    """Makes the CFI of one table; each distinct list of depths is read once."""

    def __init__(self, image: ElfImage, table: GoTable) -> None:
        self.arch = image.arch
        self.budget = image.budget
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
        injected = _Kind.INTERRUPTED if self.arch.fixed_ra_offset else _Kind.WITHOUT_RULES
        kinds = {self._find_name(name): _Kind.WITHOUT_RULES for name in _SIGNAL_TRAMPOLINES}
        return kinds | {self._find_name(name): injected for name in _INJECTED}

    def section(self) -> CfiSection:
        """Return the whole table as CFI."""
        table = self.table
        order, functions = table.byte_order, table.functions_offset
        count = table.function_count
        starts = struct.unpack_from(f"{order}{2 * count + 1}I", table.data, functions)
        pieces = [_cie(self.arch, table.quantum, kind) for kind in _Kind]
        cie_offsets = [0, len(pieces[0]), len(pieces[0]) + len(pieces[1])]
        damaged: list[tuple[int, str]] = []
        names: list[tuple[int, str]] = []
        self.budget.spend(_FUNCTION_STEPS * count, _WHAT)
        for number in range(count):
            start, offset, end = starts[2 * number : 2 * number + 3]
            try:
                if end <= start:
                    raise CfiError("the next function of the table starts before it")
                kind, rows = self._function(start, functions + offset)
            except CfiError as error:
                self.budget.hold(_DAMAGE_SIZE, _WHAT)
                place = table.section_offset + functions + 8 * number
                damaged.append((place, f"the function at 0x{table.text_vaddr + start:x}: {error.reason}"))
                continue
            if rows is None:
                continue
            # The augmentation data that "zS" announces: none.
            instructions = b"\0" + rows.instructions if kind is _Kind.INTERRUPTED else rows.instructions
            if kind is _Kind.WITHOUT_RULES:
                names.append((table.text_vaddr + start, self._name(functions + offset)))
            self.budget.hold(FDE_HEAD_SIZE + len(instructions), _WHAT)
            vaddr = (table.text_vaddr + start) & 0xFFFFFFFFFFFFFFFF
            pieces.append(fde_head(order, cie_offsets[kind], vaddr, min(end - start, rows.size), len(instructions)))
            pieces.append(instructions)
        return CfiSection(
            table.name,
            "gopclntab",
            b"".join(pieces),
            vaddr=0,
            relocations={},
            unresolved=frozenset(),
            table_vaddr=None,
            damaged=tuple(damaged),
            names=tuple(names),
        )

    def _function(self, start: int, offset: int) -> tuple[_Kind, _DepthRows | None]:
        """Return the kind of a function, and its rows; None where the table has no depths.

        `offset` is that of its record. Raises `CfiError` when the record or the list of depths is damaged.
        """
        table = self.table
        # A record ends with four bytes: the kind of the runtime's function, flags, padding, a count.
        size = 44 if table.has_start_line else 40
        if offset + size > len(table.data):
            raise CfiError("its record leaves the table")
        own_start, name, _, _, depths = struct.unpack_from(table.byte_order + "5I", table.data, offset)
        flags = table.data[offset + size - 3]
        if own_start != start:
            raise CfiError(f"its record is that of 0x{table.text_vaddr + own_start:x}")
        if not depths:
            return _Kind.PLAIN, None
        is_top = flags & _TOP_FRAME != 0 and name != self._signal_entry
        key = (depths, is_top)
        found = self._rows.get(key)
        if found is None:
            found = self._rows[key] = self._read_rows(depths, is_top=is_top)
        if isinstance(found, CfiError):
            raise found
        kind = found.kind
        if not is_top and kind is _Kind.PLAIN:
            kind = _Kind.WITHOUT_RULES if flags & _SP_WRITE else self._kinds.get(name, kind)
        if kind is _Kind.WITHOUT_RULES:
            return kind, found._replace(instructions=b"")
        if found.problem:
            raise CfiError(found.problem)
        return kind, found

    def _name(self, record_offset: int) -> str:
        """Return a function's name for reports, cut where it is long."""
        table = self.table
        start = table.names_offset + int(struct.unpack_from(table.byte_order + "I", table.data, record_offset + 4)[0])
        name = table.data[start : min(start + _MAX_NAME_SIZE, table.values_offset)].split(b"\0", 1)[0]
        self.budget.hold(_DAMAGE_SIZE + len(name), _WHAT)
        return name.decode("utf-8", "replace")

    def _read_rows(self, offset: int, *, is_top: bool) -> _DepthRows | CfiError:
        try:
            depths, size = self._read_depths(offset)
        except CfiError as error:
            return error
        wrong = [depth for _, depth in depths if depth % -_DATA_ALIGNMENT or abs(depth) >= _MAX_DEPTH]
        if wrong:
            return _DepthRows(b"", size, _Kind.PLAIN, f"a frame of {wrong[0]} bytes")
        if min(depth for _, depth in depths) < 0:
            # It pops what its caller has pushed, as the RA, and pushes it again later.
            return _DepthRows(b"", size, _Kind.WITHOUT_RULES)
        rules = _link_register_rules if self.arch.fixed_ra_offset == 0 else _stack_rules
        parts = [bytes((d.DW_CFA_undefined, self.arch.ra_register))] if is_top else []
        last_delta = last_depth = 0
        for delta, depth in depths:
            if depth == last_depth:
                continue
            parts.append(advance((delta - last_delta) // self.table.quantum, self.table.byte_order))
            parts.append(rules(self.arch, depth, last_depth, is_top=is_top))
            last_delta, last_depth = delta, depth
        instructions = b"".join(parts)
        self.budget.hold(len(instructions), _WHAT)
        return _DepthRows(instructions, size)

    def _read_depths(self, position: int) -> tuple[list[tuple[int, int]], int]:
        """Return where each depth starts, in bytes from the function's start, and where the last one ends.

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
            self.budget.spend(_VALUE_STEPS, _WHAT)
            distance, position = read_uleb(data, position)
            value += -((change + 1) >> 1) if change & 1 else change >> 1
            depths.append((delta, value))
            delta += distance * quantum
            if not distance or delta > 0xFFFFFFFF:
                raise CfiError("the PCs of its depths do not ascend")


def _call_size(arch: Arch) -> int:
    """Return the distance of the CFA from SP in an empty frame."""
    return _CALL_SIZE.get(arch.elf_machine, 0)


def _cie(arch: Arch, quantum: int, kind: _Kind) -> bytes:
    """Return the CIE of a kind of functions, version 3, with the rules of an empty frame."""
    rules = b""
    if kind is not _Kind.WITHOUT_RULES:
        rules = bytes((d.DW_CFA_def_cfa, arch.sp_register)) + encode_uleb(_call_size(arch))
        if arch.fixed_ra_offset:
            rules += bytes((d.DW_CFA_offset | arch.ra_register,)) + encode_uleb(arch.fixed_ra_offset // _DATA_ALIGNMENT)
    return cie(
        arch,
        code_alignment=quantum,
        data_alignment=_DATA_ALIGNMENT,
        instructions=rules,
        is_signal_frame=kind is _Kind.INTERRUPTED,
        uses_b_key=False,
    )


def _stack_rules(arch: Arch, depth: int, _last_depth: int, *, is_top: bool) -> bytes:
    """Return the instructions for a depth where calls push the RA."""
    del is_top
    return bytes((d.DW_CFA_def_cfa_offset,)) + encode_uleb(depth + _call_size(arch))


def _link_register_rules(arch: Arch, depth: int, last_depth: int, *, is_top: bool) -> bytes:
    """Return the instructions for a depth where calls leave the RA in a register, which is saved at SP."""
    call_size = _call_size(arch)
    cfa = bytes((d.DW_CFA_def_cfa_offset,)) + encode_uleb(depth + call_size)
    if is_top:
        return cfa
    if depth:
        return cfa + bytes((d.DW_CFA_offset | arch.ra_register,)) + encode_uleb((depth + call_size) // -_DATA_ALIGNMENT)
    return cfa + bytes((d.DW_CFA_restore | arch.ra_register,)) if last_depth else cfa
